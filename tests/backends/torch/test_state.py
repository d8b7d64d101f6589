"""State as named tensors: the parts that a tick resets, and those that it keeps."""

from __future__ import annotations

import math

import pytest
import torch

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.attention import KVRing
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.state import Run, State

SPECS = (
    TensorSpec("encoder.past", (3, 2), torch.float32),
    TensorSpec("encoder_transformer.position", (), torch.int64),
    TensorSpec("lm.tokens", (4,), torch.int64, fill=-2),
    TensorSpec("lm.started", (), torch.bool),
    TensorSpec("lm.0.k", (2, 5, 4), torch.float32, is_kept=True),
)


def lived() -> State:
    """Four rows that hold something everywhere, NaN where a tensor can."""
    state = State(SPECS, 4)
    for tensor in state.tensors.values():
        tensor.fill_(math.nan if tensor.is_floating_point() else 1)
    return state


def is_fresh(state: State, name: str, row: int) -> bool:
    fill = torch.full(state.specs[name].shape, state.specs[name].fill, dtype=state.specs[name].dtype)
    return torch.equal(state.tensors[name][row], fill)


@pytest.mark.parametrize("prefix", ["", "encoder"])
def test_renewed_rows_are_fresh_but_for_what_is_kept(prefix: str) -> None:
    state = lived()
    state.reset_rows(torch.tensor([True, False, True, False]), prefix)
    for name, spec in state.specs.items():
        for row in range(4):
            is_chosen = row in (0, 2) and not spec.is_kept and name.startswith(prefix)
            assert is_fresh(state, name, row) == is_chosen, (name, row)


def test_reset_rows_are_fresh_altogether() -> None:
    state = lived()
    state.reset([1, 3])
    for name in state.specs:
        assert [is_fresh(state, name, row) for row in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("form", [KVForm.INT8, KVForm.INT4])
@pytest.mark.parametrize("positions", [0, 1, 63, 64, 65, 99, 100, 130, 400])
def test_a_snapshot_of_values_in_pages_holds_this_session_alone(positions: int, form: KVForm) -> None:
    """What an earlier session left in the same page stays behind; the row goes on bit by bit."""
    ring = KVRing("ring", 2, 100, 16, torch.float32, "position", form)
    specs = [TensorSpec("position", (), torch.int64), *ring.specs()]
    state, other = State(specs, 2), State(specs, 1)
    width = form.width("v", 16)
    assert state.tensors["ring.v"].shape == (2, 2, 2, width, 64)
    for tensor in (state.tensors["ring.k"], state.tensors["ring.v"]):
        tensor.fill_(77)
    torch.manual_seed(0)
    step = state.step([1])
    for position in range(positions):
        k, v = torch.randn(2, 1, 2, 1, 16)
        ring.write(step, torch.tensor([[position % 100]]), k, v)
    state.tensors["position"][1] = positions
    taken = state.snapshot(1)
    filled = min(positions, 100)
    assert taken["ring.v"].shape == (2, -(-filled // 64), width, 64)
    slots = taken["ring.v"].transpose(-1, -2).flatten(1, 2)
    assert positions >= 100 or (slots[:, filled:] == 0).all()
    assert torch.equal(state.snapshot(1)["ring.v"], taken["ring.v"])
    other.check(taken)
    other.restore(0, taken)
    for want, got in zip(
        ring.read(state.step([1]), Run(0, 1, 1), filled),
        ring.read(other.step([0]), Run(0, 0, 1), filled),
        strict=True,
    ):
        assert torch.equal(want, got)
