"""Rotary position embedding (Su et al. 2021), in float32, pairs interleaved or in halves."""

from __future__ import annotations

import math

import mlx.core as mx


def rotation(positions: mx.array, head_dim: int, max_period: float) -> tuple[mx.array, mx.array]:
    """Cosine and sine ``[n, T, 1, D / 2]`` float32 for int ``positions [n, T]``."""
    steps = mx.arange(head_dim // 2, dtype=mx.float32)
    frequencies = mx.exp(steps * (-math.log(max_period) * 2 / head_dim))
    angles = frequencies * positions.astype(mx.float32)[:, :, None, None]
    return mx.cos(angles), mx.sin(angles)


def rotate(x: mx.array, cos: mx.array, sin: mx.array, *, interleaved: bool) -> mx.array:
    """Rotate ``[n, T, H, D]`` by position."""
    wide = x.astype(mx.float32)
    if interleaved:
        even, odd = wide[..., 0::2], wide[..., 1::2]
    else:
        even, odd = mx.split(wide, 2, axis=-1)
    turned = [even * cos - odd * sin, even * sin + odd * cos]
    if interleaved:
        return mx.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)
    return mx.concatenate(turned, axis=-1).astype(x.dtype)
