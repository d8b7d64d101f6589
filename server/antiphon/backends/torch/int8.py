"""INT8 linears: weights with a scale per output channel, activations quantised per row as they come.

A scale per row keeps rows apart: a loud neighbour changes nobody's rounding. The product runs on
``torch._int_mm``, int8 x int8 to int32, and is scaled back in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.kv import quantize_tokens
from antiphon.backends.torch.linear import Linear
from antiphon.errors import CheckpointFormatError

CUDA_ROWS = 32
"""Fewest rows given to ``torch._int_mm`` on CUDA, which refuses 16 and less."""

RECIPE = ("transformer.layers.", "depformer.layers.")
"""What becomes INT8: the layers' projections. Everything else is small and near the output, where an
error is heard: embeddings, the depformer's inputs, and every head (text, codebooks, pauses)."""


class Int8Linear(nn.Module):
    """``weight`` int8 ``[out, in]``, ``scale`` float32 ``[out]``; inputs and outputs keep their dtype."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        """Take over a quantised weight."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale.reshape(-1).float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def quantize(cls, linear: Linear) -> Int8Linear:
        """Round a linear's weight, symmetrically, to its rows' largest values."""
        return cls(*quantize_tokens(linear.weight), linear.bias)

    @classmethod
    def from_torchao(cls, weight: Tensor, bias: Tensor | None = None) -> Int8Linear:
        """Take over torchao's ``Int8Tensor``: ``qdata`` int8 ``[out, in]``, ``scale [out, 1]``.

        Raises:
            CheckpointFormatError: another tensor, or scales that are not one per output channel.
        """
        qdata, scale = getattr(weight, "qdata", None), getattr(weight, "scale", None)
        if not isinstance(qdata, Tensor) or not isinstance(scale, Tensor) or qdata.dtype != torch.int8:
            raise CheckpointFormatError(f"expected an Int8Tensor of torchao, not {type(weight).__name__}")
        if scale.numel() != qdata.shape[0]:
            raise CheckpointFormatError(
                f"{scale.numel()} scales for {qdata.shape[0]} output channels; only one for each can be run"
            )
        return cls(qdata, scale, bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        rows, row_scale = quantize_tokens(x.reshape(-1, self.in_features))
        count = rows.shape[0]
        if rows.is_cuda and count < CUDA_ROWS:
            rows = functional.pad(rows, (0, 0, 0, CUDA_ROWS - count))
        product = torch._int_mm(rows, self.weight.t())[:count]
        out = product.float() * row_scale[:, None] * self.scale
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def follows_recipe(name: str) -> bool:
    """Whether the recipe makes the linear of this name INT8."""
    return name.startswith(RECIPE)


def quantize_linears(module: nn.Module, chosen: Callable[[str], bool] = follows_recipe) -> int:
    """Replace the linears whose names are chosen by INT8 ones. Returns how many there were."""
    names = [name for name, child in module.named_modules() if isinstance(child, Linear) and chosen(name)]
    for name in names:
        parent_name, _, own_name = name.rpartition(".")
        linear = module.get_submodule(name)
        assert isinstance(linear, Linear)
        setattr(module.get_submodule(parent_name), own_name, Int8Linear.quantize(linear))
    return len(names)
