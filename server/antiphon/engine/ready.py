"""Who is ready for the next tick, and how the engine thread sleeps until somebody is."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyList(Generic[T]):
    """Sessions with a whole frame, in the order they became ready; may be used from any thread.

    A session is listed at most once (it knows that it is), only while it owns a row, and taken off when it
    closes, so the list is never longer than the slots.
    Its lock is the innermost: nothing is called while it is held.
    """

    def __init__(self) -> None:
        """Start with nobody ready."""
        self._items: list[T] = []
        self._is_nudged = False
        self._is_stopped = False
        self._condition = threading.Condition(threading.Lock())

    def add(self, item: T) -> None:
        """List a session and wake the engine thread."""
        with self._condition:
            self._items.append(item)
            self._condition.notify()

    def remove(self, item: T) -> None:
        """Take a session off, if it is (still) listed."""
        with self._condition:
            self._items = [other for other in self._items if other is not item]

    def nudge(self) -> None:
        """Wake the engine thread so that it looks at its deadlines again."""
        with self._condition:
            self._is_nudged = True
            self._condition.notify()

    def stop(self) -> None:
        """Wake the engine thread for the last time."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until a session is listed, the thread is nudged or the time is over; false when stopped."""
        with self._condition:
            if not (self._items or self._is_nudged or self._is_stopped):
                self._condition.wait(timeout_s)
            self._is_nudged = False
            return not self._is_stopped

    def take(self) -> list[T]:
        """All listed sessions, oldest first; the list is empty afterwards."""
        with self._condition:
            items, self._items = self._items, []
            return items
