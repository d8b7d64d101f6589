"""Whether deadlines are being missed: the fraction of late frames in the recent past, with hysteresis."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from antiphon.engine.config import EngineConfig

CELLS = 10
"""The window is counted in so many cells; the oldest cell is forgotten as a whole."""


@dataclass(frozen=True, slots=True)
class LateCount:
    """Frames of the window: all, and those that were late."""

    frames: int
    late: int

    @property
    def fraction(self) -> float:
        """Late frames among all, 0 when there are none."""
        return self.late / self.frames if self.frames else 0.0


class LatePressure:
    """Counts frames on time and late; may be used from any thread.

    It rises when the window's late fraction is above ``late_refuse_fraction`` and falls when it is below
    ``late_admit_fraction``, or when too few frames are left in the window to say.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start with an empty window."""
        self._config = config
        self._cell_s = config.late_window_s / CELLS
        self._frames = [0] * CELLS
        self._late = [0] * CELLS
        self._newest = 0  # number of the newest cell since the clock's zero
        self._is_high = False
        self._lock = threading.Lock()

    @property
    def cell_s(self) -> float:
        """Seconds after which the answer of :meth:`is_high` may change on its own."""
        return self._cell_s

    def record(self, now_s: float, *, is_late: bool) -> None:
        """Count one frame answered at ``now_s``."""
        with self._lock:
            cell = self._advance(now_s)
            self._frames[cell] += 1
            self._late[cell] += is_late

    def count(self, now_s: float) -> LateCount:
        """The window that ends at ``now_s``."""
        with self._lock:
            return self._count(now_s)

    def is_high(self, now_s: float) -> bool:
        """Whether nobody should be admitted at ``now_s``."""
        with self._lock:
            count = self._count(now_s)
            if count.frames < self._config.late_min_frames or not count.late:
                self._is_high = False
            elif count.fraction > self._config.late_refuse_fraction:
                self._is_high = True
            elif count.fraction < self._config.late_admit_fraction:
                self._is_high = False
            return self._is_high

    def _count(self, now_s: float) -> LateCount:
        self._advance(now_s)
        return LateCount(sum(self._frames), sum(self._late))

    def _advance(self, now_s: float) -> int:
        """The index of the cell of ``now_s``, after forgetting the cells it overtook."""
        number = int(now_s / self._cell_s)
        # Threads' clocks may arrive slightly out of order: an older time counts in the newest cell.
        for passed in range(max(self._newest + 1, number - CELLS + 1), number + 1):
            self._frames[passed % CELLS] = 0
            self._late[passed % CELLS] = 0
        self._newest = max(self._newest, number)
        return self._newest % CELLS
