"""How the engine thread sleeps until there may be something to do."""

from __future__ import annotations

import threading


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
