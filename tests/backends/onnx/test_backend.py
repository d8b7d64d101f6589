"""The onnx backend around its graphs, with the built-in models, in addition to the contract suite."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from antiphon.backends.base import StepInputs
from antiphon.backends.host import HostBackend
from antiphon.backends.onnx import loading, sessions
from antiphon.backends.onnx.autotune import RunCost, ThreadMode, Times
from antiphon.backends.onnx.executor import OnnxFrames, describe_threads
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.loading import make
from antiphon.backends.onnx.stage import Stage
from antiphon.errors import ConfigError, DeviceLostError, StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.prompt import Prompt


def backend_of(model: str, slots: int = 3) -> HostBackend:
    backend = make(load_checkpoint(model), slots=slots, threads=1)
    assert isinstance(backend, HostBackend)
    return backend


def executor_of(backend: HostBackend) -> OnnxFrames:
    assert isinstance(backend.executor, OnnxFrames)
    return backend.executor


def tick(rows: int, *, reset: bool = False, seed: int = 0) -> StepInputs:
    pcm = np.random.default_rng(seed).normal(0, 0.1, (rows, 1920)).astype(np.float32)
    return StepInputs(np.arange(rows, dtype=np.int32), np.full(rows, reset), pcm)


def test_facts_about_the_built_in_models() -> None:
    info = backend_of("tiny").info
    rounding = load_checkpoint("tiny").quantization_for("onnx")
    assert rounding is not None
    assert (info.name, info.device, info.dtype, info.quantization) == (
        "onnx",
        "cpu",
        "float32",
        rounding.scheme,
    )
    assert 0.5 * info.spec.parameters < info.memory["weights"] < 4 * info.spec.parameters
    assert not info.can_prime


def test_warm_up_reports_its_progress_and_leaves_fresh_rows() -> None:
    backend, seen = backend_of("tiny"), []
    backend.warm_up(lambda done, total, what: seen.append((done, total, what)))
    assert seen == [(0, 4, "encode"), (1, 4, "lm"), (2, 4, "depformer"), (3, 4, "decode"), (4, 4, "ready")]
    fresh = backend_of("tiny")
    costs = [executor_of(each).stages["lm"].cost for each in (backend, fresh)]
    assert costs[0] != costs[1]  # it was measured
    for row in range(3):
        for name, tensor in backend.snapshot(row).tensors.items():
            np.testing.assert_array_equal(tensor, fresh.snapshot(row).tensors[name])


def test_a_failing_graph_names_its_rows_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of("echo")
    backend.step(tick(3, reset=True))
    kept = backend.snapshot(2)

    def fail(self: Graph, window: range) -> None:
        raise RuntimeError("no such kernel")

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "prepare", fail)
        with pytest.raises(
            StepError, match=r"a step over rows \[0, 1\] failed: RuntimeError: no such kernel"
        ) as caught:
            backend.step(tick(2))
        assert caught.value.rows == (0, 1)
    for name, tensor in backend.snapshot(2).tensors.items():
        np.testing.assert_array_equal(tensor, kept.tensors[name])


def test_steps_that_keep_failing_cost_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of("echo")

    def failing_step() -> type[Exception]:
        with monkeypatch.context() as patch:
            patch.setattr(Graph, "prepare", lambda self, window: 1 / 0)
            with pytest.raises((StepError, DeviceLostError)) as caught:
                backend.step(tick(1))
        return caught.type

    assert [failing_step() for _ in range(2)] == [StepError, StepError]
    backend.step(tick(1))
    assert [failing_step() for _ in range(3)] == [StepError, StepError, DeviceLostError]


def test_a_resized_backend_equals_one_that_was_made_so(monkeypatch: pytest.MonkeyPatch) -> None:
    resized, made = backend_of("tiny", 1), backend_of("tiny", 3)
    resized.step(tick(1, reset=True))
    monkeypatch.setattr(sessions, "open_session", None)  # nothing is loaded anew
    resized.resize(3)
    assert resized.info == made.info
    assert resized.state_bytes() == made.state_bytes()
    for seed in range(6):
        inputs = tick(3, reset=seed == 0, seed=seed)
        ours, theirs = resized.step(inputs), made.step(inputs)
        np.testing.assert_array_equal(ours.text_tokens, theirs.text_tokens)
        np.testing.assert_array_equal(ours.pcm, theirs.pcm)
    with pytest.raises(ConfigError, match="at least 1 slot, not 0"):
        resized.resize(0)


def test_a_snapshot_of_another_model_is_refused_and_changes_nothing() -> None:
    echo, duplex = backend_of("echo"), backend_of("tiny")
    duplex.step(tick(3, reset=True))
    before = duplex.snapshot(1)
    with pytest.raises(
        UnsupportedError, match=r"another model: delays\.offset is nothing in it, and int64 \[\]"
    ):
        duplex.restore(1, echo.snapshot(0))
    other = replace(before, tensors={**before.tensors, "lm.0.k": np.zeros((4, 9, 16), dtype=np.float32)})
    wanted = r"lm\.0\.k is float32 \[4, 9, 16\] in it, and float32 \[8, 1, 40\] in this model"
    with pytest.raises(UnsupportedError, match=wanted):
        duplex.restore(1, other)
    words = replace(before, tensors={**before.tensors, "sampler.words": np.zeros(3, dtype=np.int32)})
    with pytest.raises(UnsupportedError, match=r"sampler\.words is int32 \[3\] in it, and int32 \[256\]"):
        duplex.restore(1, words)
    for name, tensor in duplex.snapshot(1).tensors.items():
        np.testing.assert_array_equal(tensor, before.tensors[name])


def test_a_snapshot_holds_rings_as_far_as_they_are_filled() -> None:
    backend = backend_of("tiny")
    for frame in range(3):
        backend.step(tick(3, reset=frame == 0, seed=frame))
    tensors = backend.snapshot(1).tensors
    assert tensors["lm.0.k"].shape == (8, 3, 40)
    assert tensors["decoder_transformer.0.v"].shape[1] == 4  # two a frame, and the first frame is silent
    for frame in range(200):
        backend.step(tick(1, seed=frame))
    assert backend.snapshot(0).tensors["lm.0.k"].shape == (8, 125, 40)


def test_a_plan_counts_the_rows_of_the_language_model() -> None:
    backend = backend_of("tiny", 9)
    stages = executor_of(backend).stages
    assert {name for name, stage in stages.items() if stage.is_packed} == {"encode", "depformer", "decode"}
    rows = np.array([8, 0, 2, 3], np.int32)
    stages["lm"].cost = RunCost(run_ms=1.5, row_ms=1.0)
    assert backend.plan(rows) == 5  # 0 to 3, and 8
    stages["lm"].cost = RunCost(run_ms=0.5, row_ms=1.0)
    assert backend.plan(rows) == 4
    assert backend.plan(rows, is_fixed=True) == 9


def test_what_cannot_be_is_said() -> None:
    checkpoint = load_checkpoint("echo")
    with pytest.raises(ConfigError, match="threads is 0; a model needs at least 1"):
        make(checkpoint, slots=1, threads=0)
    prompt = Prompt(np.zeros((4, 17), dtype=np.int32))
    with pytest.raises(UnsupportedError, match=r"takes no prompts \(this one has 4 frames\); torch does"):
        backend_of("tiny").prime(0, prompt)


@pytest.fixture
def long_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several threads share a product of any graph."""
    monkeypatch.setattr(loading, "SHORT_BYTES", 0)


