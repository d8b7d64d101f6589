"""INT4 linears: two weights a byte, one scale for each block of a row, inputs left in float.

On a CPU the product is torch's own for INT4, whose fast form takes bfloat16: inputs are rounded to it on
the way in and results on the way out, each by 0.2 % beside the 8 % of the weights
(docs/adr/0019-quantisation-recipes.md). A shape or a CPU without that form expands the weight in every call;
a GPU refuses the form (``weights/forms.py``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.linear import Linear
from antiphon.errors import CheckpointFormatError

PACKED_ROWS = 16
"""Output channels the packed layout takes at a time; their number has to be a multiple of it."""

PACKED_BLOCKS = (32, 64, 128, 256)
"""Weights to a scale that torch's product for CPUs takes."""

_ZERO = 8
"""What a nibble of zero stands for: nibbles are unsigned, integers -8 to 7."""


def pack_nibbles(integers: Tensor) -> Tensor:
    """Integers -8 to 7 ``[out, in]`` to uint8 ``[out, in / 2]``, the first of each pair in the low bits."""
    nibbles = (integers + _ZERO).to(torch.uint8)
    return nibbles[:, ::2] | nibbles[:, 1::2] << 4


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Uint8 ``[out, in / 2]`` to int8 ``[out, in]``: what :func:`pack_nibbles` was given."""
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    return pairs.to(torch.int8) - _ZERO


def int4_values(packed: Tensor, scale: Tensor) -> Tensor:
    """Float32 ``[out, in]`` of a packed weight and its scales ``[out, blocks]``.

    Raises:
        CheckpointFormatError: the row does not consist of that many blocks.
    """
    integers = unpack_nibbles(packed)
    (rows, width), blocks = integers.shape, scale.shape[-1]
    if width % blocks or scale.shape[0] != rows:
        raise CheckpointFormatError(
            f"scales {tuple(scale.shape)} do not fit an INT4 weight [{rows}, {width}]"
        )
    return (integers.view(rows, blocks, -1).float() * scale.float()[..., None]).view(rows, width)


class Int4Linear(nn.Module):
    """``weight`` uint8 ``[out, in / 2]``, ``scale`` float32 ``[out, blocks]``; outputs keep the dtype.

    ``prescale`` float32 ``[in]``, where there is one, multiplies the input first (AWQ).
    """

    bias: Tensor | None
    prescale: Tensor | None

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor | None = None, prescale: Tensor | None = None
    ) -> None:
        """Take over a quantised weight."""
        super().__init__()
        self.out_features, self.in_features = weight.shape[0], 2 * weight.shape[1]
        self.block = self.in_features // scale.shape[1]
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale.float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.prescale = None if prescale is None else nn.Parameter(prescale.float(), requires_grad=False)
        self.packed: Tensor | None = None

    @classmethod
    def like(cls, linear: Linear, parts: dict[str, Tensor]) -> Int4Linear:
        """An empty layer in a linear's place, on the meta device, for tensors that come from a file."""
        empty = {name: torch.empty_like(part, device="meta") for name, part in parts.items()}
        return cls(empty["weight"], empty["scale"], linear.bias, empty.get("prescale"))

    def pack(self) -> None:
        """Lay the weight out for torch's INT4 product, where the CPU and the shape are made for it."""
        shaped = self.out_features % PACKED_ROWS == 0 and self.block in PACKED_BLOCKS
        if self.weight.device.type != "cpu" or self.packed is not None or not shaped:
            return
        nibbles = unpack_nibbles(self.weight.data).to(torch.int32) + _ZERO
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles, 1)
        scale = self.scale.t().bfloat16()
        self.scale = nn.Parameter(torch.stack([scale, torch.zeros_like(scale)], -1), requires_grad=False)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        flat = x.reshape(-1, self.in_features)
        if self.prescale is not None:
            flat = flat * self.prescale
        if self.packed is not None:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu
            out: Tensor = product(flat.bfloat16(), self.packed, self.block, self.scale).to(x.dtype)
        else:
            out = functional.linear(flat.to(x.dtype), int4_values(self.weight, self.scale).to(x.dtype))
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)
