"""The record of one probed session: for each frame, the times when it and its reply were complete."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Seconds: TypeAlias = NDArray[np.float64]
Samples: TypeAlias = NDArray[np.float32]


class SessionOutcome(StrEnum):
    """Outcome of a session, from the client's view."""

    ANSWERED = "answered"  # it was admitted and ended as planned
    REJECTED = "rejected"  # it was never admitted
    FAILED = "failed"  # it was admitted and the server ended it early


@dataclass(frozen=True, slots=True)
class Timeline:
    """The frames of one session, in order; times in ``_s`` are seconds of the client's clock.

    ``sent_s`` is float64 ``[frames]``: the time at which the message that completed frame i was due, even if
    it was sent later. Otherwise a delayed generator would make the server look faster ("coordinated
    omission"). ``replied_s``, ``step_ms`` and ``wait_ms`` are float64 ``[frames]``, NaN without a reply or
    stamp; a reply counts from the arrival of its last piece. ``arrived_s`` and ``arrived_samples`` are
    ``[messages in]``. ``send_late_ms`` is ``[messages out]``: the generator's own delay.
    """

    sent_s: Seconds
    replied_s: Seconds
    step_ms: Seconds
    wait_ms: Seconds
    arrived_s: Seconds
    arrived_samples: NDArray[np.int64]
    send_late_ms: Seconds


@dataclass(frozen=True, slots=True)
class ConnectionCut:
    """One cut of a connection: the times without a connection, and without audio beyond one frame, in ms."""

    outage_ms: float
    gap_ms: float


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session from connecting to its end.

    ``delay_frames`` input frames at its start have no reply by design. ``misplaced`` counts replies that
    arrived out of order, twice, or for a frame never sent. ``dropped_messages`` were too old to send after a
    pause of the generator. ``server_late`` and ``server_dropped`` are the last counts that the server sent.
    ``word_latencies_ms`` is, for each transcribed word, the time from sending its start to its arrival.
    """

    session: int
    outcome: SessionOutcome
    detail: str
    planned_frames: int
    delay_frames: int
    frame_samples: int
    sample_rate: int
    connect_s: float
    ready_s: float | None
    first_sent_s: float | None
    ended_s: float
    timeline: Timeline
    misplaced: int = 0
    interruptions: int = 0
    dropped_messages: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    server_late: int = 0
    server_dropped: int = 0
    text: str = ""
    word_latencies_ms: tuple[float, ...] = ()
    cuts: tuple[ConnectionCut, ...] = ()

    @property
    def frame_s(self) -> float:
        """Seconds in one frame, which is also its deadline."""
        return self.frame_samples / self.sample_rate


def _doubles() -> array[float]:
    return array("d")


@dataclass(slots=True)
class FrameRecorder:
    """Collects the frames of a running session. Every time is a parameter.

    Input frames are counted in samples sent, as the server counts them in samples received. Replies without a
    stamp are counted in samples too: output frame k answers input frame k + delay_frames. ``frames_answered``
    counts frames whose complete reply has arrived. All data is in flat arrays, which add no work for the
    garbage collector, even with hundreds of sessions.
    """

    frame_samples: int
    delay_frames: int
    misplaced: int = 0
    frames_answered: int = 0
    _sent_samples: int = 0
    _heard_samples: int = 0
    _last_frame: int = -1
    _sent_s: array[float] = field(default_factory=_doubles)
    _replied_s: array[float] = field(default_factory=_doubles)
    _step_ms: array[float] = field(default_factory=_doubles)
    _wait_ms: array[float] = field(default_factory=_doubles)
    _replied_samples: array[float] = field(default_factory=_doubles)
    _arrived_s: array[float] = field(default_factory=_doubles)
    _arrived_samples: array[float] = field(default_factory=_doubles)
    _send_late_ms: array[float] = field(default_factory=_doubles)

    @property
    def frames_sent(self) -> int:
        """Whole frames sent so far."""
        return len(self._sent_s)

    @property
    def pieces(self) -> int:
        """Replies received so far: pieces of audio, and answers without audio."""
        return len(self._arrived_s)

    @property
    def is_answered(self) -> bool:
        """Whether the last sent frame has its complete reply."""
        return bool(self._sent_s) and self._replied_samples[-1] >= self.frame_samples

    def sent(self, samples: int, now_s: float, late_s: float) -> None:
        """Record a message of ``samples`` that is sent now, ``late_s`` after its due time."""
        self._send_late_ms.append(late_s * 1000)
        self._sent_samples += samples
        while self._sent_samples >= (len(self._sent_s) + 1) * self.frame_samples:
            self._sent_s.append(now_s - late_s)
            self._replied_samples.append(0)
            for unknown in (self._replied_s, self._step_ms, self._wait_ms):
                unknown.append(math.nan)

    def replied(self, frame: int, samples: int, now_s: float, *, step_ms: float, wait_ms: float) -> None:
        """Record a stamped piece of the reply to input frame ``frame``."""
        self._arrived(samples, now_s)
        self._place(frame, samples, now_s, step_ms, wait_ms)

    def heard(self, samples: int, now_s: float) -> None:
        """Record unstamped audio, which continues the reply after the last piece."""
        self._arrived(samples, now_s)
        while samples > 0:
            frame, into_frame = divmod(self._heard_samples, self.frame_samples)
            piece = min(samples, self.frame_samples - into_frame)
            self._place(frame + self.delay_frames, piece, now_s, math.nan, math.nan)
            self._heard_samples += piece
            samples -= piece

    def answered(self, frame: int, now_s: float) -> None:
        """Record a reply without audio to input frame ``frame``."""
        self._arrived(0, now_s)
        self._place(frame, self.frame_samples, now_s, math.nan, math.nan)

    def interrupted(self, at_frame: int) -> None:
        """Record dropped replies: the next possible reply answers frame ``at_frame`` or later."""
        resumed = max(0, at_frame - self.delay_frames) * self.frame_samples
        self._heard_samples = max(self._heard_samples, resumed)

    def timeline(self) -> Timeline:
        """All records so far, as arrays."""
        is_whole = np.array(self._replied_samples) >= self.frame_samples
        return Timeline(
            sent_s=np.array(self._sent_s),
            replied_s=np.where(is_whole, self._replied_s, math.nan),
            step_ms=np.where(is_whole, self._step_ms, math.nan),
            wait_ms=np.where(is_whole, self._wait_ms, math.nan),
            arrived_s=np.array(self._arrived_s),
            arrived_samples=np.array(self._arrived_samples).astype(np.int64),
            send_late_ms=np.array(self._send_late_ms),
        )

    def _arrived(self, samples: int, now_s: float) -> None:
        self._arrived_s.append(now_s)
        self._arrived_samples.append(samples)

    def _place(self, frame: int, samples: int, now_s: float, step_ms: float, wait_ms: float) -> None:
        is_due = self._last_frame <= frame < len(self._sent_s)
        if not is_due or self._replied_samples[frame] >= self.frame_samples:
            self.misplaced += 1
            return
        self._last_frame = frame
        self._replied_s[frame] = now_s
        self._step_ms[frame] = step_ms
        self._wait_ms[frame] = wait_ms
        self._replied_samples[frame] += samples
        self.frames_answered += self._replied_samples[frame] >= self.frame_samples
