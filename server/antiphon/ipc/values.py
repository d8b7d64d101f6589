"""Values that a front end and an engine exchange, about calls, resumption and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta

from antiphon.backends.base import FloatArray
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec


class SessionState(StrEnum):
    """The state of a session; states change in this order, except for a late prompt."""

    QUEUED = "queued"
    PRIMING = "priming"  # it has a row, which still reads its prompt
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class FrameReply:
    """The result of one tick for one frame.

    ``frame`` is the number of the answered input frame, from 0 at the session's start, including dropped ones
    (tts: the number of the step). ``pcm`` is float32 ``[frame_samples]``. ``vad`` holds one probability per
    head. ``complete_s`` is the time at which the frame's last sample arrived, ``replied_s`` the time at which
    the step ended, both on the engine's clock. ``wait_ms`` is the time from ``complete_s`` to the start of
    the step. ``is_padding``: the reply answers flush padding (``CallSession.feed_padding``), and ``frame`` is
    -1.
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
    """Replies, oldest first. If older replies were dropped since the last read, ``interrupted_at`` is the
    first frame kept.

    All replies here answer frames from ``interrupted_at`` on; all replies read earlier answer earlier frames.
    """

    replies: list[FrameReply]
    interrupted_at: int | None


@dataclass(frozen=True, slots=True)
class SessionStats:
    """The outcome of a session's frames so far; every whole frame of audio is counted exactly once.

    ``frames_in == dropped_in + flushed_in + queue_frames + frames_taken``, and, while no tick runs,
    ``frames_taken == silent + lost + flushed_out + dropped_out + reply_frames + frames_out``. ``silent``
    frames have no reply by design, ``lost`` frames because of a fault. ``late`` replies were sent more than a
    frame's length after the frame was complete. Waiting and running frames are flushed when the session ends.
    For tts, frames are steps, ``queue_frames`` counts words, and steps without audio are silent.
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
    """The smallest value that at least ``fraction`` of all values do not exceed; 0 if there are no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]


Call: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
"""The id of a call."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
"""A number of frames, messages or interruptions of one call."""

CountOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=2**53)]
"""The number of a frame or a message; -1 means none."""

Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""The SHA-256 of a client's token."""

Owner: TypeAlias = Annotated[str, Meta(max_length=256)]
"""The name of an API key."""

Kept: TypeAlias = Annotated[bytes, Meta(max_length=64)]
"""Data of a connection for the next one of its call, in the protocol's own format."""

Note: TypeAlias = tuple[Count, Annotated[bytes, Meta(max_length=65_536)]]
"""A numbered message: its number, and its bytes as they are sent, text or events."""


@dataclass(frozen=True, slots=True)
class ResumeClaim:
    """A front end's request to continue a call.

    ``key`` is the SHA-256 of the client's token, ``new_key`` the SHA-256 of its next token, ``owner`` the
    name of its API key. The client has received numbered messages up to ``seq`` and audio up to ``frame``
    (-1: none). At most ``replay_frames`` frames of missing audio are sent again.
    """

    key: Key
    new_key: Key
    owner: Owner
    seq: CountOrNone
    frame: CountOrNone
    replay_frames: Annotated[int, Meta(ge=0, le=1024)]


@dataclass(frozen=True, slots=True)
class Resumption:
    """The data that a front end needs to continue a call on another connection.

    ``call`` is the id of the call's first session. ``notes`` are numbered messages that the client lacks; the
    next message has ``next_seq``. The text of replies to frames below ``text_frame`` is in stored messages.
    ``kept`` is data that the last connection stored for the next one, in the protocol's own format.
    ``replay_from`` is the first frame whose reply may still arrive; ``replayed`` is the number of replies to
    another connection that are sent again. ``unrecorded_in`` and ``unrecorded_out`` are frames of connections
    whose front end ended before it could record their use.
    """

    call: str
    parameters: SamplingParameters
    notes: tuple[Note, ...]
    next_seq: int
    text_frame: int
    replay_from: int
    kept: bytes = b""
    replayed: int = 0
    unrecorded_in: int = 0
    unrecorded_out: int = 0


PAGE_BYTES: Final = 4096
RING_BOUNDS: Final = 2
"""Slots of a ring per frame of its bound: the reading side enforces the bound."""

IN_MARKS: Final = 2
"""The marks of an input frame: frame, complete_s. They are adjacent so that a tick moves them at once."""
OUT_MARKS: Final = 7
"""The marks of a reply: frame, run, token, step_ms, wait_ms, complete_s, replied_s."""

RECENT_TICKS: Final = 128
"""Number of ticks that statistics of times cover: ten seconds of speech."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a lease. ``input_frames`` and ``output_frames`` may wait; ``input_samples`` and
    ``output_samples`` are the samples of a frame.

    ``input_samples`` is 0 if the input is text, ``output_samples`` is 0 if the output is text.
    """

    input_frames: int
    output_frames: int
    input_samples: int
    output_samples: int
    heads: int = 0

    @classmethod
    def of(cls, spec: ModelSpec, *, input_frames: int, output_frames: int) -> Shape:
        """The shape of the leases of a model's calls."""
        return cls(
            input_frames,
            output_frames,
            spec.frame_samples if spec.kind.takes_audio else 0,
            spec.frame_samples if spec.kind.gives_audio else 0,
            spec.heads,
        )

    @property
    def block(self) -> np.dtype[np.void]:
        """The dtype of the block of one lease, whose size is whole pages. Small fields come first, so that
        they share the first page.
        """
        heard, said = RING_BOUNDS * self.input_frames, RING_BOUNDS * self.output_frames
        if not self.input_samples:
            heard = 0
        fields: dict[str, tuple[Any, tuple[int, ...]]] = {
            "in_marks": (np.int64, (heard, IN_MARKS)),
            "out_marks": (np.int64, (said, OUT_MARKS)),
            "recent_ms": (np.float32, (RECENT_TICKS, 2)),
            "out_vad": (np.float32, (said, self.heads)),
            "in_pcm": (np.float32, (heard, self.input_samples)),
            "out_pcm": (np.float32, (said, self.output_samples)),
        }
        offsets, end = [], 0
        for kind, shape in fields.values():
            offsets.append(end)
            end += -(-np.dtype(kind).itemsize * int(np.prod(shape)) // 8) * 8
        layout = {"names": list(fields), "formats": list(fields.values()), "offsets": offsets}
        return np.dtype({**layout, "itemsize": -(-end // PAGE_BYTES) * PAGE_BYTES})  # type: ignore[call-overload, no-any-return]
