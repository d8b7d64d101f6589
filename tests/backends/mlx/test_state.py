"""State that is written where it lies, belongs to rows, and neither grows nor leaks."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from antiphon.backends.base import StepInputs
from antiphon.backends.mlx.backend import MlxBackend
from antiphon.backends.mlx.factory import make
from antiphon.backends.mlx.kv import KVRing, kv_group_size
from antiphon.backends.mlx.state import State, Step, TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.catalog import load_checkpoint
from tests.backends.contract import GREEDY, voice
from tools.make_checkpoint import make_checkpoint

RING = KVRing("ring", heads=8, capacity=4096, head_dim=64, dtype=mx.float32)
RING_BYTES = 4 * 2 * 8 * 4097 * 64


def write(state: State, rows: int, slot: int, mask: list[bool] | None = None) -> None:
    """One tick's use of a ring: write a position, then look at all there are."""
    step = Step(state.tensors, rows, None if mask is None else mx.array(mask))
    values = mx.full((rows, 1, 8, 64), float(slot + 1))
    RING.write(step, mx.full((rows, 1), slot, dtype=mx.int32), values, values)
    seen = RING.attend(step, mx.ones((rows, 8, 1, 64)), mx.ones((rows, 1, 1, slot + 1), dtype=mx.bool_))
    state.tensors.update(step.tensors)
    mx.eval(seen, state.tensors)


@pytest.mark.parametrize("mask", [None, [True, False]])
def test_a_ring_is_written_in_place(mask: list[bool] | None) -> None:
    """Four rows of 16.8 MB a step apart: nothing the size of a row is ever allocated."""
    state = State(RING.specs(), 4)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for slot in range(5):
        state.reset([1])
        write(state, 2, slot, mask)
    assert mx.get_peak_memory() - before < RING_BYTES // 8
    assert mx.get_active_memory() - before < RING_BYTES // 8


def test_a_snapshot_does_not_hold_the_state_it_was_taken_from() -> None:
    state = State(RING.specs(), 4)
    write(state, 4, 0)
    taken = state.snapshot(1)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    write(state, 4, 1)
    assert mx.get_peak_memory() - before < RING_BYTES // 8
    assert float(taken["ring.k"][0, 1, 0]) == 0.0
    state.restore(3, taken)
    assert np.array(state.tensors["ring.k"][:, 0, 1, 0]).tolist() == [2.0, 2.0, 2.0, 0.0]


def test_a_row_that_pauses_and_rows_beyond_keep_what_they_hold() -> None:
    state = State(RING.specs(), 4)
    write(state, 4, 0)
    write(state, 3, 0, [True, False, True])
    write(state, 2, 1)
    held = np.array(state.tensors["ring.v"][:, 0, :2, 0]).tolist()
    assert held == [[1.0, 2.0], [1.0, 2.0], [1.0, 0.0], [1.0, 0.0]]
    state.reset([0, 3])
    assert np.array(state.tensors["ring.v"][:, 0, 0, 0]).tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_snapshot_of_another_shape_is_refused() -> None:
    small = State([TensorSpec("ring.k", (1, 2), mx.float32)], 1)
    with pytest.raises(UnsupportedError, match=r"has ring\.k of shape \(1, 2\), this model \(8, 4097, 64\)"):
        State(RING.specs(), 1).restore(0, small.snapshot(0))


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_an_8_bit_ring_attends_like_a_whole_one(kv_heads: int) -> None:
    """Queries of four heads, each over its own keys or two over the same."""
    random, outputs = np.random.default_rng(0), []
    shape = (2, 20, kv_heads, 64)
    k, v = (mx.array(random.normal(0, 1, shape).astype(np.float32)) for _ in range(2))
    q = mx.array(random.normal(0, 1, (2, 4, 2, 64)).astype(np.float32))
    mask = mx.array(random.random((2, 1, 2, 20)) < 0.6) | (mx.arange(20) == 0)
    for int8 in (False, True):
        ring = KVRing("ring", kv_heads, 24, 64, mx.float32, int8)
        state = State(ring.specs(), 2)
        step = Step(state.tensors, 2)
        ring.write(step, mx.broadcast_to(mx.arange(20), (2, 20)), k, v)
        outputs.append(np.array(ring.attend(step, q, mask)))
        assert state.bytes() == 2 * 2 * kv_heads * 25 * (64 + 8 if int8 else 64 * 4)
    error = np.abs(outputs[1] - outputs[0]).max()
    assert 0 < error < 0.02


def test_heads_that_no_group_divides_are_refused() -> None:
    assert [kv_group_size(width) for width in (32, 64, 96, 128, 256)] == [32, 64, 32, 128, 128]
    with pytest.raises(UnsupportedError, match="a multiple of 32, not 12"):
        kv_group_size(12)


def test_an_8_bit_cache_is_a_third_of_the_state_and_speaks_nearly_alike(wide: Path) -> None:
    checkpoint = load_checkpoint(str(wide))
    backends = [make(checkpoint, slots=1, device="cpu", kv=kv) for kv in ("compute", "int8")]
    assert [backend.info.quantization for backend in backends] == ["none", "kv-int8"]
    sizes = [_ring_bytes(backend) for backend in backends]
    assert sizes[1] / sizes[0] == (1 + 8 / 32) / 4
    said = [_say(backend, 40) for backend in backends]
    assert sum(one == other for one, other in zip(*said, strict=True)) > 30


def _ring_bytes(backend: MlxBackend) -> int:
    tensors = backend._pipeline.state.tensors
    return sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith(("lm.0", "lm.1")))


def _say(backend: MlxBackend, frames: int) -> list[int]:
    backend.set_parameters(0, GREEDY)
    yes, said = np.array([True]), []
    for index, frame in enumerate(voice(3, frames, backend.info)):
        reply = backend.step(StepInputs(yes, yes & (index == 0), frame[None]))
        assert reply.text_tokens is not None
        said.append(int(reply.text_tokens[0]))
    return said


def test_a_long_session_takes_no_more_memory(tmp_path: Path) -> None:
    """The quick form of ``python -m bench.mlx_soak``, which takes ten thousand steps."""
    backend = make(
        load_checkpoint(str(make_checkpoint(tmp_path / "codec", kind="codec"))), slots=2, device="cpu"
    )
    frame, both = voice(1, 1, backend.info)[0], np.ones(2, dtype=np.bool_)
    sizes = []
    for index in range(300):
        backend.step(StepInputs(both, both & (index == 0), np.stack([frame, frame])))
        sizes.append(mx.get_active_memory())
    assert max(sizes[200:]) < max(sizes[:100]) + 2**16  # numbers on their way, not arrays that stay
    assert backend.state_bytes() == 2 * backend.info.memory["state_per_row"]
