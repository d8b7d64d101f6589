"""Finds by loudness where each word of a recording ends, at the pause after it.

A recogniser gives only the start of a word. If the next word starts much later, the word has ended before.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray

BLOCK_S: Final = 0.02
"""Length of a block in seconds. The loudness of a block takes one byte, 180 KB an hour."""

PAUSE_BLOCKS: Final = 10
"""Blocks of the shortest pause after a word; gaps within a word, as in a stop consonant, are shorter."""

SHORTEST_BLOCKS: Final = 4
"""Number of blocks of the shortest word; sound before them may belong to the previous word."""

LONGEST_S: Final = 2.0
"""Longest word in seconds, for noise without a pause."""

DROP_DB: Final = 25
"""Decibels below the loudest part of the word that count as quiet."""

HEARD_DB: Final = 2 * DROP_DB
"""Decibels by which a word may be quieter than later sound, such as a slam or the next word, and still be
found.
"""

_FLOOR_DB: Final = 120
"""Level of the byte 0, in decibels below full scale."""


class WordEnds:
    """Finds the ends of the words of one recording in the loudness of its audio so far."""

    def __init__(self, sample_rate: int) -> None:
        """Begin a recording."""
        self._block = round(BLOCK_S * sample_rate)
        self._rest: FloatArray = np.zeros(0, np.float32)
        self._levels = bytearray()

    def feed(self, pcm: FloatArray) -> None:
        """Add audio, float32 ``[N]``."""
        pcm = np.concatenate((self._rest, pcm))
        whole = pcm.size // self._block * self._block
        self._rest = pcm[whole:].copy()
        power = np.square(pcm[:whole].reshape(-1, self._block), dtype=np.float64).mean(axis=1)
        level_db = 10 * np.log10(np.maximum(power, 10 ** (-_FLOOR_DB / 10)))
        self._levels += np.clip(level_db + _FLOOR_DB, 0, 255).astype(np.uint8).tobytes()

    def end_of(self, start_s: float, next_s: float) -> float:
        """The end in seconds of the word that starts at ``start_s``, when the next word starts at
        ``next_s``.
        """
        latest_s = min(next_s, start_s + LONGEST_S)
        first, last = math.floor(start_s / BLOCK_S), math.ceil(latest_s / BLOCK_S)
        levels = np.frombuffer(bytes(self._levels[first:last]), np.uint8).astype(np.int16)
        heard = levels > max(0, levels.max(initial=0) - HEARD_DB)
        begins = max(SHORTEST_BLOCKS, int(heard.argmax()) + 1 if heard.any() else heard.size)
        for place in range(begins, levels.size - PAUSE_BLOCKS + 1):
            quiet = max(0, levels[:place].max() - DROP_DB)  # sound after a pause is no part of the word
            if (levels[place : place + PAUSE_BLOCKS] <= quiet).all():
                return round((first + place) * BLOCK_S, 3)
        return round(max(start_s, latest_s), 3)
