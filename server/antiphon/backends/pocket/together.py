"""The language model over one frame of several rows, a block of weights after the other.

A row alone reads all weights from memory for one vector. Here each block of a matrix is read once and
multiplied by every row's vector while a cache holds it. Each product is that of a row alone, so its numbers
are too, however many rows there are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_NUMBERS: Final = 1 << 17
"""Weights of a block: half a megabyte in float32, which the second cache of a core holds."""
BLOCK_ROWS: Final = 16
"""A block has a multiple of so many outputs, so that products take no other routine at its edges."""


class Together:
    """The package's transformer for several rows at once; its modules compute, and stay as they are."""

    def __init__(self, transformer: Any) -> None:
        """Take a loaded transformer of the package."""
        self._layers = [(layer, _without_ends(layer.self_attn)) for layer in transformer.layers]

    def think(
        self, inputs: Sequence[Tensor], states: Sequence[Mapping[str, Mapping[str, Tensor]]]
    ) -> list[Tensor]:
        """Each row's ``[1, 1, dim]`` through all layers, after what its state holds."""
        rows = list(inputs)
        for layer, attend in self._layers:
            projected = multiply(layer.self_attn.in_proj, [layer.norm1(x) for x in rows])
            attended = [attend(x, state) for x, state in zip(projected, states, strict=True)]
            updates = multiply(layer.self_attn.out_proj, attended)
            rows = [x + layer.layer_scale_1(update) for x, update in zip(rows, updates, strict=True)]
            wide = multiply(layer.linear1, [layer.norm2(x) for x in rows])
            updates = multiply(layer.linear2, [functional.gelu(x, approximate="tanh") for x in wide])
            rows = [x + layer.layer_scale_2(update) for x, update in zip(rows, updates, strict=True)]
        return rows


def multiply(linear: nn.Module, rows: Sequence[Tensor]) -> list[Tensor]:
    """``linear`` of each row; one of another kind than torch's own takes the rows as they come."""
    if type(linear) is not nn.Linear or linear.bias is not None or len(rows) == 1:
        return [linear(x) for x in rows]
    outputs = max(BLOCK_ROWS, BLOCK_NUMBERS // linear.in_features // BLOCK_ROWS * BLOCK_ROWS)
    blocks = linear.weight.split(outputs)
    parts = [[functional.linear(x, block) for x in rows] for block in blocks]
    return [torch.cat(found, dim=-1) for found in zip(*parts, strict=True)]


def _without_ends(attention: Any) -> Any:
    """The same attention from projected queries, keys and values to what is yet to be projected."""
    twin = copy.copy(attention)
    twin._modules = {**attention._modules, "in_proj": nn.Identity(), "out_proj": nn.Identity()}
    return twin
