"""What became of one session's frames, counted for the session and for the metrics at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.engine.inbox import Inbox
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.outbox import FrameReply, Outbox
from antiphon.engine.policy import POLICIES
from antiphon.engine.pressure import LatePressure
from antiphon.models.spec import ModelSpec, PipelineKind

RECENT_TICKS = 128
"""The times in :class:`SessionStats` are those of the last so many ticks, ten seconds of speech."""

PACE = 0.9
"""Frames coming faster than one in ``PACE`` frame lengths are their sender's burst, not our delay."""


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

    frames_in: int
    frames_taken: int
    frames_out: int
    late: int
    lost: int
    silent: int
    dropped_in: int
    dropped_out: int
    flushed_in: int
    flushed_out: int
    queue_frames: int
    reply_frames: int
    step_ms_p50: float
    step_ms_p99: float
    wait_ms_p50: float
    wait_ms_p99: float


class FrameLedger:
    """The counters of one session. Not thread-safe: the session holds its lock."""

    def __init__(self, spec: ModelSpec, metrics: EngineMetrics, pressure: LatePressure) -> None:
        """Start with nothing counted; ``metrics`` and ``pressure`` are shared by all sessions."""
        self._metrics = metrics
        self._pressure = pressure
        self._silent_frames = spec.silent_frames
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind is not PipelineKind.TTS  # text is complete long before it is spoken
        self._is_live = POLICIES[spec.kind].is_live
        self._step_ms: deque[float] = deque(maxlen=RECENT_TICKS)
        self._wait_ms: deque[float] = deque(maxlen=RECENT_TICKS)
        self._first_complete_s: float | None = None
        self._is_heard = False
        self._due_s = float("-inf")
        self.taken = 0
        self.out = 0
        self.late = 0
        self.lost = 0
        self.silent = 0
        self.flushed_out = 0

    def take(self, complete_s: float) -> None:
        """A frame goes into a tick."""
        if self.taken == 0:
            self._first_complete_s = complete_s
        self.taken += 1

    def time(self, wait_ms: float, step_ms: float) -> None:
        """The tick took so long, after the frame had waited so long."""
        self._wait_ms.append(wait_ms)
        self._step_ms.append(step_ms)
        if self._has_deadlines:
            self._metrics.frame_wait_seconds.observe(wait_ms / 1000.0)

    def no_reply(self, *, consumed: bool) -> None:
        """The tick's frame has no reply: by design while a duplex row is in its first frames, else lost."""
        is_by_design = consumed and self.taken <= self._silent_frames
        if is_by_design or not self._has_deadlines:
            self.silent += 1
        else:
            self.lost += 1
            self._metrics.lost_frames.inc()

    def dropped_in(self, complete_s: Sequence[float], now_s: float) -> None:
        """Frames complete at these times were pushed out, unheard, by newer ones at ``now_s``.

        One that was due long before counts towards late pressure as if its reply were late; one that its
        sender's burst pushed out does not count at all, else a flood would make all others look well.
        """
        if complete_s:
            self._metrics.dropped_in.inc(len(complete_s))
        for frame_complete_s in complete_s:
            if now_s - self._next_due_s(frame_complete_s) > self._frame_s:
                self._pressure.record(now_s, is_late=True)

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float) -> None:
        """A reply was handed to the socket at ``sent_s``, ``peer_wait_s`` of it spent waiting for the peer.

        Late is late, whoever caused it. But only what the server is to blame for counts towards late
        pressure, else one caller who floods or does not read would shut out everybody: a frame is due
        from the time real time would have brought it, and the peer's own slowness is taken off.

        A pipeline that is not live counts every latency from when the frame is due: its callers may send a
        recording as fast as it is read, and a second at a time.
        """
        if reply.pcm is not None and not self._is_heard and self._first_complete_s is not None:
            self._is_heard = True
            self._metrics.first_audio_seconds.observe(sent_s - self._first_complete_s)
        if not self._has_deadlines:
            return
        due_s = self._next_due_s(reply.complete_s)
        latency_s = max(0.0, sent_s - (reply.complete_s if self._is_live else due_s))
        self._metrics.frame_latency_seconds.observe(latency_s)
        if latency_s > self._frame_s:
            self.late += 1
            self._metrics.late_frames.inc()
        self._pressure.record(sent_s, is_late=sent_s - peer_wait_s - due_s > self._frame_s)

    def _next_due_s(self, complete_s: float) -> float:
        """When the session's next frame is due: when it was complete, or when real time would have it."""
        self._due_s = max(complete_s, self._due_s + PACE * self._frame_s)
        return self._due_s

    def stats(self, inbox: Inbox, outbox: Outbox) -> SessionStats:
        """All counters, with those that the session's queues keep themselves."""
        return SessionStats(
            frames_in=inbox.next_frame,
            frames_taken=self.taken,
            frames_out=self.out,
            late=self.late,
            lost=self.lost,
            silent=self.silent,
            dropped_in=inbox.dropped,
            dropped_out=outbox.dropped,
            flushed_in=inbox.flushed,
            flushed_out=self.flushed_out,
            queue_frames=inbox.waiting,
            reply_frames=len(outbox),
            step_ms_p50=percentile(self._step_ms, 0.5),
            step_ms_p99=percentile(self._step_ms, 0.99),
            wait_ms_p50=percentile(self._wait_ms, 0.5),
            wait_ms_p99=percentile(self._wait_ms, 0.99),
        )


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all values do not exceed; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]
