"""The clock of a caller's audio: silence replaces overdue audio, and the same length of late audio is
dropped.

A full-duplex model needs continuous input. For protocols that promise real time, zeros replace audio that the
network delays. The delayed audio is dropped when it arrives: otherwise it would delay all later audio for the
rest of the call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.audio.pcm import FloatArray

OVERDUE_S = 0.16
"""Delay after which audio is overdue: above ordinary jitter and messages of 100 ms, below a pause in speech.
"""

SETTLE_S = 0.02
"""Time for which audio is collected after a gap, so that a burst is not taken for renewed speech."""

SLACK_S = 0.08
"""Maximum time that audio may be early. Beyond it, audio counts as late audio that zeros have replaced.

A longer message may be early by the part of its length above ``OVERDUE_S``, because its first sample cannot
arrive sooner.
"""

MAX_FILL_S = 1.0
"""Maximum seconds of zeros inserted at once. A longer gap between two calls of ``look`` is a pause of the
server itself.
"""


@dataclass(frozen=True, slots=True)
class ClockCounts:
    """Samples of silence that replaced overdue audio, and samples of audio that arrived too late."""

    filled: int = 0
    dropped: int = 0


class InputClock:
    """Decides which audio and which zeros the server passes to the model for a caller. All times are in
    seconds of one clock.

    Call :meth:`arrive` with new audio, and :meth:`look` at the time :attr:`due_s`; both return float32
    ``[N]`` to be passed on now. Late audio is dropped if it would put the stream more than ``SLACK_S``, or a
    long message's length, ahead of the clock.
    """

    def __init__(self, sample_rate: int, frame_samples: int, now_s: float) -> None:
        """Start the time at ``now_s``."""
        self._rate = sample_rate
        self._frame = frame_samples
        self._start_s = now_s
        self._pushed = 0
        self._owed = 0  # zeros that no late audio has offset
        self._late: list[FloatArray] = []
        self._late_since_s: float | None = None
        self._is_after_gap = False
        self._filled = self._dropped = 0

    @property
    def counts(self) -> ClockCounts:
        """Counts of inserted and dropped audio so far."""
        return ClockCounts(self._filled, self._dropped)

    @property
    def due_s(self) -> float:
        """The time of the next :meth:`look`, unless audio arrives before."""
        if self._late_since_s is not None:
            return self._late_since_s + SETTLE_S
        end = (self._pushed // self._frame + 1) * self._frame
        return self._start_s + end / self._rate + OVERDUE_S

    def arrive(self, pcm: FloatArray, now_s: float) -> FloatArray:
        """Add audio that arrived. After a gap it is kept for ``SETTLE_S``, and :meth:`look` returns it."""
        if self._is_after_gap:
            if self._late_since_s is None:
                self._late_since_s = now_s
            self._late.append(pcm)
            return self._settle(now_s)
        return self._push(self._timely(pcm, pcm.size, now_s))

    def look(self, now_s: float) -> FloatArray:
        """The audio that is due: late audio that has settled, and zeros for overdue audio."""
        settled = self._settle(now_s)
        zeros = self._fill(now_s)
        return settled if not zeros.size else np.concatenate((settled, zeros))

    def _settle(self, now_s: float) -> FloatArray:
        if self._late_since_s is None or now_s < self._late_since_s + SETTLE_S:
            return np.zeros(0, np.float32)
        late, longest = np.concatenate(self._late), max(pcm.size for pcm in self._late)
        self._late = []
        self._late_since_s = None
        self._is_after_gap = False
        return self._push(self._timely(late, longest, now_s))

    def _timely(self, pcm: FloatArray, longest: int, now_s: float) -> FloatArray:
        """``pcm`` without its oldest part, as far as it is early now and zeros have replaced it before.

        ``longest`` is the number of samples in its longest message.
        """
        slack_s = SLACK_S + max(0.0, longest / self._rate - OVERDUE_S)
        early = self._pushed + pcm.size - round((now_s - self._start_s + slack_s) * self._rate)
        drop = max(0, min(early, self._owed, pcm.size))
        self._owed -= drop
        self._dropped += drop
        return pcm[drop:]

    def _fill(self, now_s: float) -> FloatArray:
        """Zeros up to the end of each frame that is overdue."""
        if self._late_since_s is not None:
            return np.zeros(0, np.float32)
        overdue = int((now_s - self._start_s - OVERDUE_S) * self._rate) // self._frame * self._frame
        count = overdue - self._pushed
        if count <= 0:
            return np.zeros(0, np.float32)
        most = round(MAX_FILL_S * self._rate) // self._frame * self._frame
        if count > most:
            self._start_s += (count - most) / self._rate
            count = most
        self._owed += count
        self._filled += count
        self._is_after_gap = True
        return self._push(np.zeros(count, np.float32))

    def _push(self, pcm: FloatArray) -> FloatArray:
        self._pushed += pcm.size
        return pcm
