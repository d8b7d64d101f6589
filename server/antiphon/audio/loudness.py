"""Measures the loudness of a recording and scales it to another loudness: ITU-R BS.1770-4, mono."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError

BLOCK_S = 0.4
HOP_S = 0.1
ABSOLUTE_GATE_LUFS = -70.0
RELATIVE_GATE_LU = -10.0

_RESPONSE_S = 1.0
"""Seconds of padding for the weighting filter, after which its 38 Hz high-pass has decayed below float64."""


def loudness_lufs(pcm: FloatArray, sample_rate: int) -> float:
    """The integrated loudness of mono ``pcm [N]``; -inf if no block is above the gate.

    Raises:
        AudioError: shorter than one block of 0.4 s.
    """
    block, hop = round(BLOCK_S * sample_rate), round(HOP_S * sample_rate)
    if len(pcm) < block:
        raise AudioError(f"{len(pcm)} samples are too short for a loudness: {block} are needed")
    weighted = _weight(pcm.astype(np.float64), sample_rate)
    windows = np.lib.stride_tricks.sliding_window_view(weighted, block)[::hop]
    power = np.mean(np.square(windows), axis=1)
    power = power[power > _power(ABSOLUTE_GATE_LUFS)]
    if power.size == 0:
        return -math.inf
    gate = _power(_lufs(float(power.mean())) + RELATIVE_GATE_LU)
    return _lufs(float(power[power > gate].mean()))


def normalise(pcm: FloatArray, sample_rate: int, lufs: float) -> FloatArray:
    """Scale ``pcm [N]`` to a loudness of ``lufs``.

    Raises:
        AudioError: too short, or silent.
    """
    now_lufs = loudness_lufs(pcm, sample_rate)
    if now_lufs == -math.inf:
        raise AudioError(f"{len(pcm) / sample_rate:.2f} s of silence cannot be made as loud as {lufs:g} LUFS")
    return (pcm * 10 ** ((lufs - now_lufs) / 20)).astype(np.float32)


def _lufs(power: float) -> float:
    return -0.691 + 10 * math.log10(power)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs + 0.691) / 10))


def _weight(pcm: NDArray[np.float64], sample_rate: int) -> NDArray[np.float64]:
    """The standard's K weighting, in the frequency domain: a shelf for the head, then a high-pass.

    Both are the biquads of R. Bristow-Johnson's cookbook with corners at 1500 Hz and 38 Hz, as in pyloudnorm:
    within 0.05 dB of the standard's table, at any rate.
    """
    size = len(pcm) + round(_RESPONSE_S * sample_rate)
    z = np.exp(-2j * np.pi * np.fft.rfftfreq(size))
    response = _shelf(z, 2 * math.pi * 1500.0 / sample_rate) * _high_pass(z, 2 * math.pi * 38.0 / sample_rate)
    return np.fft.irfft(np.fft.rfft(pcm, size) * response, size)[: len(pcm)]


def _shelf(z: NDArray[np.complex128], w: float) -> NDArray[np.complex128]:
    """A shelf filter: 4 dB more above the corner ``w`` (radians a sample), Q of 1 / sqrt 2."""
    a, cos = 10 ** (4.0 / 40), math.cos(w)
    slope = 2 * math.sqrt(a) * math.sin(w) / math.sqrt(2)
    up = a * (
        (a + 1)
        + (a - 1) * cos
        + slope
        - 2 * ((a - 1) + (a + 1) * cos) * z
        + ((a + 1) + (a - 1) * cos - slope) * z**2
    )
    down = (
        (a + 1)
        - (a - 1) * cos
        + slope
        + 2 * ((a - 1) - (a + 1) * cos) * z
        + ((a + 1) - (a - 1) * cos - slope) * z**2
    )
    return up / down


def _high_pass(z: NDArray[np.complex128], w: float) -> NDArray[np.complex128]:
    """A high-pass filter with the corner ``w`` (radians a sample), Q of 1 / 2."""
    cos, alpha = math.cos(w), math.sin(w)
    return ((1 + cos) / 2) * (1 - z) ** 2 / ((1 + alpha) - 2 * cos * z + (1 - alpha) * z**2)
