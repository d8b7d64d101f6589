"""Voice modifications, made without Praat, for the tests of the models and not for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray

WINDOW: Final = 1024
HOP: Final = 256
ENVELOPE_BINS: Final = 24
"""Bins over which the spectrum is smoothed: harmonics are removed, formants remain."""
WARP_RATIOS: Final = (0.85, 1.18)
FLUTTER_HZ: Final = 5.0
FLUTTER_SECONDS: Final = 0.0008


def warped(pcm: FloatArray, _rate: int) -> FloatArray:
    """Return ``pcm [samples]`` with its formants shifted up or down, by its length; pitch and time are
    unchanged."""
    ratio = WARP_RATIOS[pcm.size % 2]
    window = np.hanning(WINDOW + 1)[:-1]
    padded = np.pad(pcm, (WINDOW, WINDOW + HOP))
    bent, weight = np.zeros(padded.size), np.full(padded.size, 1e-6)
    bins = np.arange(WINDOW // 2 + 1)
    smooth = np.hanning(ENVELOPE_BINS + 2)[1:-1]
    smooth /= smooth.sum()
    for start in range(0, padded.size - WINDOW, HOP):
        spectrum = np.fft.rfft(padded[start : start + WINDOW] * window)
        envelope = np.convolve(np.abs(spectrum), smooth, "same") + 1e-6
        moved = np.interp(bins / ratio, bins, envelope)
        bent[start : start + WINDOW] += np.fft.irfft(spectrum * (moved / envelope)) * window
        weight[start : start + WINDOW] += window**2
    sound: FloatArray = (bent / weight)[WINDOW : WINDOW + pcm.size].astype(np.float32)
    return sound


def fluttered(pcm: FloatArray, rate: int) -> FloatArray:
    """Return ``pcm [samples]`` as from an old tape: pitch and pace vary five times a second, by 2.5 %."""
    at = np.arange(pcm.size) / rate
    swing = FLUTTER_SECONDS * rate * np.sin(2 * np.pi * FLUTTER_HZ * at)
    return np.interp(np.arange(pcm.size) + swing, np.arange(pcm.size), pcm).astype(np.float32)


BENDINGS: Final[Mapping[str, Callable[[FloatArray, int], FloatArray]]] = MappingProxyType(
    {"warp": warped, "flutter": fluttered}
)
"""The modifications, by the names of lab.train.held_out."""
