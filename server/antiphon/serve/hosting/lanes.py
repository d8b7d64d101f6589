"""Who runs a session's work, and in which order.

A *lane* is one session's place at one worker. Work is asked for with :meth:`Lane.wake`, from any thread;
the worker then runs the lane's *turn*, a small piece of work, and after it the turns of all other lanes
that are awake before this one's next. So the turns of a lane never overlap and never swap (a codec's state
needs both), and a session that floods its lane delays the others by one turn each, not by its backlog.

There are two kinds of worker: :class:`ThreadWorker` for work that releases the interpreter lock (Opus),
:class:`LoopWorker` for work on the event loop. Each session has one lane of either kind: what happens
between the socket and the engine is then at most one hand-over each way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Turn = Callable[[], bool]
"""Does one piece of work and says whether there is more."""

Fault = Callable[[Exception], None]
"""Told of an exception that a turn raised, on the same thread; ends the session. Must not raise."""


class Worker(Protocol):
    """Runs the turns of lanes, one at a time, first come first served."""

    lanes: int

    def put(self, lane: Lane) -> None:
        """Run one turn of ``lane``, later, from any thread."""
        ...


class Lane:
    """One session's place at a worker."""

    __slots__ = ("_fault", "_is_closing", "_is_waiting", "_turn", "_worker")

    def __init__(self, worker: Worker, turn: Turn, fault: Fault) -> None:
        """Give ``turn`` a place at ``worker``; :meth:`close` gives it back."""
        self._worker = worker
        self._turn = turn
        self._fault = fault
        self._is_waiting = False
        self._is_closing = False
        worker.lanes += 1

    def wake(self) -> None:
        """Ask for a turn, from any thread; asking again before it began changes nothing. Never raises."""
        # Two threads may both find False and both put the lane: then a turn finds nothing to do.
        if not self._is_waiting:
            self._is_waiting = True
            self._worker.put(self)

    def run(self) -> None:
        """Take one turn; only the worker calls this."""
        self._is_waiting = False  # first, so that a wake during the turn brings another one
        is_last = self._is_closing
        try:
            has_more = self._turn()
        except Exception as error:  # a boundary: what goes wrong in a turn ends its session, not the worker
            self._fault(error)
            has_more = False
        if is_last:
            # The session holds its lanes: forgetting it here frees its memory now, not when somebody
            # collects cycles.
            self._turn, self._fault = _no_turn, _no_fault
        elif has_more:
            self.wake()

    def close(self) -> None:
        """Leave the worker after one last turn; waking the lane later does nothing. Only once."""
        self._worker.lanes -= 1
        self._is_closing = True
        self.wake()


def _no_turn() -> bool:
    return False


def _no_fault(error: Exception) -> None:
    """Nobody is there to be told."""


class ThreadWorker:
    """A thread that runs turns until it is stopped. ``busy_s`` is the time it spent in them."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self.lanes = 0
        self.busy_s = 0.0
        self._queue: SimpleQueue[Lane | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, lane: Lane) -> None:
        """Run one turn of ``lane``, later, from any thread."""
        self._queue.put(lane)

    def stop(self, timeout_s: float) -> None:
        """End the thread after the turns already asked for."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (lane := self._queue.get()) is not None:
            start_s = time.perf_counter()
            lane.run()
            self.busy_s += time.perf_counter() - start_s


class LoopWorker:
    """Runs turns on the event loop: however many lanes wake meanwhile, the loop is woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run turns on ``loop``."""
        self.lanes = 0
        self.busy_s = 0.0
        self._loop = loop
        self._queue: deque[Lane] = deque()
        self._is_called = False

    def put(self, lane: Lane) -> None:
        """Run one turn of ``lane``, later, from any thread."""
        self._queue.append(lane)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                # The loop was closed: the process is leaving, and so are the sockets.
                self._queue.clear()

    def _run(self) -> None:
        start_s = time.perf_counter()
        # Twice, since a first turn often wakes another lane here: a PCM codec its socket. Not until nobody is
        # left: a lane with more to do must not keep the loop from its sockets.
        for _ in range(2):
            for _ in range(len(self._queue)):
                self._queue.popleft().run()
        self._is_called = False
        if self._queue and not self._is_called:  # put before the line above, by who thought we would see it
            self._is_called = True
            self._loop.call_soon(self._run)
        self.busy_s += time.perf_counter() - start_s


class WorkerPool:
    """``threads`` workers for codecs and one for the loop; a session stays where it was put."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads."""
        self.threads = tuple(ThreadWorker(f"codec-{index}") for index in range(threads))
        self.loop = LoopWorker(loop)

    def thread_lane(self, turn: Turn, fault: Fault) -> Lane:
        """A lane at the thread with the fewest lanes."""
        return Lane(min(self.threads, key=lambda worker: worker.lanes), turn, fault)

    def loop_lane(self, turn: Turn, fault: Fault) -> Lane:
        """A lane on the event loop."""
        return Lane(self.loop, turn, fault)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the threads."""
        for worker in self.threads:
            worker.stop(timeout_s)
