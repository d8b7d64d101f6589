"""What became of the frames of every session: counters as arrays, and one session's as a value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from antiphon.backends.base import FloatArray
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.ipc.arena import RECENT_TICKS, Arena, Counts, Times
from antiphon.models.spec import ModelSpec, PipelineKind

PACE = 0.9
"""Frames coming faster than one in ``PACE`` frame lengths are their sender's burst, not our delay."""


class TickLedger:
    """What the engine thread counts for each lease; it alone writes (:class:`EngineCounts`).

    ``step_ms`` and ``wait_ms`` are ``[L, RECENT_TICKS]``, the newest at ``taken mod RECENT_TICKS``.
    """

    def __init__(self, arena: Arena) -> None:
        """Count in this memory."""
        counts = arena.engine
        self.taken, self.silent, self.lost = counts.taken, counts.silent, counts.lost
        self.dropped_in, self.flushed_in = counts.dropped_in, counts.flushed_in
        self.flushed_out, self.first_complete_s = counts.flushed_out, counts.first_complete_s
        self.step_ms: FloatArray = arena.blocks["step_ms"]
        self.wait_ms: FloatArray = arena.blocks["wait_ms"]

    def take(self, leases: Counts, complete_s: Times) -> None:
        """A frame of each of ``leases [n]`` goes into a tick."""
        first = self.taken[leases] == 0
        self.first_complete_s[leases[first]] = complete_s[first]
        self.taken[leases] += 1

    def time(self, leases: Counts, wait_ms: Times, step_ms: float) -> None:
        """The tick took so long, after the frames had waited so long."""
        slots = (self.taken[leases] - 1) % RECENT_TICKS
        self.wait_ms[leases, slots] = wait_ms
        self.step_ms[leases, slots] = step_ms

    def recent(self, lease: int) -> tuple[list[float], list[float]]:
        """The step and wait times of a lease's last ticks, in no order."""
        count = min(int(self.taken[lease]), RECENT_TICKS)
        return self.step_ms[lease, :count].tolist(), self.wait_ms[lease, :count].tolist()


class SendLedger:
    """What one session's own side counts: frames sent, late ones, replies given up."""

    def __init__(
        self, spec: ModelSpec, *, is_live: bool, metrics: EngineMetrics, pressure: LatePressure
    ) -> None:
        """Start with nothing counted; ``metrics`` and ``pressure`` are shared by all sessions."""
        self._metrics = metrics
        self._pressure = pressure
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind is not PipelineKind.TTS  # text is complete long before it is spoken
        self._is_live = is_live
        self._is_heard = False
        self.due_s = float("-inf")
        self.out = 0
        self.late = 0
        self.dropped_out = 0
        self.flushed_out = 0

    def sent(
        self, complete_s: float, sent_s: float, peer_wait_s: float, *, first_complete_s: float | None
    ) -> None:
        """A reply was handed to the socket at ``sent_s``, of which ``peer_wait_s`` went into a slow peer.

        ``first_complete_s`` is when the session's first frame was complete, None for a reply without audio.

        A live frame's latency counts from when it was complete. What presses on admission is less: a frame
        that came in a burst counts from the time real time would have brought it, and the peer's own slowness
        is taken off. A pipeline that is not live counts every latency from when the frame is due: its callers
        may send a recording as fast as it is read, and a second at a time.
        """
        if first_complete_s is not None and not self._is_heard:
            self._is_heard = True
            self._metrics.first_audio_seconds.observe(sent_s - first_complete_s)
        if not self._has_deadlines:
            return
        due_s = self.due_s = max(complete_s, self.due_s + PACE * self._frame_s)
        latency_s = max(0.0, sent_s - (complete_s if self._is_live else due_s))
        self._metrics.frame_latency_seconds.observe(latency_s)
        if latency_s > self._frame_s:
            self.late += 1
            self._metrics.late_frames.inc()
        self._pressure.record(sent_s, is_late=sent_s - peer_wait_s - due_s > self._frame_s)


def overdue_frames(complete_s: Times, due_s: float, now_s: float, frame_s: float) -> int:
    """How many frames, complete at these times and dropped unheard at ``now_s``, were due long before.

    ``due_s`` is when the session's last reply was due. A frame that its sender's burst pushed out is not
    overdue, else a flood would make all others look well.
    """
    overdue = 0
    for frame_complete_s in complete_s.tolist():
        due_s = max(frame_complete_s, due_s + PACE * frame_s)
        overdue += now_s - due_s > frame_s
    return overdue


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all values do not exceed; 0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(fraction * len(ordered)) - 1))]