@pytest.mark.usefixtures("long_products")
def test_parts_of_a_tick_have_a_thread_each_until_the_backend_is_closed() -> None:
    plain, backend = backend_of("echo"), make(load_checkpoint("echo"), slots=3, threads=2)
    assert isinstance(backend, HostBackend)
    assert backend.info.memory["weights"] == 2 * plain.info.memory["weights"]
    for stage in executor_of(backend).stages.values():
        stage.open_split()
        stage.split_from = 2
    before = set(threading.enumerate())
    outputs = backend.step(tick(3, reset=True))
    assert outputs.pcm is not None
    assert np.isfinite(outputs.pcm).all()
    (own,) = set(threading.enumerate()) - before
    assert own.name.startswith("antiphon-rows")
    backend.close()
    assert not own.is_alive()


@pytest.mark.usefixtures("long_products")
def test_threads_may_spin_and_say_the_same() -> None:
    checkpoint = load_checkpoint("echo")
    outputs = [
        make(checkpoint, slots=1, threads=2, spin=spin).step(tick(1, reset=True)).pcm
        for spin in (False, True)
    ]
    assert outputs[0] is not None
    assert outputs[1] is not None
    np.testing.assert_array_equal(outputs[0], outputs[1])


@pytest.mark.usefixtures("long_products")
def test_threads_are_chosen_with_some_rows_and_kept_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, set[ThreadMode]]] = []

    def timed(runs: Mapping[ThreadMode, object], slots: int, counts: Sequence[int]) -> Times:
        asked.append((slots, set(runs)))
        ms = {ThreadMode.SLEEPING: 2.0, ThreadMode.SPINNING: 1.0, ThreadMode.PARTS: 3.0}
        return {way: {count: [ms[way]] for count in counts} for way in runs}

    monkeypatch.setattr("antiphon.backends.onnx.stage.time_modes", timed)
    backend = make(load_checkpoint("echo"), slots=1, threads=2)
    backend.resize(4)
    backend.choose_threads()
    backend.resize(7)
    backend.warm_up(lambda *_: None)
    assert asked == 2 * [(4, set(ThreadMode))], "with one mode left, a packed stage has nothing to choose"
    assert backend.info.threads == "2 threads, spinning; no stage in parts"
    backend.close()
    asked.clear()
    alone = make(load_checkpoint("echo"), slots=4, threads=1)
    assert not alone.info.chooses_threads
    alone.choose_threads()  # one thread has no choice, and packed stages have no windows
    assert asked == []


