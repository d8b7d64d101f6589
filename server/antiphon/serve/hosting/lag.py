"""The lag of the event loop: a metric, and a reason for admission to refuse."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

PERIOD_S: Final = 0.05
"""Between two looks: often enough for a median within half a second, rarely enough to cost nothing."""

LOOKS: Final = 8
"""Looks that the median is of: what one garbage collection or one slow handler adds is no overload."""

WORST_S: Final = 5.0
"""How long the worst look is remembered for the metric: as long as between two scrapes."""


class LoopLag:
    """Looks at the loop from inside: a timer that comes late was kept waiting by other handlers."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[float], None]) -> None:
        """Tell ``tell`` the lag in seconds after each look. ``clock`` gives seconds."""
        self._clock = clock
        self._tell = tell
        self._looks: deque[float] = deque(maxlen=LOOKS)
        self._worst: deque[tuple[float, float]] = deque(maxlen=round(WORST_S / PERIOD_S))
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    @property
    def lag_s(self) -> float:
        """How late handlers run now: the median of the last looks."""
        return median(self._looks) if self._looks else 0.0

    @property
    def worst_s(self) -> float:
        """The largest lag of the last seconds."""
        since_s = self._clock() - WORST_S
        return max((lag_s for at_s, lag_s in self._worst if at_s >= since_s), default=0.0)

    def start(self) -> None:
        """Look from now on, on the running loop."""
        self._due_s = self._clock() + PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._clock()
        self.note(now_s, max(0.0, now_s - self._due_s))
        self.start()

    def note(self, now_s: float, lag_s: float) -> None:
        """Take one look's lag into account."""
        self._looks.append(lag_s)
        self._worst.append((now_s, lag_s))
        self._tell(self.lag_s)
