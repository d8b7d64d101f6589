"""Replies as a session hands them out, one value each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from antiphon.backends.base import NO_TOKEN, FloatArray
from antiphon.engine.rings import Replies


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


def as_replies(found: Replies) -> list[FrameReply]:
    """Replies of a ring as values, one by one."""
    pcm: Iterable[FloatArray | None] = repeat(None) if found.pcm is None else found.pcm
    numbers = zip(found.frame.tolist(), found.token.tolist(), found.is_aside.tolist(), strict=True)
    return [
        FrameReply(
            frame,
            samples,
            None if token == NO_TOKEN else token,
            tuple(vad.tolist()),
            step_ms,
            wait_ms,
            complete_s,
            replied_s,
            is_aside=is_aside,
        )
        for (frame, token, is_aside), samples, vad, (step_ms, wait_ms, complete_s, replied_s) in zip(
            numbers, pcm, found.vad, found.times.tolist(), strict=False
        )
    ]
