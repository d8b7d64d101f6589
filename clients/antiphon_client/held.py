"""The latest encoded microphone audio: messages not sent yet, and messages that may be sent again.

Messages are numbered in order, with ``per_frame`` messages for each frame of the call, so a number determines
a time. The buffer drops messages older than its bound, sent or not.
"""

from __future__ import annotations

from collections import deque


class HeldSpeech:
    """Holds the latest ``limit`` audio messages of one call."""

    def __init__(self, *, limit: int, per_frame: int) -> None:
        """Start without messages."""
        self._per_frame = per_frame
        self._held: deque[bytes] = deque(maxlen=limit)
        self._made = 0  # messages added so far
        self._next = 0  # number of the next message to send
        self.dropped = 0

    @property
    def _first(self) -> int:
        """The number of the oldest message that is kept."""
        return self._made - len(self._held)

    @property
    def first_frame(self) -> int:
        """The first frame of which all messages are kept."""
        return -(-self._first // self._per_frame)

    def add(self, message: bytes) -> None:
        """Add the next message; above the limit the oldest is dropped."""
        self._held.append(message)
        self._made += 1
        if self._next < self._first:
            self._next = self._first
            self.dropped += 1

    def take(self) -> bytes | None:
        """The next message to send; None if all are sent."""
        if self._next >= self._made:
            return None
        message = self._held[self._next - self._first]
        self._next += 1
        return message

    def continue_from(self, frame: int) -> None:
        """Continue sending from this frame, or from the oldest kept frame."""
        self._next = min(self._made, max(self._first, frame * self._per_frame))
