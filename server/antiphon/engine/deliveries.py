"""Replies after they left the engine: metrics, and their effect on admission."""

from __future__ import annotations

from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.ipc.arena import Times


class LatencyMetrics:
    """What front ends hand to sockets, in an engine's metrics and late pressure; from any thread."""

    def __init__(self, metrics: EngineMetrics, pressure: LatePressure) -> None:
        """Report to the engine's own."""
        self._metrics, self._pressure = metrics, pressure

    def sent_many(self, sent_s: float, latency_s: Times, *, late: int, pressing: int) -> None:
        """Replies were handed on at about ``sent_s``, after ``latency_s [n]``; some of them late."""
        self._metrics.frame_latency_seconds.observe_many(latency_s)
        if late:
            self._metrics.late_frames.inc(late)
        self._pressure.record_many(sent_s, frames=latency_s.size, late=pressing)

    def first_audio(self, seconds: float) -> None:
        """A session's first audio came."""
        self._metrics.first_audio_seconds.observe(seconds)

    def refused(self, frames: int) -> None:
        """Frames found no slot in a full ring."""
        self._metrics.dropped_in.inc(frames)
