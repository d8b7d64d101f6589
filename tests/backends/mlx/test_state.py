"""State is updated in place, belongs to one row, and neither grows nor leaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from antiphon.backends.base import Backend, StepInputs
from antiphon.backends.host import HostBackend
from antiphon.backends.mlx.executor import MlxFrames
from antiphon.backends.mlx.loading import make
from antiphon.backends.mlx.state import Packing, State, Step
from antiphon.backends.mlx.transformer import KVRing, kv_group_size
from antiphon.backends.snapshots import TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.catalog import load_checkpoint
from tests.backends.contract import GREEDY, Driver, voice
from tests.support.make_checkpoint import make_checkpoint

RING = KVRing("ring", heads=8, capacity=4096, head_dim=64, dtype=mx.float32, position="position")
RING_BYTES = 4 * 2 * 8 * 4096 * 64


def fresh_state(rows: int = 4) -> State:
    return State([*RING.specs(), TensorSpec("position", (), mx.int32)], rows)


def write(state: State, rows: list[int], slot: int, *, is_fixed: bool = False) -> None:
    """One tick's use of a ring: write a position, then look at all there are."""
    packing = Packing(np.array(rows, np.int32), state.rows, is_fixed=is_fixed)
    step = Step(state, packing, np.full(packing.size, slot + 1))
    values = mx.full((packing.size, 1, 8, 64), float(slot + 1))
    RING.write(step, mx.full((packing.size, 1), slot, dtype=mx.int32), values, values)
    mask = mx.ones((packing.size, 1, 1, slot + 1), dtype=mx.bool_)
    seen = RING.attend(step, mx.ones((packing.size, 8, 1, 64)), mask, [slot + 1] * len(packing.runs))
    step.write("position", step.read("position") + 1)
    step.commit()
    mx.eval(seen, state.tensors)
    assert seen.shape[0] == packing.size


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("rows", [[0, 1], [3, 0, 2], [1]])
def test_a_ring_is_written_and_read_in_place(rows: list[int], is_fixed: bool) -> None:
    """Four rows of 16.8 MB a step apart: nothing the size of a row is ever allocated."""
    state = fresh_state()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for slot in range(5):
        state.reset([1])
        write(state, rows, slot, is_fixed=is_fixed)
    assert mx.get_peak_memory() - before < RING_BYTES // 8
    assert mx.get_active_memory() - before < RING_BYTES // 8


def test_a_snapshot_is_as_long_as_its_row_has_lived_and_does_not_hold_the_state() -> None:
    state = fresh_state()
    for slot in range(3):
        write(state, [0, 1], slot)
    write(state, [0], 3)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    taken = state.snapshot(1)
    write(state, [0, 1], 3)
    assert mx.get_peak_memory() - before < RING_BYTES // 8
    assert taken["ring.k"].shape == (8, 3, 64)
    assert np.array(taken["ring.k"][0, :, 0]).tolist() == [1.0, 2.0, 3.0]
    state.check(taken)
    state.restore(3, state.from_host(state.to_host(taken)))
    assert np.array(state.tensors["ring.k"][:, 0, :4, 0]).tolist() == [
        [1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0, 3.0, 4.0],
        [0.0] * 4,
        [1.0, 2.0, 3.0, 0.0],
    ]
    assert np.array(state.tensors["position"]).tolist() == [5, 4, 0, 3]


@pytest.mark.parametrize("is_fixed", [False, True])
def test_rows_that_are_not_named_keep_what_they_hold(is_fixed: bool) -> None:
    state = fresh_state()
    write(state, [0, 1, 2, 3], 0, is_fixed=is_fixed)
    write(state, [2, 0], 1, is_fixed=is_fixed)
    held = np.array(state.tensors["ring.v"][:, 0, :2, 0]).tolist()
    assert held == [[1.0, 2.0], [1.0, 0.0], [1.0, 2.0], [1.0, 0.0]]
    assert np.array(state.tensors["position"]).tolist() == [2, 1, 2, 1]
    state.reset([0, 3])
    assert np.array(state.tensors["ring.v"][:, 0, 0, 0]).tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_packing_knows_its_places() -> None:
    named = np.array([5, 1, 2], np.int32)
    packed = Packing(named, 8, is_fixed=False, size=4)
    assert packed.rows.tolist() == [1, 2, 5, 1]
    assert packed.runs == [(0, 2, 1), (2, 3, 5)]
    assert packed.gather(mx.array(packed.spread(named))).tolist() == [5, 1, 2]
    fixed = Packing(named, 8, is_fixed=True)
    assert fixed.rows.tolist() == list(range(8))
    assert fixed.runs == [(1, 2, 1), (2, 3, 2), (5, 6, 5)]
    assert fixed.spread(named).tolist() == [0, 1, 2, 0, 0, 5, 0, 0]
    assert fixed.gather(mx.array(fixed.spread(named))).tolist() == [5, 1, 2]


