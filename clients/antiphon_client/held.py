"""The last of what a microphone heard, encoded: what waits for the network, and what may be sent again.

Messages are numbered as they are made, so a number is a time: a frame of the call has ``per_frame`` of them.
Whatever is older than the bound is gone, sent or not.
"""

from __future__ import annotations

from collections import deque


class HeldSpeech:
    """Messages of one call, the latest ``limit`` of them."""

    def __init__(self, *, limit: int, per_frame: int) -> None:
        """Hold none yet."""
        self._per_frame = per_frame
        self._held: deque[bytes] = deque(maxlen=limit)
        self._made = 0  # how many there have been
        self._next = 0  # the number of the next to be sent
        self.dropped = 0

    @property
    def _first(self) -> int:
        """The number of the oldest that is held."""
        return self._made - len(self._held)

    @property
    def first_frame(self) -> int:
        """The first frame that can be sent whole."""
        return -(-self._first // self._per_frame)

    def add(self, message: bytes) -> None:
        """The microphone has heard more; the oldest gives way."""
        self._held.append(message)
        self._made += 1
        if self._next < self._first:
            self._next = self._first
            self.dropped += 1

    def take(self) -> bytes | None:
        """The next to be sent; None while there is none."""
        if self._next >= self._made:
            return None
        message = self._held[self._next - self._first]
        self._next += 1
        return message

    def go_on_from(self, frame: int) -> None:
        """Send from this frame on, as far as it is held."""
        self._next = min(self._made, max(self._first, frame * self._per_frame))
