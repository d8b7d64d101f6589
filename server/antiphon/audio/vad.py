"""Detects the start and the end of a caller's speech by energy only, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from antiphon.audio.pcm import FloatArray

BLOCK_MS = 10
"""Length of a block in ms; the level of a block is its root mean square."""

ONSET_BLOCKS = 5
"""Consecutive loud blocks that start speech: a click is shorter."""

PAUSE_MS = 80
"""Shortest pause in ms that ends speech; gaps within a word are shorter."""


@dataclass(frozen=True, slots=True)
class DetectorRules:
    """The rules by which speech is detected. ``prefix_ms`` is the time between the reported start and the
    first loud block; speech ends after ``silence_ms`` without a block above ``level_dbfs``.
    """

    level_dbfs: float = -45.0
    prefix_ms: int = 300
    silence_ms: int = 500


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech began at ``ms`` of the audio."""

    ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Speech ended at ``ms`` of the audio, the end of the silence after it."""

    ms: int


SpeechEvent: TypeAlias = SpeechStarted | SpeechStopped


class Loudness:
    """Finds the loud blocks of ``BLOCK_MS`` in a caller's audio, in any portions."""

    def __init__(self, sample_rate: int) -> None:
        """Begin without audio."""
        self._block = sample_rate * BLOCK_MS // 1000
        self._rest: FloatArray = np.zeros(0, np.float32)

    def feed(self, pcm: FloatArray, level_dbfs: float) -> list[bool]:
        """Add audio, float32 ``[N]``; returns for each complete block whether it is above the level."""
        pcm = np.concatenate((self._rest, pcm)) if self._rest.size else pcm
        whole = pcm.size // self._block * self._block
        self._rest = pcm[whole:].copy()
        if not whole:
            return []
        square = np.square(pcm[:whole].reshape(-1, self._block), dtype=np.float64).mean(axis=1)
        loud: list[bool] = (square > 10 ** (level_dbfs / 10)).tolist()
        return loud


class SpeechDetector:
    """The speech detector of one caller. ``rules`` may be replaced at any time."""

    def __init__(self, sample_rate: int, rules: DetectorRules | None = None) -> None:
        """Begin in silence."""
        self.rules = rules or DetectorRules()
        self.is_speech = False
        self._loudness = Loudness(sample_rate)
        self._blocks = 0
        self._loud = self._quiet = 0  # consecutive blocks

    def feed(self, pcm: FloatArray) -> list[SpeechEvent]:
        """Add audio, float32 ``[N]``; returns the starts and ends that it completes."""
        loud = self._loudness.feed(pcm, self.rules.level_dbfs)
        return [event for is_loud in loud if (event := self._next(is_loud=is_loud)) is not None]

    @property
    def now_ms(self) -> int:
        """Milliseconds of audio so far."""
        return self._blocks * BLOCK_MS

    def end(self) -> SpeechStopped | None:
        """End the current speech before the rules do, if the last ``PAUSE_MS`` are quiet; otherwise return
        None.
        """
        if not self.is_speech or self._quiet * BLOCK_MS < PAUSE_MS:
            return None
        self.reset()
        return SpeechStopped(self.now_ms)

    def reset(self) -> None:
        """Discard the current speech; the position in the audio stays."""
        self.is_speech = False
        self._loud = self._quiet = 0

    def _next(self, *, is_loud: bool) -> SpeechEvent | None:
        self._blocks += 1
        self._loud = self._loud + 1 if is_loud else 0
        self._quiet = 0 if is_loud else self._quiet + 1
        if not self.is_speech and self._loud >= ONSET_BLOCKS:
            self.is_speech = True
            onset_ms = (self._blocks - self._loud) * BLOCK_MS
            return SpeechStarted(max(0, onset_ms - self.rules.prefix_ms))
        if self.is_speech and self._quiet * BLOCK_MS >= self.rules.silence_ms:
            self.is_speech = False
            return SpeechStopped(self.now_ms)
        return None
