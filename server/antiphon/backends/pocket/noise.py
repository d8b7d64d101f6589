"""Normal noise that is a pure function of (seed, step): a row's own, independent of other rows."""

from __future__ import annotations

import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.models.philox import random_words

STREAM = 1
"""The noise of the model's voice: see docs/sampling.md."""


def normal(seed: int, step: int, width: int) -> FloatArray:
    """Standard normal noise, float32 ``[width]``: Box and Muller (1958), two words of Philox a pair."""
    count = width + width % 2
    words = random_words(
        np.array([seed], np.uint64),
        np.array([step], np.int64),
        STREAM,
        np.arange(count, dtype=np.int64)[None],
    )
    uniform = (words[0].reshape(2, -1) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    pairs: FloatArray = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).astype(np.float32)
    return pairs[:width]
