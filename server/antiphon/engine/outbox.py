"""Replies on their way from the engine thread to a socket."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.backends.base import FloatArray


@dataclass(frozen=True, slots=True)
class FrameReply:
    """What one tick made of one frame.

    ``frame`` is the index of the input frame answered, counted from 0 since the session began, dropped
    ones included (tts: the index of the step). ``pcm`` is float32 ``[frame_samples]``. ``vad`` holds one
    probability per head. ``complete_s`` is when the frame's last sample had come, ``replied_s`` when the
    step ended, both on the engine's clock; ``wait_ms`` lies between complete and the step's start.
    ``is_aside``: it answers silence that nobody sent (:mod:`antiphon.engine.aside`), and ``frame`` is -1.
    """

    frame: int
    pcm: FloatArray | None
    text_token: int | None
    vad: tuple[float, ...]
    step_ms: float
    wait_ms: float
    complete_s: float
    replied_s: float
    is_aside: bool = False


class TakenReplies(NamedTuple):
    """Replies, oldest first, and, when older ones were dropped since last taken, the first frame kept.

    No reply here is older than ``interrupted_at``, and what was taken before is all older.
    """

    replies: list[FrameReply]
    interrupted_at: int | None


class Outbox:
    """At most ``capacity`` replies; a live one drops its oldest when full. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        """Start empty."""
        self._capacity = capacity
        self._replies: deque[FrameReply] = deque()
        self._interrupted_at: int | None = None
        self.dropped = 0

    def __len__(self) -> int:
        """Replies waiting."""
        return len(self._replies)

    @property
    def has_room(self) -> bool:
        """Whether one more reply fits without dropping any."""
        return len(self._replies) < self._capacity

    def put(self, reply: FrameReply) -> int:
        """Add a reply; returns how many old ones it pushed out (0 or 1)."""
        self._replies.append(reply)
        if len(self._replies) <= self._capacity:
            return 0
        self._replies.popleft()
        self.dropped += 1
        self._interrupted_at = self._replies[0].frame
        return 1

    def take(self) -> TakenReplies:
        """All replies, and the gap before them; both are forgotten here."""
        taken = TakenReplies(list(self._replies), self._interrupted_at)
        self.clear()
        return taken

    def forget_aside(self) -> None:
        """Throw away replies to silence that nobody sent."""
        if any(reply.is_aside for reply in self._replies):
            self._replies = deque(reply for reply in self._replies if not reply.is_aside)

    def clear(self) -> None:
        """Throw away everything."""
        self._replies.clear()
        self._interrupted_at = None
