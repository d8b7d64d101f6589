"""Test signals."""

from __future__ import annotations

import numpy as np

from antiphon.audio.pcm import FloatArray

RATE = 24_000


def speech(seconds: float, seed: int = 0) -> FloatArray:
    """Something a speech codec takes for a voice: harmonics of a gliding pitch in syllables, with breath."""
    samples = round(seconds * RATE)
    time_s = np.arange(samples) / RATE
    pitch = 2 * np.pi * np.cumsum(130 + 30 * np.sin(2 * np.pi * 0.7 * time_s + seed)) / RATE
    voice = sum(np.sin(number * pitch) / number for number in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * time_s + seed), 0, None)
    breath = 0.02 * np.random.default_rng(seed).standard_normal(samples)
    return (0.2 * voice * syllables + breath).astype(np.float32)
