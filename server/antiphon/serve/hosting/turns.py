"""Orders the turns of conversations on the event loop, and bounds the time until sockets are polled again.

Each conversation has a :class:`Waker`. :meth:`Waker.wake`, on the event loop, queues one *turn*, a small
piece of work; the queued turns of all other conversations run before the next turn of this one. A
conversation with a large backlog therefore delays each of the others by only one turn.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

Turn = Callable[[], bool]
"""Does one piece of work, of less than a millisecond, and returns whether there is more."""

Fault = Callable[[Exception], None]
"""Called with the exception of a turn; ends the conversation. It must not raise."""

BUDGET_S: Final = 0.005
"""Seconds for which turns run before sockets are polled again: a sixteenth of a frame."""


class Waker:
    """Queues the turns of one conversation."""

    __slots__ = ("_due_s", "_fault", "_is_waiting", "_timer", "_turn", "_turns")

    def __init__(self, turns: Turns, turn: Turn, fault: Fault) -> None:
        """Add ``turn`` to ``turns``; :meth:`close` removes it."""
        self._turns = turns
        self._turn: Turn | None = turn
        self._fault = fault
        self._is_waiting = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf

    def wake(self) -> None:
        """Request a turn; a second request before it begins has no effect. Never raises."""
        if not self._is_waiting and self._turn is not None:
            self._is_waiting = True
            self._turns.put(self)

    def wake_at(self, due_s: float, now_s: float) -> None:
        """Request a turn at ``due_s``, or earlier; ``now_s`` is the time on the same clock."""
        if due_s < self._due_s and self._turn is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._due_s = due_s
            delay_s = max(0.001, due_s - now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._due_s = math.inf
        self.wake()

    def run(self) -> None:
        """Run one turn."""
        self._is_waiting = False  # first, so that a wake during the turn requests another one
        if self._turn is None:
            return
        try:
            if self._turn():
                self.wake()
        except Exception as error:  # a boundary: an error in a turn ends only its conversation
            self._fault(error)

    def close(self) -> None:
        """Run no further turn, and drop the reference to the conversation so that its memory is freed at
        once.
        """
        self._turn, self._fault = None, lambda _: None
        if self._timer is not None:
            self._timer.cancel()


class Turns:
    """The queue of turns of all conversations on one event loop. ``busy_s`` is the total time of turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run turns on ``loop``."""
        self.busy_s = 0.0
        self._loop = loop
        self._queue: deque[Waker] = deque()
        self._is_called = False

    def put(self, waker: Waker) -> None:
        """Run one turn of ``waker`` soon."""
        self._queue.append(waker)
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        start_s = now_s = time.perf_counter()
        for _ in range(len(self._queue)):
            self._queue.popleft().run()
            now_s = time.perf_counter()
            if now_s - start_s > BUDGET_S:
                break
        self.busy_s += now_s - start_s
        self._is_called = bool(self._queue)
        if self._queue:
            self._loop.call_soon(self._run)
