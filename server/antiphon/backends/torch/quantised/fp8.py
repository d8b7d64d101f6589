"""FP8 linears: weights as float8_e4m3 with a scale for each output channel.

A card with FP8 units multiplies them with inputs that are rounded to FP8 row by row, as they come. Anywhere
else the weight becomes one of the compute dtype when it is loaded, so that FP8 is a format of the file alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.linear import Linear

LARGEST = torch.finfo(torch.float8_e4m3fn).max
"""448."""

_MULTIPLE = 16
"""What both sides of a weight have to be multiples of for the product of FP8."""

_CAPABILITY = (9, 0)
"""The first cards whose product takes a scale for each row and column (Hopper)."""


def fp8_values(weight: Tensor, scale: Tensor) -> Tensor:
    """Float32 ``[out, in]`` of an FP8 weight and its scales ``[out]`` or ``[out, 1]``."""
    return weight.float() * scale.float().reshape(-1, 1)


def has_fp8_units(device: torch.device) -> bool:
    """Whether this device multiplies FP8 with a scale per row."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


class Fp8Linear(nn.Module):
    """``weight`` float8_e4m3 ``[out, in]``, ``scale`` float32 ``[out]``; outputs have the input's dtype.

    Not measured: the product has been run on no GPU yet.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Take over a quantised weight; ``dtype`` is what it becomes where FP8 cannot be multiplied."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = dtype
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale.reshape(-1).float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def like(cls, linear: Linear, parts: dict[str, Tensor]) -> Fp8Linear:
        """An empty layer in a linear's place, on the meta device, for tensors that come from a file."""
        empty = {name: torch.empty_like(part, device="meta") for name, part in parts.items()}
        return cls(empty["weight"], empty["scale"], linear.bias, linear.weight.dtype)

    @property
    def is_multiplied(self) -> bool:
        """Whether the device the weight is on multiplies it as it is."""
        fits = self.out_features % _MULTIPLE == 0 and self.in_features % _MULTIPLE == 0
        return fits and has_fp8_units(self.weight.device)

    def expanded(self) -> Linear:
        """The same layer with a weight of the compute dtype."""
        return Linear.around(fp8_values(self.weight.data, self.scale.data).to(self.dtype), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``; the product is rounded to bfloat16, as cards give it."""
        flat = x.reshape(-1, self.in_features).float()
        row_scale = flat.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / LARGEST
        rows = (flat / row_scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(
            rows, self.weight.t(), scale_a=row_scale, scale_b=self.scale[None], out_dtype=torch.bfloat16
        )
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)


def expand_fp8(module: nn.Module) -> None:
    """Give every FP8 linear that its device cannot multiply a weight of the compute dtype."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Fp8Linear) and not child.is_multiplied:
                setattr(parent, name, child.expanded())
