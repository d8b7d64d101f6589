"""State as named tensors: what a tick's reset renews, and what it leaves."""

from __future__ import annotations

import math

import pytest
import torch

from antiphon.backends.torch.state import State, TensorSpec

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
    state.renew(torch.tensor([True, False, True, False]), prefix)
    for name, spec in state.specs.items():
        for row in range(4):
            is_chosen = row in (0, 2) and not spec.is_kept and name.startswith(prefix)
            assert is_fresh(state, name, row) == is_chosen, (name, row)


def test_reset_rows_are_fresh_altogether() -> None:
    state = lived()
    state.reset([1, 3])
    for name in state.specs:
        assert [is_fresh(state, name, row) for row in range(4)] == [False, True, False, True]
