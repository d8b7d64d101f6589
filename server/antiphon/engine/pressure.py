"""Late pressure: the fraction of late frames in the recent past, with hysteresis."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.engine.config import EngineConfig

CELLS = 10
"""The window is counted in so many cells; the oldest cell is forgotten as a whole."""


HOST_FRESH_S = 2.0
"""How long a host's word counts: one that says nothing more has ended, and another is in its place."""


@dataclass(frozen=True, slots=True)
class LateCount:
    """Frames of the window: all, and those that were late."""

    frames: int
    late: int

    @property
    def fraction(self) -> float:
        """Late frames among all, 0 when there are none."""
        return self.late / self.frames if self.frames else 0.0


class _HostLag(NamedTuple):
    """What a host has last said of its event loop."""

    lag_s: float
    told_s: float


class _RunningStep(NamedTuple):
    """A step that has not come back yet."""

    start_s: float
    rows: int
    frame_s: float

    def overdue_frames(self, now_s: float) -> int:
        return self.rows * max(0, int((now_s - self.start_s) / self.frame_s))


class LatePressure:
    """Counts frames on time and late; may be used from any thread.

    It rises when the window holds at least ``late_min_frames`` late frames and their fraction is above
    ``late_refuse_fraction``; it falls when the fraction is below ``late_admit_fraction``, or when fewer
    late frames are left. A step that runs on counts while it does: one late frame of each of its rows
    for every whole frame length it has run, so that admission stops before the first late reply is out.

    It is high as well while the event loop of a host runs later than ``host_lag_ms``: then frames wait in
    sockets, where no stamp sees them.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start with an empty window."""
        self._config = config
        self._cell_s = config.late_window_s / CELLS
        self._frames = [0] * CELLS
        self._late = [0] * CELLS
        self._newest = 0  # number of the newest cell since the clock's zero
        self._is_high = False
        self._running: _RunningStep | None = None
        self._hosts: dict[str, _HostLag] = {}
        self._lock = threading.Lock()

    @property
    def cell_s(self) -> float:
        """Seconds after which the answer of :meth:`is_high` may change on its own."""
        return self._cell_s

    def record(self, now_s: float, *, is_late: bool) -> None:
        """Count one frame answered at ``now_s``."""
        self.record_many(now_s, frames=1, late=int(is_late))

    def record_many(self, now_s: float, *, frames: int, late: int) -> None:
        """Count frames answered at ``now_s``, and those of them that were late."""
        with self._lock:
            cell = self._advance(now_s)
            self._frames[cell] += frames
            self._late[cell] += late

    def begin_step(self, now_s: float, *, rows: int, frame_s: float) -> None:
        """A step begins in which ``rows`` frames of ``frame_s`` seconds await their answer."""
        with self._lock:
            self._running = _RunningStep(now_s, rows, frame_s)

    def end_step(self) -> None:
        """The step has ended; its frames are recorded as their replies are sent."""
        with self._lock:
            self._running = None

    def note_host(self, now_s: float, host: str, lag_s: float) -> None:
        """The event loop of a process that feeds this engine runs so late."""
        with self._lock:
            self._hosts[host] = _HostLag(lag_s, now_s)

    def host_lag_s(self, now_s: float) -> float:
        """The largest lag that a host has reported within ``HOST_FRESH_S``."""
        with self._lock:
            return self._host_lag_s(now_s)

    def _host_lag_s(self, now_s: float) -> float:
        fresh = (it.lag_s for it in self._hosts.values() if now_s - it.told_s <= HOST_FRESH_S)
        return max(fresh, default=0.0)

    def forget(self) -> None:
        """Empty the window; a step that runs still counts."""
        with self._lock:
            self._frames = [0] * CELLS
            self._late = [0] * CELLS
            self._is_high = False

    def count(self, now_s: float) -> LateCount:
        """The window that ends at ``now_s``."""
        with self._lock:
            return self._count(now_s)

    def is_high(self, now_s: float) -> bool:
        """Whether admission is stopped at ``now_s``."""
        with self._lock:
            count = self._count(now_s)
            if count.late < self._config.late_min_frames:
                self._is_high = False
            elif count.fraction > self._config.late_refuse_fraction:
                self._is_high = True
            elif count.fraction < self._config.late_admit_fraction:
                self._is_high = False
            return self._is_high or self._host_lag_s(now_s) > self._config.host_lag_ms / 1000.0

    def _count(self, now_s: float) -> LateCount:
        self._advance(now_s)
        overdue = 0 if self._running is None else self._running.overdue_frames(now_s)
        return LateCount(sum(self._frames) + overdue, sum(self._late) + overdue)

    def _advance(self, now_s: float) -> int:
        """The index of the cell of ``now_s``, after forgetting the cells it overtook."""
        number = int(now_s / self._cell_s)
        if number <= self._newest:  # nearly always
            return self._newest % CELLS
        # Threads' clocks may arrive slightly out of order: an older time counts in the newest cell.
        for passed in range(max(self._newest + 1, number - CELLS + 1), number + 1):
            self._frames[passed % CELLS] = 0
            self._late[passed % CELLS] = 0
        self._newest = number
        return number % CELLS