def test_the_cost_of_windows_is_known_before_ticks_are_timed() -> None:
    """The ready rows of a timed tick are apart: without the cost of a run, no gap would be bridged."""
    backend = make(load_checkpoint("tiny"), slots=1, threads=1)
    assert isinstance(backend, HostBackend)
    assert backend.info.chooses_threads
    backend.resize(8)
    backend.choose_threads()
    lm = executor_of(backend).stages["lm"]
    measured = lm.cost
    assert measured.run_ms + measured.row_ms not in (0.0, 1.0)
    backend.resize(5)
    backend.warm_up(lambda *_: None)
    assert lm.cost == measured
    backend.close()


@pytest.mark.usefixtures("long_products")
@pytest.mark.parametrize(("spin", "timed"), [(False, []), (True, []), (None, [4, 4])])
def test_a_graph_without_parts_whose_threads_wait_as_asked_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, spin: bool | None, timed: list[int]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("antiphon.backends.onnx.loading.SPLIT_BYTES", 0)
    monkeypatch.setattr(Stage, "warm_up", lambda stage, counts: asked.append(stage.slots))
    backend = make(load_checkpoint("echo"), slots=4, threads=2, spin=spin)
    backend.choose_threads()
    assert asked == timed
    backend.close()


@pytest.mark.usefixtures("long_products")
def test_how_threads_are_used_is_known_once_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make(load_checkpoint("echo"), slots=4, threads=2, spin=True)
    assert isinstance(backend, HostBackend)
    stages = executor_of(backend).stages
    parts_ms = iter((1.0, 3.0))

    def timed(runs: Mapping[ThreadMode, object], slots: int, counts: Sequence[int]) -> Times:
        ms = {ThreadMode.SPINNING: 2.0, ThreadMode.PARTS: next(parts_ms)}
        return {way: {count: [ms[way]] for count in counts} for way in runs}

    monkeypatch.setattr("antiphon.backends.onnx.stage.time_modes", timed)
    before = backend.info
    assert before.threads == ""
    backend.warm_up(lambda *_: None)
    assert backend.info.threads == "2 threads, spinning; in parts: encode"
    freed = before.memory["weights"] - backend.info.memory["weights"]
    assert 0 < freed < before.memory["weights"] / 2
    stages["decode"].is_spinning = False
    stages["encode"].split_from = None
    assert describe_threads(stages) == "2 threads, spinning in encode; no stage in parts"
    stages["decode"].split_from = 4
    assert describe_threads(stages) == "2 threads, spinning in encode; in parts: decode from 4 rows on"
    backend.close()


def test_short_graphs_use_every_core_and_their_threads_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.backends.onnx.loading.usable_cores", lambda: 3)
    monkeypatch.setattr("antiphon.backends.machine.usable_cores", lambda: 3)
    checkpoint = load_checkpoint("echo")
    with closing(make(checkpoint, slots=1)) as backend:
        assert (backend.info.cpu_threads, backend.info.splits_rows) == (3, True)
        assert backend.info.memory["weights"] == backend_of("echo").info.memory["weights"]
    monkeypatch.setattr(loading, "SHORT_BYTES", 0)
    with closing(make(checkpoint, slots=1)) as backend:
        assert (backend.info.cpu_threads, backend.info.splits_rows) == (2, False)


def test_one_thread_waits_for_no_other() -> None:
    backend = backend_of("echo")
    backend.warm_up(lambda *_: None)
    assert backend.info.threads == "1 thread"
