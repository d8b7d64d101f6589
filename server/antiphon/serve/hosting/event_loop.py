"""The event loop that serves: which one, how late it runs, and what reading texts may take of one turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from statistics import median
from typing import Any, Final, TypeVar

from antiphon.models.script import PIECE_WORDS

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, which takes two thirds of the CPU for a message in and out (docs/adr/0025)."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows, nor for every Python from its first day
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


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
        """Add the lag of one measurement."""
        self._looks.append(lag_s)
        self._worst.append((now_s, lag_s))
        self._tell(self.lag_s)


class Reading:
    """Reads texts piece by piece: fewer than two pieces of ``PIECE_WORDS`` in one turn of the event loop.

    Callers that wait have their piece in the order they came.
    """

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._lock = asyncio.Lock()
        self._words = 0

    async def step(self, pieces: Iterator[int]) -> bool:
        """Read one piece of a text, in a later turn if this one has read enough; false when none is left.

        ``pieces`` yields the number of words that it read.
        """
        async with self._lock:
            if self._words >= PIECE_WORDS:
                await asyncio.sleep(0)
                self._words = 0
            words = next(pieces, None)
            self._words += max(1, words or 0)  # an empty text takes time too
        return words is not None
