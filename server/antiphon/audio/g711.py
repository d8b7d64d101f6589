"""Converts G.711, mu-law and A-law samples of 8 bits at 8 kHz, to and from float32.

After ITU-T Recommendation G.711 (11/88), with its values of 14 bits (mu-law) and 13 (A-law) scaled to 16.
Both directions are look-ups: 256 values to decode, 65,536 codes to encode.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.pcm import FloatArray, limited

SAMPLE_RATE = 8_000

_Codes: TypeAlias = NDArray[np.uint8]
_Levels: TypeAlias = NDArray[np.int64]

_MU_BIAS = 132
"""The bias of mu-law in units of 14 bits, which makes each segment begin at a power of two."""
_MU_CLIP = 32_635
_SCALE = np.float32(32768)


class Law(StrEnum):
    """The two curves: mu-law (North America and Japan) and A-law (other countries)."""

    MU = "mu"
    A = "a"


def decode(data: bytes, law: Law) -> FloatArray:
    """Convert one byte a sample to float32 ``[N]`` in (-1, 1)."""
    return _values(law)[np.frombuffer(data, np.uint8)]


def encode(pcm: FloatArray, law: Law) -> bytes:
    """Convert float32 ``[N]``, clipped to [-1, 1], to one byte a sample.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    levels = np.minimum(np.rint(limited(pcm) * _SCALE), 32767).astype(np.int16)
    return bytes(_codes(law)[levels.view(np.uint16)])


@cache
def _values(law: Law) -> FloatArray:
    """The value of each of the 256 codes, float32 ``[256]``; read-only, since all callers share it."""
    codes = np.arange(256)
    levels = _mu_levels(codes) if law is Law.MU else _a_levels(codes)
    values = (levels / float(_SCALE)).astype(np.float32)
    values.flags.writeable = False
    return values


@cache
def _codes(law: Law) -> _Codes:
    """The code of each 16-bit level, indexed by its bits, uint8 ``[65536]``; read-only."""
    levels = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64)
    codes = (_mu_codes(levels) if law is Law.MU else _a_codes(levels)).astype(np.uint8)
    codes.flags.writeable = False
    return codes


def _mu_levels(codes: _Levels) -> _Levels:
    bits = ~codes & 0xFF
    segment, step = bits >> 4 & 7, bits & 15
    level = ((step << 3) + _MU_BIAS << segment) - _MU_BIAS
    return np.where(bits & 0x80, -level, level)


def _mu_codes(levels: _Levels) -> _Levels:
    sign = np.where(levels < 0, 0x80, 0)
    level = np.minimum(np.abs(levels), _MU_CLIP) + _MU_BIAS
    segment = _highest_bit(level) - 7
    codes: _Levels = ~(sign | segment << 4 | level >> segment + 3 & 15) & 0xFF
    return codes


def _a_levels(codes: _Levels) -> _Levels:
    bits = codes ^ 0x55
    segment, step = bits >> 4 & 7, bits & 15
    level = (step << 4) + 8 + np.where(segment > 0, 0x100, 0) << np.maximum(segment - 1, 0)
    return np.where(bits & 0x80, level, -level)


def _a_codes(levels: _Levels) -> _Levels:
    sign = np.where(levels < 0, 0, 0x80)
    # Negative levels are one lower: -1 to -16 share the first step, as 0 to 15 do.
    level = np.where(levels < 0, -1 - levels, levels)
    segment = np.maximum(_highest_bit(np.maximum(level, 1)) - 7, 0)
    step = level >> np.maximum(segment, 1) + 3 & 15
    codes: _Levels = (sign | segment << 4 | step) ^ 0x55
    return codes


def _highest_bit(values: _Levels) -> _Levels:
    """The position of the highest set bit, for values above 0."""
    return np.frexp(values)[1].astype(np.int64) - 1
