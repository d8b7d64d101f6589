"""Rotary position embedding (Su et al. 2021), in float32, pairs interleaved or in halves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of one forward pass: cosine and sine ``[n, 1, T, D / 2]`` float32."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply(self, x: Tensor) -> Tensor:
        """Rotate ``[n, H, T, D]`` by position."""
        if self.interleaved:
            even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
        else:
            even, odd = x.float().chunk(2, dim=-1)
        turned = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        if self.interleaved:
            return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
        return torch.cat(turned, dim=-1).to(x.dtype)


def rotation(positions: Tensor, head_dim: int, max_period: float, *, interleaved: bool) -> Rotation:
    """The rotation for int ``positions [n, T]``."""
    steps = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(steps * (-math.log(max_period) * 2 / head_dim))
    angles = frequencies * positions.float()[:, None, :, None]
    return Rotation(torch.cos(angles), torch.sin(angles), interleaved)
