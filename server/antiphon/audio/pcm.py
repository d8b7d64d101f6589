"""Converts mono samples as bytes, signed 16-bit or float32, little endian, to and from float32 arrays."""

from __future__ import annotations

import numpy as np

from antiphon.arrays import FloatArray as FloatArray
from antiphon.errors import AudioError

_S16_SCALE = np.float32(32768)


def limited(pcm: FloatArray) -> FloatArray:
    """``pcm`` clipped to [-1, 1]; the same array if no sample exceeds that.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    if not pcm.size:
        return pcm
    low, high = float(np.minimum.reduce(pcm)), float(np.maximum.reduce(pcm))
    if low >= -1.0 and high <= 1.0:  # both false for NaN, which min and max propagate
        return pcm
    finite = np.isfinite(pcm)
    if not finite.all():
        first = int(np.argmin(finite))
        raise AudioError(f"sample {first} of {pcm.size} is {pcm[first]}, it must be finite")
    clipped: FloatArray = np.clip(pcm, -1.0, 1.0)
    return clipped


def float_from_s16le(data: bytes) -> FloatArray:
    """Convert signed 16-bit samples to float32 ``[N]`` in [-1, 1).

    Raises:
        AudioError: an odd number of bytes.
    """
    _check_whole(data, 2, "s16le")
    pcm: FloatArray = np.multiply(np.frombuffer(data, "<i2"), 1 / _S16_SCALE, dtype=np.float32)
    return pcm


def float_from_f32le(data: bytes) -> FloatArray:
    """Read float32 samples, clipped to [-1, 1]; the result is read-only float32 ``[N]``, without a copy where
    possible.

    Raises:
        AudioError: not a multiple of 4 bytes, or a sample that is NaN or infinite.
    """
    _check_whole(data, 4, "f32le")
    return limited(np.frombuffer(data, "<f4").astype(np.float32, copy=False))


def s16le_from_float(pcm: FloatArray) -> bytes:
    """Convert float32 ``[N]`` to signed 16-bit, clipped and rounded; the exact inverse of the conversion from
    s16le.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    scaled = limited(pcm) * _S16_SCALE
    np.rint(scaled, out=scaled)
    np.minimum(scaled, 32767, out=scaled)
    return scaled.astype("<i2").tobytes()


def f32le_from_float(pcm: FloatArray) -> bytes:
    """Convert float32 ``[N]`` to its bytes, clipped to [-1, 1].

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    return limited(pcm).astype("<f4", copy=False).tobytes()


def _check_whole(data: bytes, sample_bytes: int, what: str) -> None:
    if len(data) % sample_bytes:
        raise AudioError(f"{len(data)} bytes are no whole number of {what} samples of {sample_bytes} bytes")
