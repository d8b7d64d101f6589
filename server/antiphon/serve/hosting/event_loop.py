"""The server's event loop: how it is chosen, how its lag is measured, and how much text one iteration
reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from statistics import median
from typing import Any, Final, TypeVar

from antiphon.models.script import PIECE_WORDS

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop of uvloop (11 % less CPU time per message than asyncio, docs/adr/0025), or one of
    asyncio if uvloop is missing.
    """
    try:
        import uvloop
    except ImportError:  # not available for Windows, nor at once for a new Python
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` like ``asyncio.run``, on a loop of :func:`new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


PERIOD_S: Final = 0.05
"""Seconds between two measurements: the median covers half a second, and measuring costs almost no time."""

LOOKS: Final = 8
"""Number of measurements in the median, so that one garbage collection or slow handler does not count as
overload.
"""

WORST_S: Final = 5.0
"""Seconds for which the largest lag is kept for the metric: the time between two scrapes."""


class LoopLag:
    """Measures the loop's lag from inside: a late timer was delayed by other handlers."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[float], None]) -> None:
        """Call ``tell`` with the lag in seconds after each measurement. ``clock`` returns seconds."""
        self._clock = clock
        self._tell = tell
        self._looks: deque[float] = deque(maxlen=LOOKS)
        self._worst: deque[tuple[float, float]] = deque(maxlen=round(WORST_S / PERIOD_S))
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    @property
    def lag_s(self) -> float:
        """Current lag of handlers: the median of the last measurements."""
        return median(self._looks) if self._looks else 0.0

    @property
    def worst_s(self) -> float:
        """The largest lag of the last ``WORST_S`` seconds."""
        since_s = self._clock() - WORST_S
        return max((lag_s for at_s, lag_s in self._worst if at_s >= since_s), default=0.0)

    def start(self) -> None:
        """Start measuring the lag of the running loop."""
        self._due_s = self._clock() + PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._look)

    def close(self) -> None:
        """Stop measuring the lag."""
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
    """Reads texts piece by piece: fewer than ``2 * PIECE_WORDS`` words in one iteration of the event loop.

    Waiting callers are served in order.
    """

    def __init__(self) -> None:
        """Start with no words read."""
        self._lock = asyncio.Lock()
        self._words = 0

    async def step(self, pieces: Iterator[int]) -> int | None:
        """Read one piece of a text, in a later iteration of the loop if the current iteration has read
        enough; return the number of its words, or None at the end.

        ``pieces`` reads one piece at a time, and yields its number of words.
        """
        async with self._lock:
            if self._words >= PIECE_WORDS:
                await asyncio.sleep(0)
                self._words = 0
            words = next(pieces, None)
            self._words += max(1, words or 0)  # an empty text takes time too
        return words
