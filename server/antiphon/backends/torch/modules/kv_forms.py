"""The formats of keys and values in a ring: unchanged, or integers of 8 or 4 bits with one scale per token
and head.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import torch
from torch import Tensor

SCALE_BYTES: Final = 4
"""Bytes of the scale of one head's keys, or values, of one position: a float32."""

MOST: Final = {False: 127, True: 7}
"""The largest integer in a byte, and in half a byte."""


class KVForm(StrEnum):
    """The values of the option ``kv``: keys and values in the dtype of attention, or rounded. In a name of
    two parts the first is for keys, the second for values.
    """

    COMPUTE = "compute"
    INT8 = "int8"
    INT8_INT4 = "int8-int4"
    INT4 = "int4"

    @property
    def is_rounded(self) -> bool:
        """Whether keys and values are whole numbers with a separate scale for each token and head."""
        return self is not KVForm.COMPUTE

    def is_packed(self, part: str) -> bool:
        """Whether a byte holds two keys ("k") or values ("v")."""
        return self is KVForm.INT4 or (self is KVForm.INT8_INT4 and part == "v")

    def width(self, part: str, head_dim: int) -> int:
        """Number of elements that hold one head of one position."""
        return head_dim // 2 if self.is_packed(part) else head_dim

    def position_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes of one head of one position, keys and values; ``dtype`` is the dtype of attention."""
        if not self.is_rounded:
            return 2 * head_dim * dtype.itemsize
        return sum(self.width(part, head_dim) + SCALE_BYTES for part in ("k", "v"))


def quantize_tokens(values: Tensor, most: int = MOST[False]) -> tuple[Tensor, Tensor]:
    """Round ``[..., D]`` symmetrically over the last axis to int8 of at most ``most``, and scales."""
    wide = values.float()
    scale = wide.abs().amax(dim=-1).clamp_min(1e-12) / most
    return torch.round(wide / scale[..., None]).clamp(-most, most).to(torch.int8), scale


def pack_halves(values: Tensor) -> Tensor:
    """Pack int8 ``[..., D]`` from -8 to 7 into ``[..., D / 2]``: the first half of D in the low bits, the
    second half in the high bits.
    """
    low, high = values.chunk(2, dim=-1)
    return (low & 15) | (high << 4)


def unpack_halves(packed: Tensor) -> Tensor:
    """Reverse :func:`pack_halves`."""
    return torch.cat([(packed << 4) >> 4, packed >> 4], dim=-1)
