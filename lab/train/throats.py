"""Changes a recording to another speaker's throat with Praat.

It uses the package praat-parselmouth (GPL 3; no shipped code imports it).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np
import parselmouth
from numpy.typing import NDArray

PITCH_HZ: Final = (60.0, 400.0)
MOST_FALL: Final = 0.9
"""Largest fall of the pitch below its median: below zero, Praat refuses the sound or never returns."""


@dataclass(frozen=True, slots=True)
class Throat:
    """Another speaker's throat and pace, by which a recording is changed.

    Formants, the range of the pitch and the duration are multiplied; the pitch gets another median.
    """

    formant_ratio: float
    median_hz: float
    swing_ratio: float
    duration_ratio: float = 1.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Throat:
        """Draw a throat between a tall man's and a child's, and a pace; each value is independent."""
        return cls(
            rng.uniform(0.78, 1.26), 70 * 3.8 ** rng.random(), rng.uniform(0.3, 1.8), rng.uniform(0.75, 1.35)
        )

    def bent(self, pcm: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
        """Return ``pcm [samples]`` with this throat, by Praat's "Change gender" (PSOLA).

        The result is deterministic. Sound that Praat refuses, as too short or without a pitch, is unchanged,
        and so is sound for which it returns NaN.
        """
        # Without a seed one in 300 ends 60 ms earlier or later: Praat draws noise for unvoiced sound.
        parselmouth.praat.run("random_initializeWithSeedUnsafelyButPredictably (1)")
        sound = parselmouth.Sound(pcm.astype(np.float64), rate)
        try:
            swing = min(self.swing_ratio, _most_swing(sound))
            change = (*PITCH_HZ, self.formant_ratio, self.median_hz, swing, self.duration_ratio)
            changed = parselmouth.praat.call(sound, "Change gender", *change)
        except parselmouth.PraatError:
            return pcm
        bent: NDArray[np.float32] = changed.values[0].astype(np.float32)
        return bent if np.isfinite(bent).all() else pcm


def _most_swing(sound: parselmouth.Sound) -> float:
    lowest, highest = PITCH_HZ
    pitch = parselmouth.praat.call(sound, "To Pitch", 0.8 / lowest, lowest, highest)
    hz = pitch.selected_array["frequency"]
    voiced = hz[hz > 0]
    fall = 1 - float(voiced.min() / np.median(voiced)) if voiced.size else 0.0
    return MOST_FALL / fall if fall > 0 else np.inf
