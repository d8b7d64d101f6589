"""Limits of a probe, and a sentence for each limit that it exceeds."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_client.report import ProbeReport


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """The largest acceptable value of each measure; None is unlimited.

    Times are in ms, by the client's clock. ``rejected`` and ``failed`` default to 0: the other measures do
    not cover sessions that the server rejected or ended early.
    """

    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    first_audio_ms: float | None = None
    lost: int | None = None
    late: int | None = None
    gaps: int | None = None
    misplaced: int | None = None
    rejected: int | None = 0
    failed: int | None = 0

    def broken_by(self, report: ProbeReport) -> list[str]:
        """One sentence for each limit that the report exceeds, and one if the probe itself was late; empty if
        none.

        If a time could not be measured because there were no answers, it exceeds its limit. A probe without
        any answer fails even without limits.
        """
        latency, first = report.times.latency, report.first_audio_ms
        times = (
            ("p50 frame latency", latency.p50 if latency else None, self.p50_ms),
            ("p99 frame latency", latency.p99 if latency else None, self.p99_ms),
            ("longest frame latency", latency.max if latency else None, self.max_ms),
            ("longest time to first audio", first.max if first else None, self.first_audio_ms),
        )
        counts = (
            ("lost frames", report.counts.lost, self.lost),
            ("late frames", report.counts.late, self.late),
            ("playback gaps", report.counts.gaps, self.gaps),
            ("misplaced replies", report.counts.misplaced, self.misplaced),
            ("rejected sessions", report.rejected, self.rejected),
            ("failed sessions", report.failed, self.failed),
        )
        broken: list[str] = []
        if not report.answered + report.failed:
            words = report.per_session[0].detail
            broken = [f"none of {report.sessions} sessions was admitted" + (f": {words}" if words else "")]
        for name, time, limit in times:
            if _exceeds(time, limit):
                measured = "not measured, no frame was answered" if time is None else f"{time:.1f} ms"
                broken.append(f"{name}: {measured}, limit {limit:g} ms")
        broken += [f"{name}: {count}, limit {most}" for name, count, most in counts if _exceeds(count, most)]
        own = report.generator.lateness(report.frame_ms)
        if broken and own:
            broken.append(f"the probe itself was late, which may explain part of it: {own}")
        return broken


def _exceeds(value: float | None, limit: float | None) -> bool:
    return limit is not None and (value is None or value > limit)
