"""Streams of tokens in the form of upstream's language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

ZERO: Final = -1
"""Upstream's token for "no input"."""


def delay(delays: Sequence[int], codes: Tensor, initial: Tensor) -> Tensor:
    """Return ``codes [B, K, T]`` with stream k shifted right by ``delays[k]``, filled with
    ``initial [B, K, 1]``."""
    rows = [
        torch.cat([initial[:, k].expand(-1, shift), codes[:, k, : codes.shape[2] - shift]], dim=1)
        for k, shift in enumerate(delays)
    ]
    return torch.stack(rows, dim=1)


def misheard(inputs: Tensor, near: Tensor, rng: np.random.Generator, share: float) -> Tensor:
    """Return ``inputs [B, K, S]`` with up to ``share`` of a row's codes replaced by codes of
    ``near [8, card, N]``."""
    inputs = inputs.clone()
    codes = inputs[:, 1:]
    rows, levels, steps = codes.shape
    shares = rng.uniform(0, share, (rows, 1, 1))
    chosen = (
        torch.from_numpy(rng.random((rows, levels, steps)) < shares) & (codes >= 0) & (codes < near.shape[1])
    )
    which = torch.from_numpy(rng.integers(0, near.shape[2], (rows, levels, steps)))
    level = torch.arange(levels)[None, :, None].expand_as(codes)
    inputs[:, 1:] = torch.where(chosen, near[level, codes.clamp(0, near.shape[1] - 1), which], codes)
    return inputs
