"""FP8 linears: weights as float8_e4m3 with a scale for each output channel, a format of files alone.

When a model is loaded they become weights of the compute dtype: a shorter file is all that is gained. On the
cards that have FP8 products these are no faster than INT8's, and less exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.linear import Linear


def fp8_values(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 ``[out, in]`` of an FP8 weight and its scales ``[out]`` or ``[out, 1]``."""
    return weight.float() * scale.float().reshape(-1, 1)


class Fp8Linear(nn.Module):
    """``weight`` float8_e4m3 ``[out, in]``, ``scale`` float32 ``[out]``, until they are expanded."""

    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Take over a quantised weight; ``dtype`` is what it becomes."""
        super().__init__()
        self.dtype = dtype
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale.reshape(-1).float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def like(cls, linear: Linear, parts: dict[str, Tensor]) -> Fp8Linear:
        """An empty layer in a linear's place, on the meta device, for tensors that come from a file."""
        empty = {name: torch.empty_like(part, device="meta") for name, part in parts.items()}
        return cls(empty["weight"], empty["scale"], linear.bias, linear.weight.dtype)

    def expanded(self) -> Linear:
        """The same layer with a weight of the compute dtype."""
        return Linear.around(fp8_values(self.weight.data, self.scale.data).to(self.dtype), self.bias)


def expand_fp8(module: nn.Module) -> None:
    """Give every FP8 linear a weight of the compute dtype."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Fp8Linear):
                setattr(parent, name, child.expanded())
