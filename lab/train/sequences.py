"""Streams of tokens as upstream's language models see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

ZERO: Final = -1
"""Upstream's token for "no input"."""


def delay(delays: Sequence[int], codes: Tensor, initial: Tensor) -> Tensor:
    """``codes [B, K, T]`` with stream k shifted right by ``delays[k]``, filled with ``initial [B, K, 1]``."""
    rows = [
        torch.cat([initial[:, k].expand(-1, shift), codes[:, k, : codes.shape[2] - shift]], dim=1)
        for k, shift in enumerate(delays)
    ]
    return torch.stack(rows, dim=1)
