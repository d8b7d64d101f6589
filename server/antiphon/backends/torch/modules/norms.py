"""Normalisation layers under the names the published configurations use, and the scale of a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.errors import UnsupportedError


class RMSNorm(nn.Module):
    """``x * alpha / sqrt(mean(x^2) + eps)``; computed in float32 when ``in_float32``.

    Zhang and Sennrich 2019. ``alpha`` is ``[1, 1, dim]`` as published.
    """

    def __init__(self, dim: int, *, eps: float, in_float32: bool, dtype: torch.dtype | None = None) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.eps, self.in_float32 = eps, in_float32
        self.alpha = nn.Parameter(torch.empty(1, 1, dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, T, dim]`` to the same."""
        wide = x.float() if self.in_float32 else x
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * (self.alpha.to(wide.dtype) * scale)).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalisation with weight and bias; computed in float32 when ``in_float32``."""

    def __init__(self, dim: int, *, eps: float, in_float32: bool, dtype: torch.dtype | None = None) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.eps, self.in_float32 = eps, in_float32
        self.weight = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, T, dim]`` to the same."""
        wide = x.float() if self.in_float32 else x
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        return functional.layer_norm(wide, weight.shape, weight, bias, self.eps).to(x.dtype)


class LayerScale(nn.Module):
    """Multiply each channel by a learnt number (Touvron et al. 2021)."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.scale = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[n, T, dim]`` to the same."""
        return x * self.scale


def make_scale(dim: int, dtype: torch.dtype, *, wanted: bool) -> nn.Module:
    """A layer scale, or nothing where a configuration has none."""
    return LayerScale(dim, dtype) if wanted else nn.Identity()


def make_norm(kind: str, dim: int, dtype: torch.dtype | None = None) -> nn.Module:
    """The layer a configuration's ``norm`` names.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if kind == "layer_norm":
        return LayerNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
    if kind == "layer_norm_f32":
        return LayerNorm(dim, eps=1e-8, in_float32=True, dtype=dtype)
    if kind == "rms_norm":
        return RMSNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
    if kind == "rms_norm_f32":
        return RMSNorm(dim, eps=1e-8, in_float32=True, dtype=dtype)
    names = "layer_norm, layer_norm_f32, rms_norm, rms_norm_f32"
    raise UnsupportedError(f"norm is {kind!r}; it can be one of {names}")
