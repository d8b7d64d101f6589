"""Values that a front end and an engine exchange about a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from antiphon.backends.base import FloatArray


class SessionState(StrEnum):
    """Where a session is in its life; it never goes back, but for a prompt given late."""

    QUEUED = "queued"
    PRIMING = "priming"  # it has a row, which still reads its prompt
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class FrameReply:
    """What one tick made of one frame.

    ``frame`` is the index of the input frame answered, counted from 0 since the session began, dropped
    ones included (tts: the index of the step). ``pcm`` is float32 ``[frame_samples]``. ``vad`` holds one
    probability per head. ``complete_s`` is when the frame's last sample had come, ``replied_s`` when the
    step ended, both on the engine's clock; ``wait_ms`` lies between complete and the step's start.
    ``is_padding``: it answers flush padding (``CallSession.hear_padding``), and ``frame`` is -1.
    """

    frame: int
    pcm: FloatArray | None
    text_token: int | None
    vad: tuple[float, ...]
    step_ms: float
    wait_ms: float
    complete_s: float
    replied_s: float
    is_padding: bool = False


class TakenReplies(NamedTuple):
    """Replies, oldest first, and, when older ones were dropped since last taken, the first frame kept.

    No reply here is older than ``interrupted_at``, and what was taken before is all older.
    """

    replies: list[FrameReply]
    interrupted_at: int | None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What became of a session's frames so far; every whole frame of audio is in exactly one place.

    ``frames_in == dropped_in + flushed_in + queue_frames + frames_taken``, and, while no tick runs,
    ``frames_taken == silent + lost + flushed_out + dropped_out + reply_frames + frames_out``.
    ``silent`` frames have no reply by design; ``lost`` ones have none against it. ``late`` ones were sent
    later than one frame's length after they were complete. What waits, or is being computed, when the
    session ends is flushed. For tts, frames are steps, ``queue_frames``
    counts words, and steps without audio are silent.
    """

    frames_in: int = 0
    frames_taken: int = 0
    frames_out: int = 0
    late: int = 0
    lost: int = 0
    silent: int = 0
    dropped_in: int = 0
    dropped_out: int = 0
    flushed_in: int = 0
    flushed_out: int = 0
    queue_frames: int = 0
    reply_frames: int = 0
    step_ms_p50: float = 0.0
    step_ms_p99: float = 0.0
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all values do not exceed; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]
