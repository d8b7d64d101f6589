"""Silence that a row hears on a copy of itself, so that a transcript can be ended without its caller's help.

Text lags behind audio. When a caller stops sending, what it said last has been heard but not yet written; a
few frames of silence bring it out. The caller may go on later, though, so the silence must not stay: the
row's state is kept before the first such frame, and put back before the next frame of the caller's audio.
"""

from __future__ import annotations

import threading
from enum import Enum

import numpy as np

from antiphon.backends.base import FloatArray, RowSnapshot


class RowAction(Enum):
    """What a row hears in a tick, and what becomes of its state before that."""

    NONE = "none"  # the caller's audio
    RESTORE = "restore"  # the state that was kept is put back, then the caller's audio
    SAVE = "save"  # the state is kept, then silence
    PAD = "pad"  # more silence
    RESTORE_KEEP = "restore and keep"  # the state that was kept is put back, and kept still, then silence

    @property
    def is_padding(self) -> bool:
        """Whether the row hears flush padding."""
        return self in (RowAction.SAVE, RowAction.PAD, RowAction.RESTORE_KEEP)

    @property
    def puts_back(self) -> bool:
        """Whether the state that was kept comes back first."""
        return self in (RowAction.RESTORE, RowAction.RESTORE_KEEP)


class FlushPadding:
    """Where one session stands with its silence. Its lock is held for moments: both sides use it.

    ``asked`` frames of it were asked for in all, of which ``pending`` are still to be heard.

    ``kept`` is the row's state without the silence. The engine thread sets it and :meth:`end` drops it, at
    any time. Without one (none could be had) the silence stays in the row, as if the caller had sent it.
    ``run`` changes with every interruption, which the caller counts; a reply to silence of another run is
    void.
    """

    def __init__(self, frame_samples: int) -> None:
        """No padding is requested."""
        self.kept: RowSnapshot | None = None
        self.asked = self.pending = self.run = 0
        self.received_s = 0.0
        self._lock = threading.Lock()
        self._tail: FloatArray = np.zeros(frame_samples, np.float32)
        self._has_tail = False
        self._is_away = False
        self._is_stale = False

    @property
    def is_busy(self) -> bool:
        """Whether silence is to be heard, or was heard and is not undone yet."""
        return self.pending > 0 or self._is_away

    @property
    def done(self) -> int:
        """Frames of silence that were asked for and wait no more."""
        return self.asked - self.pending

    def listen(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Hear so many more frames; the first of a run ends what the caller began: its ``tail [n]``."""
        with self._lock:
            self.asked = upto
            if run < self.run:
                return
            self._see(run)
            if not self._is_away or self._is_stale:
                self._has_tail = True
                self._tail[:] = 0.0
                self._tail[: tail.size] = tail
            self.pending += frames
            self.received_s = now_s

    def see(self, run: int) -> None:
        """What the caller counts now: if it went on, what is still to be heard is not, what was is undone."""
        with self._lock:
            self._see(run)

    def _see(self, run: int) -> None:
        if run > self.run:
            self.run, self.pending = run, 0
            self._is_stale = self._is_away

    def end(self) -> None:
        """Hear nothing any more and keep nothing."""
        self.see(self.run + 1)
        self.kept = None

    def come_back(self) -> RowAction:
        """The next tick takes the caller's audio."""
        with self._lock:
            action = RowAction.RESTORE if self._is_away else RowAction.NONE
            self._is_away = self._is_stale = False
            return action

    def take_into(self, row: FloatArray) -> tuple[RowAction, int]:
        """The next tick takes a frame of silence, which is put into ``row [frame_samples]``; its run.

        An interruption since the tick was decided makes it silence of the run before: its reply is void.
        """
        with self._lock:
            run = self.run if self.pending else self.run - 1
            self.pending = max(0, self.pending - 1)
            row[:] = self._tail if self._has_tail else 0.0
            self._has_tail = False
            action = RowAction.PAD if self._is_away else RowAction.SAVE
            action = RowAction.RESTORE_KEEP if self._is_stale else action
            self._is_away, self._is_stale = True, False
            return action, run
