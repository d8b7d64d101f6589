"""Whether a tick can be captured as CUDA graphs, checked without CUDA.

A stage is recorded operation by operation: it must not wait for the host, nor read any memory but static
buffers and its own, nor leave any behind; and a session whose ticks are replays must equal one whose ticks
are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.backends.base import IntArray, StepInputs, StepOutputs
from antiphon.backends.host import HostBackend
from antiphon.backends.torch import executor as executor_module
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.loading import make
from antiphon.backends.torch.pipeline import (
    EMITTING,
    ROW,
    BatchLayout,
    LayoutKind,
    Pipeline,
    StageRunner,
    place_rows,
)
from antiphon.backends.torch.sampling import Sampler
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from tests.backends.torch.recorded import (
    HOST_WAITS,
    RecordedGraph,
    Recorder,
    left_behind,
    recording,
    stages_of,
    whole_places,
)
from tests.support.make_checkpoint import make_checkpoint

KINDS = ("moshi", "stt")
"""The stages of a codec alone are the first and the last of the first."""
ROWS = 4
ALL = np.arange(ROWS, dtype=np.int32)
SAMPLED = SamplingParameters(text_seed=3, audio_seed=4, repetition_penalty=1.3, repetition_penalty_context=9)
GREEDY = SamplingParameters(text_temperature=0, audio_temperature=0)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("capture") / request.param
    return load_checkpoint(str(make_checkpoint(folder, kind=request.param, dtype="float32")))


def buffers_of(pipeline: Pipeline) -> list[Tensor]:
    buffers = pipeline.buffers
    return [buffers.arrived, buffers.codes, buffers.voice, buffers.leaving, buffers.chosen]


def static_tensors(pipeline: Pipeline) -> list[Tensor]:
    """Everything that keeps its place from tick to tick."""
    found = [*pipeline.state.tensors.values(), *buffers_of(pipeline)]
    modules = [pipeline.mimi] if pipeline.generator is None else [pipeline.mimi, pipeline.generator.model]
    for module in modules:
        found += module.state_dict().values()
        for child in module.modules():
            found += [value for value in vars(child).values() if isinstance(value, Tensor)]
    if pipeline.generator is not None and pipeline.sampler is not None:
        cache, sampler = pipeline.generator.cache, pipeline.sampler
        found += [cache.delays, cache.initial]
        found += [value for value in vars(sampler).values() if isinstance(value, Tensor)]
    return found


def test_the_host_copies_its_inputs_without_torch(checkpoint: Checkpoint) -> None:
    """Torch would share an operation on the inputs among threads, which wait for each other."""
    executor = make(checkpoint, slots=ROWS, device="cpu").executor
    assert isinstance(executor, TorchRows)
    pcm = np.ones((3, checkpoint.spec.frame_samples), np.float32)
    places = place_rows(LayoutKind.PADDED, ROWS, ALL[:3], np.zeros(3, np.int64))
    with torch.inference_mode(), Recorder() as recorder:
        executor.arrive(places, pcm)
    assert [operation.name for operation in recorder.kernels] == ["copy_"]


@pytest.mark.parametrize("weights", ["compute", "int8"])
def test_a_stage_waits_for_nobody_and_touches_only_what_stays(checkpoint: Checkpoint, weights: str) -> None:
    backend = make(checkpoint, slots=ROWS, device="cpu", weights=weights, kv=weights)
    if checkpoint.spec.lm is not None:
        backend.set_parameters(1, SAMPLED)
    assert isinstance(backend.executor, TorchRows)
    pipeline = backend.executor.pipeline
    lists = pipeline.buffers.arrived.view(torch.int32)
    lists[:, ROW] = lists[:, EMITTING] = torch.tensor([0, -1, 2, 3], dtype=torch.int32)
    for name, stage in stages_of(pipeline, whole_places(ROWS, ALL)).items():
        with torch.inference_mode():
            assert left_behind(stage) == [], name
            with Recorder() as recorder:
                stage()
        assert {one.name for one in recorder.operations} & HOST_WAITS == set(), name
        assert recorder.outsiders(static_tensors(pipeline)) == [], name
        assert recorder.kernels


class Session:
    """Ticks over some rows in any order, of which some begin anew."""

    def __init__(self, backend: HostBackend) -> None:
        self._backend = backend
        self._random = np.random.default_rng(5)

    def tick(self, index: int) -> StepOutputs:
        count = int(self._random.integers(1, ROWS + 1)) if index else ROWS
        rows = self._random.permutation(ROWS)[:count].astype(np.int32)
        reset = self._random.random(count) < 0.1 if index else np.ones(count, np.bool_)
        pcm = self._random.normal(0, 0.1, (count, 1920)).astype(np.float32)
        return self._backend.step(StepInputs(rows, reset, pcm, is_fixed=index % 7 == 3))


class RecordedRunner(StageRunner):
    """A runner whose graphs are recorded ones."""

    on_cuda = True

    def finish(self) -> dict[str, float]:
        return {}

    def _now(self) -> float:
        return 0.0


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Backends made meanwhile capture and replay; the graphs they made."""
    graphs: list[RecordedGraph] = []

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    @contextmanager
    def capture(graph: RecordedGraph, **_: object) -> Iterator[None]:
        def static() -> list[Tensor]:
            pipeline = made[0]  # what is made later runs beside it
            return [*pipeline.state.tensors.values(), *buffers_of(pipeline)]

        graphs.append(graph)
        with recording(graph, static):
            yield

    made: list[Pipeline] = []
    init = Pipeline.__init__

    def noted(pipeline: Pipeline, *arguments: Any, **options: Any) -> None:
        init(pipeline, *arguments, **options)
        made.append(pipeline)

    def placed(layout: LayoutKind, slots: int, rows: IntArray, frames: Any, *, is_fixed: bool) -> BatchLayout:
        if layout is LayoutKind.PADDED:
            return whole_places(slots, rows)
        return place_rows(layout, slots, rows, frames, is_fixed=is_fixed)

    monkeypatch.setattr(Pipeline, "__init__", noted)
    monkeypatch.setattr(Pipeline, "layout", LayoutKind.PADDED)
    monkeypatch.setattr(executor_module, "place_rows", placed)
    monkeypatch.setattr(executor_module, "StageRunner", RecordedRunner)
    monkeypatch.setattr(Sampler, "is_captured", True)
    monkeypatch.setattr(TorchRows, "_host_buffer", lambda _, buffer: torch.zeros_like(buffer))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", nothing)
    monkeypatch.setattr(torch.cuda, "stream", nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    return graphs


def test_sessions_of_replays_equal_sessions_of_runs(
    checkpoint: Checkpoint, without_cuda: list[RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = make(checkpoint, slots=ROWS, device="cpu")
    monkeypatch.setattr(executor_module, "StageRunner", StageRunner)
    monkeypatch.setattr(Pipeline, "layout", LayoutKind.EAGER)
    run = make(checkpoint, slots=ROWS, device="cpu")
    assert isinstance(replayed, HostBackend)
    assert isinstance(run, HostBackend)
    for backend in (replayed, run):
        for row, parameters in enumerate((SAMPLED, GREEDY)):
            backend.set_parameters(row, parameters)
    ours, theirs = Session(replayed), Session(run)
    for index in range(70):  # more than twice the context
        if index == 20:  # a graph reads parameters, it does not keep them
            for backend in (replayed, run):
                backend.set_parameters(1, SAMPLED)
        got, want = ours.tick(index), theirs.tick(index)
        assert np.array_equal(got.emitted, want.emitted)
        for one, other in ((got.pcm, want.pcm), (got.vad, want.vad)):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                rows = want.emitted
                assert np.allclose(one[rows], other[rows], rtol=1e-5, atol=1e-6), index
        if got.text_tokens is not None and want.text_tokens is not None:
            assert np.array_equal(got.text_tokens, want.text_tokens), index
    assert isinstance(run.executor, TorchRows)
    places = whole_places(ROWS, ALL)
    assert len(without_cuda) == len(stages_of(run.executor.pipeline, places))
    assert all(graph.operations for graph in without_cuda)


def test_no_parameters_of_callers_cost_a_graph(
    checkpoint: Checkpoint, without_cuda: list[RecordedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    """After warm-up, over a thousand sets of them: whoever begins, all others go on in captured graphs."""
    backend = make(checkpoint, slots=ROWS, device="cpu")
    assert isinstance(backend, HostBackend)
    assert isinstance(backend.executor, TorchRows)
    backend.warm_up(lambda *_: None)
    session, captured, random = Session(backend), len(without_cuda), np.random.default_rng(7)
    for index in range(1000):
        temperatures = random.choice([0.0, 0.3, 0.8, 1.5], 2)
        text_topk, audio_topk = random.choice([0, 1, 25, 250, 512, 513, 2048, 100_000], 2)
        backend.set_parameters(
            int(random.integers(ROWS)),
            SamplingParameters(
                float(temperatures[0]),
                int(text_topk),
                float(temperatures[1]),
                int(audio_topk),
                repetition_penalty=float(random.choice([1.0, 1.3])),
                repetition_penalty_context=int(random.integers(1, 200)),
            ),
        )
        if index % 50 == 0:
            session.tick(index)
    assert len(without_cuda) == captured
    assert "a stage ran without a graph" not in caplog.messages


def test_what_a_replay_cannot_know_is_noticed(without_cuda: list[RecordedGraph]) -> None:
    """The stand-in freezes what the host decides, else the test above would prove nothing."""
    graph, buffer, by_host = RecordedGraph(), torch.zeros(2), [1.0]
    with recording(graph, lambda: [buffer]):
        buffer.add_(by_host[0])
    assert buffer.tolist() == [0, 0]
    by_host[0] = 5.0
    graph.replay()
    assert buffer.tolist() == [1, 1]
    with Recorder() as recorder:
        kept = buffer * 2
        kept.sum().item()
    assert {one.name for one in recorder.operations} & HOST_WAITS
    assert recorder.outsiders([]) == ["mul"]
    assert left_behind(lambda: None) == []
    kept_aside: list[Tensor] = []
    assert left_behind(lambda: kept_aside.append(buffer * 2)) == ["mul"]
