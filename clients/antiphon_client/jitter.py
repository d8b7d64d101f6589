"""A small playback buffer with a start level and a bounded delay; an empty one plays silence. No I/O.

Underrun policy: playback pauses, with silence, until ``start`` is buffered again; ``start`` grows by 20 ms
with each underrun, up to 240 ms. An underrun counts only if audio follows, so the end of a call is not an
underrun. Overrun policy: when more than ``start`` plus 120 ms waits, the oldest audio is dropped until
``start`` is left, so that a delay in the network does not remain.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from antiphon_client.record import Samples

START_MS = 80
STEP_MS = 20
LONGEST_START_MS = 240
SLACK_MS = 120


class JitterBuffer:
    """Buffers float32 samples at ``sample_rate``; they are added and removed in pieces of any size."""

    def __init__(self, sample_rate: int) -> None:
        """Start empty and silent."""
        self._per_ms = sample_rate // 1000
        self._start = START_MS * self._per_ms
        self._pieces: deque[Samples] = deque()
        self._is_playing = self._is_dry = False
        self.buffered = 0
        self.underruns = 0
        self.dropped = 0

    @property
    def start_ms(self) -> float:
        """Milliseconds to buffer before playback starts."""
        return self._start / self._per_ms

    def push(self, pcm: Samples) -> None:
        """Add ``pcm``, float32 ``[samples]``, dropping the oldest samples when too many wait."""
        if pcm.size == 0:
            return
        if self._is_dry:
            self._is_dry, self.underruns = False, self.underruns + 1
            self._start = min(self._start + STEP_MS * self._per_ms, LONGEST_START_MS * self._per_ms)
        self._pieces.append(pcm)
        self.buffered += pcm.size
        if self.buffered > self._start + SLACK_MS * self._per_ms:
            excess = self.buffered - self._start
            self._take(excess)
            self.dropped += excess

    def pull(self, samples: int) -> Samples:
        """The next ``samples`` to play, float32 ``[samples]``; silence while playback waits for audio."""
        out = np.zeros(samples, np.float32)
        if not self._is_playing and self.buffered < max(self._start, 1):
            return out
        self._is_playing = True
        played = self._take(min(samples, self.buffered))
        out[: played.size] = played
        if played.size < samples:
            self._is_playing, self._is_dry = False, True
        return out

    def clear(self) -> None:
        """Discard the buffered audio; the pause that follows is not an underrun."""
        self._pieces.clear()
        self.buffered = 0
        self._is_playing = self._is_dry = False

    def _take(self, samples: int) -> Samples:
        taken: list[Samples] = []
        missing = samples
        while missing > 0:
            piece = self._pieces.popleft()
            if piece.size > missing:
                self._pieces.appendleft(piece[missing:])
                piece = piece[:missing]
            taken.append(piece)
            missing -= piece.size
        self.buffered -= samples
        return np.concatenate(taken) if taken else np.zeros(0, np.float32)