def test_narrow_numbers_go_through_numpy_bit_by_bit() -> None:
    state = State([TensorSpec("x", (3,), mx.bfloat16)], 1)
    taken = {"x": mx.array([0.1, -3.0, 1e30], dtype=mx.bfloat16)}
    host = state.to_host(taken)
    assert host["x"].dtype == np.uint16
    with pytest.raises(UnsupportedError, match=r"x is uint16 \[3\] in it, and bfloat16 \[3\] in this"):
        state.check({"x": mx.array(host["x"])})
    back = state.from_host(host)["x"]
    assert back.dtype == mx.bfloat16
    assert mx.array_equal(back, taken["x"])


@pytest.mark.parametrize(
    ("capacity", "words"),
    [(2, r"ring\.k is float32 \[8, 2, 64\] in it, and float32 \[8, 3, 64\]"), (5000, r"ring\.k is float32")],
)
def test_a_snapshot_of_another_shape_is_refused(capacity: int, words: str) -> None:
    other = State([*replace(RING, capacity=capacity).specs(), TensorSpec("position", (), mx.int32)], 1)
    other.tensors["position"] += 3 if capacity == 2 else 5000
    with pytest.raises(UnsupportedError, match=words):
        fresh_state(1).check(other.snapshot(0))


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_an_8_bit_ring_attends_like_a_whole_one(kv_heads: int) -> None:
    """Queries of four heads, each over its own keys or two over the same."""
    random, outputs = np.random.default_rng(0), []
    shape = (2, 20, kv_heads, 64)
    k, v = (mx.array(random.normal(0, 1, shape).astype(np.float32)) for _ in range(2))
    q = mx.array(random.normal(0, 1, (2, 4, 2, 64)).astype(np.float32))
    mask = mx.array(random.random((2, 1, 2, 20)) < 0.6) | (mx.arange(20) == 0)
    for int8 in (False, True):
        ring = KVRing("ring", kv_heads, 24, 64, mx.float32, "position", int8)
        state = State(ring.specs(), 2)
        step = Step(state, Packing(np.arange(2, dtype=np.int32), 2, is_fixed=False), np.full(2, 20))
        ring.write(step, mx.broadcast_to(mx.arange(20), (2, 20)), k, v)
        outputs.append(np.array(ring.attend(step, q, mask, [20])))
        assert state.bytes() == 2 * 2 * kv_heads * 24 * (64 + 8 if int8 else 64 * 4)
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


def _ring_bytes(backend: Backend) -> int:
    assert isinstance(backend, HostBackend)
    assert isinstance(backend.executor, MlxFrames)
    tensors = backend.executor.state.tensors
    return sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith(("lm.0", "lm.1")))


def _say(backend: Backend, frames: int) -> list[int]:
    backend.set_parameters(0, GREEDY)
    return [reply.text_token for reply in Driver(backend).run(0, voice(3, frames, backend.info))]


def test_a_long_session_takes_no_more_memory(tmp_path: Path) -> None:
    """The quick form of ``python -m lab.bench.mlx_soak``, which takes ten thousand steps."""
    backend = make(
        load_checkpoint(str(make_checkpoint(tmp_path / "codec", kind="codec"))), slots=2, device="cpu"
    )
    frame, both = voice(1, 1, backend.info)[0], np.arange(2, dtype=np.int32)
    sizes = []
    for index in range(300):
        backend.step(StepInputs(both, np.full(2, index == 0), np.stack([frame, frame])))
        sizes.append(mx.get_active_memory())
    assert max(sizes[200:]) < max(sizes[:100]) + 2**16  # numbers on their way, not arrays that stay
    assert backend.state_bytes() == 2 * backend.info.memory["state_per_row"]
