"""The sleep of the engine thread, and what wakes it."""

from __future__ import annotations

import os
import select
import threading
import weakref
from typing import Final

from antiphon.ipc.memory import hush, ring

LONGEST_S: Final = 3600.0
"""Poll takes no more milliseconds than an int holds; to wake for nothing once an hour costs nothing."""


class Wake:
    """A flag that any thread may raise, and that the engine thread waits for."""

    def __init__(self) -> None:
        """Start lowered."""
        self._condition = threading.Condition(threading.Lock())
        self._is_raised = False
        self._is_stopped = False

    def nudge(self) -> None:
        """Wake the engine thread: a frame is whole, a row has changed hands, a deadline has moved."""
        if self._is_raised:  # it looks at everything when it wakes, so once is enough
            return
        with self._condition:
            self._is_raised = True
            self._condition.notify()

    def stop(self) -> None:
        """Wake the engine thread for the last time."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the flag is raised or the time is over, and lower it; false when stopped."""
        with self._condition:
            if not (self._is_raised or self._is_stopped) and timeout_s != 0:
                self._condition.wait(timeout_s)
            self._is_raised = False
            return not self._is_stopped


class EventWake(Wake):
    """A flag that other processes may raise too, through the eventfd ``descriptor``."""

    def __init__(self) -> None:
        """Start lowered."""
        super().__init__()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    def nudge(self) -> None:
        """Wake the engine thread."""
        ring(self.descriptor)

    def stop(self) -> None:
        """Wake the engine thread for the last time."""
        self._is_stopped = True
        ring(self.descriptor)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the flag is raised or the time is over, and lower it; false when stopped."""
        if not self._is_stopped:
            self._poll.poll(None if timeout_s is None else 1000 * min(timeout_s, LONGEST_S))
        hush(self.descriptor)
        return not self._is_stopped
