"""The whole torch backend compared with upstream's loops, in addition to the contract suite."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMGen
from moshi.utils.compile import no_compile

from antiphon.backends.base import NO_TOKEN, FloatArray, Resizable, StepInputs, StepOutputs, Work
from antiphon.backends.host import HostBackend
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.loading import make
from antiphon.backends.torch.pipeline import (
    EMITTING,
    ROW,
    ROW_COLUMNS,
    WHOLE_RING,
    LayoutKind,
    Pipeline,
    place_rows,
    row_buckets,
    write_inputs,
)
from antiphon.backends.torch.state import Run
from antiphon.errors import BackendError, ConfigError, DeviceLostError, StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from tests.backends.torch.recorded import Recorder
from tests.support.make_checkpoint import make_checkpoint

GREEDY = SamplingParameters(text_temperature=0, audio_temperature=0)
FRAMES = 60


def checkpoint_of(folder: Path, kind: str) -> Checkpoint:
    return load_checkpoint(str(make_checkpoint(folder, kind=kind, dtype="float32")))


@pytest.fixture(scope="session")
def duplex(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return checkpoint_of(tmp_path_factory.mktemp("duplex"), "moshi")


@pytest.fixture(scope="session")
def stt(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return checkpoint_of(tmp_path_factory.mktemp("stt"), "stt")


def voice(seed: int, frames: int) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 0.1, (frames, 1920)).astype(np.float32)


def made(checkpoint: Checkpoint, slots: int, **options: object) -> HostBackend:
    backend = make(checkpoint, slots=slots, device="cpu", **options)  # type: ignore[arg-type]
    assert isinstance(backend, HostBackend)
    return backend


def inside(backend: HostBackend) -> TorchRows:
    assert isinstance(backend.executor, TorchRows)
    return backend.executor


def greedy(checkpoint: Checkpoint, slots: int) -> HostBackend:
    backend = made(checkpoint, slots)
    for row in range(slots):
        backend.set_parameters(row, GREEDY)
    return backend


def run_alone(backend: HostBackend, row: int, pcm: FloatArray) -> list[StepOutputs]:
    """One session on one row."""
    rows = np.array([row], np.int32)
    return [
        backend.step(StepInputs(rows, np.array([index == 0]), frame[None])) for index, frame in enumerate(pcm)
    ]


def upstream_of(checkpoint: Checkpoint) -> tuple[MimiModel, LMGen]:
    mimi = loaders.get_mimi(
        checkpoint.file("mimi"),
        dict(checkpoint.spec.mimi.config),
        num_codebooks=checkpoint.spec.mimi.codebooks,
    )
    assert checkpoint.spec.lm is not None
    lm = loaders.get_moshi_lm(checkpoint.file("lm"), dict(checkpoint.spec.lm.config), dtype=torch.float32)
    return mimi, LMGen(lm, use_sampling=False)


def test_a_duplex_session_equals_upstreams_server_loop(duplex: Checkpoint) -> None:
    pcm = voice(1, FRAMES)
    replies = run_alone(greedy(duplex, 5), 3, pcm)
    mimi, generation = upstream_of(duplex)
    with no_compile(), mimi.streaming(1), generation.streaming(1):
        for index, (frame, reply) in enumerate(zip(pcm, replies, strict=True)):
            codes = mimi.encode(torch.from_numpy(frame).view(1, 1, -1))
            if index == 0:
                mimi.reset_streaming()
            tokens = generation.step(codes)
            assert reply.emitted[0] == (tokens is not None)
            if tokens is None:
                continue
            assert reply.text_tokens is not None
            assert reply.pcm is not None
            assert int(reply.text_tokens[0]) == int(tokens[0, 0, 0])
            want = mimi.decode(tokens[:, 1:])[0, 0].numpy()
            assert np.abs(reply.pcm[0] - want).max() <= 1e-4 * np.abs(want).max()


def test_an_stt_session_equals_upstreams_loop(stt: Checkpoint) -> None:
    pcm = voice(2, FRAMES)
    replies = run_alone(greedy(stt, 2), 1, pcm)
    mimi, generation = upstream_of(stt)
    with no_compile(), mimi.streaming(1), generation.streaming(1):
        for frame, reply in zip(pcm, replies, strict=True):
            out = generation.step_with_extra_heads(mimi.encode(torch.from_numpy(frame).view(1, 1, -1)))
            assert out is not None
            tokens, heads = out
            assert reply.pcm is None
            assert reply.text_tokens is not None
            assert reply.vad is not None
            assert int(reply.text_tokens[0]) == int(tokens[0, 0, 0])
            want = torch.stack([head[0, 0, 0] for head in heads]).numpy()
            assert np.abs(reply.vad[0] - want).max() <= 1e-5


def test_the_same_seed_says_the_same_on_any_row_and_another_seed_does_not(duplex: Checkpoint) -> None:
    backend, pcm = made(duplex, 4), voice(3, 12)

    def session(row: int, seed: int) -> list[int]:
        backend.set_parameters(row, SamplingParameters(text_seed=seed, audio_seed=seed))
        replies = run_alone(backend, row, pcm)
        return [int(reply.text_tokens[0]) for reply in replies if reply.text_tokens is not None]

    assert session(0, 7) == session(3, 7) == session(1, 7)
    assert session(0, 7) != session(0, 8)


def test_memory_is_counted_and_frames_inside_the_delay_say_nothing(duplex: Checkpoint) -> None:
    backend = greedy(duplex, 2)
    info = backend.info
    assert info.memory["weights"] > 4 * info.spec.parameters * 0.9
    assert info.memory["state_per_row"] * 2 == backend.state_bytes()
    reply = run_alone(backend, 0, voice(0, 1))[0]
    assert reply.consumed[0]
    assert not reply.emitted[0]
    assert reply.text_tokens is not None
    assert reply.text_tokens[0] == NO_TOKEN


def test_a_failing_stage_names_its_rows_and_leaves_the_others(
    duplex: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = greedy(duplex, 2)
    pcm, both = voice(5, 1), np.array([1, 0], np.int32)
    backend.step(StepInputs(both, np.array([True, True]), np.repeat(pcm, 2, axis=0)))
    kept = backend.snapshot(1)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Pipeline, "run_lm", fail)
    with pytest.raises(
        StepError, match=r"a step over rows \[0\] failed: RuntimeError: no such kernel"
    ) as caught:
        backend.step(StepInputs(np.array([0], np.int32), np.array([False]), pcm))
    assert caught.value.rows == (0,)
    for name, tensor in backend.snapshot(1).tensors.items():
        assert np.array_equal(tensor, kept.tensors[name])


def test_memory_that_stays_out_costs_the_device(duplex: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, tick = greedy(duplex, 1), StepInputs(np.array([0], np.int32), np.array([True]), voice(5, 1))

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    def failing_step() -> type[Exception]:
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "run_lm", fail)
            with pytest.raises(BackendError) as caught:
                backend.step(tick)
        return caught.type

    assert failing_step() is StepError
    backend.step(tick)
    assert [failing_step() for _ in range(3)] == [StepError, StepError, DeviceLostError]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "abacus"}, "no device is called 'abacus'"),
        ({"dtype": "float8"}, "no dtype is called 'float8'; there are: float32, bfloat16"),
        ({"attention": "flash"}, "attention is 'flash'; it can be auto, torch, triton"),
        ({"kv": "int3"}, "kv is 'int3'; it can be compute, int8, int8-int4 or int4"),
        ({"weights": "int4"}, "weights is 'int4'; it can be compute or int8"),
        ({"activations": "int4"}, "activations is 'int4'; it can be compute or int8"),
        ({"slots": 0}, "at least 1 slot, not 0"),
        ({"threads": 0}, "threads is 0; a model needs at least 1"),
        ({"threads": -2}, "threads is -2; a model needs at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_said(duplex: Checkpoint, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(duplex, **{"slots": 1, "device": "cpu", **options})


def test_kernels_are_not_promised_on_a_cpu(duplex: Checkpoint) -> None:
    with pytest.raises(UnsupportedError, match="attention 'triton' needs a CUDA device, not cpu"):
        make(duplex, slots=1, device="cpu", attention="triton")


def test_a_snapshot_of_another_model_is_refused(duplex: Checkpoint, stt: Checkpoint) -> None:
    with pytest.raises(UnsupportedError, match=r"of another model: decoder.* and nothing in this model"):
        made(stt, 1).restore(0, made(duplex, 1).snapshot(0))


def test_int8_weights_and_keys_are_smaller_and_are_said(duplex: Checkpoint) -> None:
    full, small = made(duplex, 2), made(duplex, 2, weights="int8", kv="int8")
    assert full.info.quantization == "none"
    assert small.info.quantization == "weights-int8+activations-int8+kv-int8"
    assert small.info.memory["weights"] < full.info.memory["weights"]
    assert small.state_bytes() < full.state_bytes()
    assert run_alone(small, 0, voice(6, 4))[3].emitted[0]
    smaller, least = (made(duplex, 2, kv=kv) for kv in ("int8-int4", "int4"))
    assert (smaller.info.quantization, least.info.quantization) == ("kv-int8-int4", "kv-int4")
    assert small.state_bytes() > smaller.state_bytes() > least.state_bytes()


def test_bfloat16_weights_attend_in_float32_on_a_cpu(stt: Checkpoint) -> None:
    full, half = made(stt, 1), made(stt, 1, dtype="bfloat16")
    assert half.info.dtype == "bfloat16"
    assert half.snapshot(0).tensors["lm.0.k"].dtype == torch.float32
    got, want = (run_alone(backend, 0, voice(8, 3))[2].vad for backend in (half, full))
    assert got is not None
    assert want is not None
    assert 0 < np.abs(got - want).max() < 0.05


def test_a_resized_backend_equals_one_that_was_made_so(duplex: Checkpoint) -> None:
    resized, other = greedy(duplex, 1), greedy(duplex, 3)
    run_alone(resized, 0, voice(9, 3))
    codec, model = inside(resized).pipeline.mimi, inside(resized).pipeline.generator
    rows = weakref.ref(inside(resized).pipeline)
    resized.resize(3)
    assert isinstance(resized, Resizable)
    assert rows() is None, "the former rows are still in memory"
    assert (inside(resized).pipeline.mimi, inside(resized).pipeline.generator) == (codec, model)
    assert resized.info == other.info
    assert resized.state_bytes() == other.state_bytes()
    for row in range(3):
        resized.set_parameters(row, GREEDY)
    pcm = voice(10, 6)
    for ours, theirs in zip(run_alone(resized, 2, pcm), run_alone(other, 2, pcm), strict=True):
        assert ours.text_tokens is not None
        assert theirs.text_tokens is not None
        assert np.array_equal(ours.text_tokens, theirs.text_tokens)
    with pytest.raises(ConfigError, match="at least 1 slot, not 0"):
        resized.resize(0)
    assert run_alone(resized, 0, voice(9, 1))[0].consumed[0]


def test_a_closed_backend_keeps_nothing_in_memory(duplex: Checkpoint) -> None:
    backend = greedy(duplex, 1)
    pipeline = inside(backend).pipeline
    kept = [weakref.ref(part) for part in (pipeline, pipeline.mimi, pipeline.generator)]
    del pipeline
    backend.close()
    assert [part() for part in kept] == [None, None, None]


def test_buckets() -> None:
    assert row_buckets(1) == (1,)
    assert row_buckets(8) == (1, 2, 4, 8)
    assert row_buckets(13) == (1, 2, 4, 8, 13)
    assert row_buckets(150) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 150)


def test_warm_up_reports_its_progress_and_leaves_fresh_rows(duplex: Checkpoint) -> None:
    backend, seen = greedy(duplex, 3), []
    backend.warm_up(lambda done, total, what: seen.append((done, total, what)))
    shapes = [(done, 2, f"{rows} rows") for done, rows in enumerate((1, 3))]
    assert seen == [*shapes, (2, 2, "ready")]
    fresh = greedy(duplex, 3)
    for row in range(3):
        for name, tensor in backend.snapshot(row).tensors.items():
            assert np.array_equal(tensor, fresh.snapshot(row).tensors[name])


def test_a_layout_gives_each_row_a_place() -> None:
    rows, frames = np.array([6, 2, 3], np.int32), np.array([9, 70, 4])
    eager = place_rows(LayoutKind.EAGER, 9, rows, frames)
    assert (eager.rows.tolist(), eager.at.tolist(), eager.is_padded) == ([6, 2, 3], [0, 1, 2], False)
    assert eager.runs == (Run(0, 6, 1, 10), Run(1, 2, 2, 71))
    apart = place_rows(LayoutKind.EAGER, 9, rows, frames, is_fixed=True)
    assert apart.rows.tolist() == [-1, -1, 2, 3, -1, -1, 6, -1, -1]
    assert apart.runs == (Run(2, 2, 1, 71), Run(3, 3, 1, 5), Run(6, 6, 1, 10))
    padded = place_rows(LayoutKind.PADDED, 9, rows, frames)
    assert (padded.rows.tolist(), padded.runs, padded.filled) == ([6, 2, 3, -1], (), WHOLE_RING)
    fixed = place_rows(LayoutKind.PADDED, 9, rows, frames, is_fixed=True)
    assert (fixed.rows.tolist(), fixed.runs, fixed.filled) == (apart.rows.tolist(), (), WHOLE_RING)


def test_the_inputs_of_a_tick_leave_nothing_of_the_last_one() -> None:
    host = np.full((4, 5 + ROW_COLUMNS), np.nan, np.float32)
    pcm, frames = np.arange(15, dtype=np.float32).reshape(3, 5), np.zeros(3, np.int64)
    places = place_rows(LayoutKind.PADDED, 9, np.array([6, 2, 3], np.int32), frames)
    decoded = place_rows(LayoutKind.PADDED, 9, np.array([2], np.int32), frames[:1])
    write_inputs(host, places, pcm, decoded)
    np.testing.assert_array_equal(host[:, :5], [*pcm, np.zeros(5)])
    lists = host[:, 5:].view(np.int32)
    assert (lists[:, ROW].tolist(), lists[:, EMITTING].tolist()) == ([6, 2, 3, -1], [2, -1, -1, -1])
    write_inputs(host, places, None, None)
    assert host[:, 5:].view(np.int32)[:, EMITTING].tolist() == [6, 2, 3, -1]


def test_rows_keep_nothing_of_a_stage_that_their_pipeline_lacks(duplex: Checkpoint, stt: Checkpoint) -> None:
    names = {kind: set(made(one, 1).snapshot(0).tensors) for kind, one in (("duplex", duplex), ("stt", stt))}
    assert any(name.startswith("decoder") for name in names["duplex"])
    assert not any(name.startswith("decoder") for name in names["stt"])
    assert any(name.startswith("encoder") for name in names["stt"])


@pytest.mark.parametrize("kv", ["compute", "int8", "int4"])
def test_a_snapshot_holds_what_is_filled_and_survives_a_way_through_numpy(
    duplex: Checkpoint, kv: str
) -> None:
    backend, pcm = made(duplex, 3, kv=kv), voice(12, 30)
    run_alone(backend, 1, pcm[:5])
    executor, taken = inside(backend), backend.snapshot(1)
    silent = backend.info.spec.delay_frames
    assert taken.tensors["lm.0.k"].shape[1] == 5
    assert taken.tensors["encoder_transformer.0.k"].shape[1] == 2 * 4, "the first frame was forgotten"
    assert taken.tensors["decoder_transformer.0.v"].shape[1] == 2 * (5 - silent)
    own = {name: tensor for name, tensor in taken.tensors.items() if not name.startswith("host.")}
    arrays = executor.to_host(own)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    back = executor.from_host(arrays)
    assert all(torch.equal(tensor, own[name]) for name, tensor in back.items())
    run_alone(backend, 1, pcm)
    long = backend.snapshot(1)
    assert long.tensors["lm.0.k"].shape[1] == 24, "no more than the ring has"
    assert long.bytes > taken.bytes


def test_bfloat16_survives_a_way_through_numpy(duplex: Checkpoint) -> None:
    executor = inside(made(duplex, 1))
    specs = executor.pipeline.state.specs
    specs["lm.0.k"] = dataclasses.replace(specs["lm.0.k"], dtype=torch.bfloat16)
    values = torch.randn(specs["lm.0.k"].shape).to(torch.bfloat16)
    arrays = executor.to_host({"lm.0.k": values})
    assert arrays["lm.0.k"].dtype == np.uint16
    assert torch.equal(executor.from_host(arrays)["lm.0.k"], values)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("rows", [[2], [3, 1], [1, 2, 3]])
def test_a_tick_copies_no_ring(tmp_path: Path, rows: list[int], is_fixed: bool) -> None:
    """Every result of a tick over full rings is smaller than one row's keys of one layer."""
    folder = make_checkpoint(tmp_path, kind="moshi", dtype="float32", context=6000)
    executor = inside(made(load_checkpoint(str(folder)), 4))
    state, count = executor.pipeline.state, len(rows)
    state.tensors["lm.position"].fill_(6000)
    assert isinstance(executor, TorchFrames)
    no, yes = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    pcm, frames = np.repeat(voice(13, 1), count, axis=0), np.full(count, 6000)
    with Recorder() as recorder:
        executor.run(Work(np.array(rows, np.int32), frames, no, no, yes, pcm, is_fixed))
    made_anew = [one for one in recorder.kernels if not one.is_in_place]
    largest = max(made_anew, key=lambda one: max((t.numel() for t in one.results), default=0))
    ring = state.tensors["lm.0.k"][0].numel()
    assert max(tensor.numel() for tensor in largest.results) < ring, largest.name
