"""The schedule of a live session's messages: absolute times, without bursts.

Message ``i`` is due at ``origin + i * period``. A delay of less than a period does not move the schedule, so
small delays do not add up. A longer delay moves the schedule by whole periods, so two messages are never due
at once. A schedule shifted by more than ``stale_s`` drops the oldest messages instead, as a live client does
after a network pause.
"""

from __future__ import annotations

from dataclasses import dataclass

STALE_S = 0.4
"""Age in seconds above which audio is dropped after a pause instead of sent."""


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message to send now: its index, and the seconds since it was due."""

    message: int
    late_s: float


class Pacer:
    """Decides, from the time only, which message of ``messages`` is sent next, and when.

    ``origin_s`` is the time at which message 0 is due, ``period_s`` the time between messages, both in
    seconds of the caller's clock. The caller waits for ``wait_s(now)`` and then calls :meth:`take`.
    """

    def __init__(self, *, origin_s: float, period_s: float, messages: int, stale_s: float = STALE_S) -> None:
        """Set up a schedule without any message sent."""
        if period_s <= 0:
            raise ValueError(f"a period must be above 0 s, got {period_s} s")
        self._origin_s = origin_s
        self._period_s = period_s
        self._messages = messages
        self._stale_periods = int(stale_s / period_s)
        self._next = 0
        self._shift_periods = 0
        self.dropped = 0  # messages older than the limit

    @property
    def is_done(self) -> bool:
        """Whether every message was sent or dropped."""
        return self._next >= self._messages

    @property
    def due_s(self) -> float:
        """The due time of the next message."""
        return self._origin_s + (self._next + self._shift_periods) * self._period_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next message is due; 0 if it is already due."""
        return max(0.0, self.due_s - now_s)

    def take(self, now_s: float) -> DueMessage | None:
        """The message to send now; None if all remaining messages were stale and have been dropped."""
        late_s = max(0.0, now_s - self.due_s)
        self._shift_periods += int(late_s / self._period_s)
        stale = self._shift_periods - self._stale_periods
        if stale > 0:
            dropped = min(stale, self._messages - self._next)
            self._next += dropped
            self.dropped += dropped
            self._shift_periods = self._stale_periods
        if self.is_done:
            return None
        turn = DueMessage(message=self._next, late_s=late_s)
        self._next += 1
        return turn
