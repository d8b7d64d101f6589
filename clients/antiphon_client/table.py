"""A probe's report as a text table, and as plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

from antiphon_client.measures import Distribution
from antiphon_client.record import SessionOutcome
from antiphon_client.report import ProbeReport, SessionReport

SHOWN_SESSIONS = 16
"""Number of sessions above which only the worst are listed; the others are counted."""


def render_report(report: ProbeReport) -> str:
    """The whole report as text."""
    parts = [_summary(report), _distributions(report), _sessions(report), _generator(report)]
    return "\n\n".join(part for part in parts if part)


def report_to_json(report: ProbeReport) -> dict[str, Any]:
    """The whole report as plain values, in ms and s as the field names state."""
    values = dataclasses.asdict(report)
    values["answered_share"] = report.answered_share
    values["realtime_factor"] = report.realtime_factor
    values["generator"]["cpu_share"] = report.generator.cpu_share
    values["generator"]["lateness"] = report.generator.lateness(report.frame_ms)
    return values


def _summary(report: ProbeReport) -> str:
    counts = report.counts
    lines = [
        f"sessions   {report.sessions} asked, {report.answered} answered, {report.rejected} rejected, "
        f"{report.failed} failed",
        f"frames     {counts.sent} in, {counts.expected} due, {counts.answered} answered "
        f"({report.answered_share:.1%} of {counts.planned} planned)",
        f"faults     {counts.lost} lost, {counts.late} late, {counts.misplaced} misplaced, "
        f"{counts.gaps} gaps of {counts.gap_ms:.0f} ms in all",
        f"pace       {report.realtime_factor:.2f} s of audio a second over {report.duration_s:.1f} s, "
        f"{report.full_load_s:.1f} s at full load"
        + ("" if report.drift_ms is None else f", latency drift {report.drift_ms:+.1f} ms"),
    ]
    if report.cuts:
        lines.append(f"cuts       {report.cuts} resumed")
    if counts.server_late or counts.server_dropped:
        lines.append(f"server     counts {counts.server_late} late, {counts.server_dropped} dropped")
    return "\n".join(lines)


def _distributions(report: ProbeReport) -> str:
    rows: list[tuple[str, Distribution | None]] = [
        ("frame latency", report.times.latency),
        ("  server: wait + step", report.times.server),
        ("  server: wait", report.times.wait),
        ("  server: step", report.times.step),
        ("inter-arrival jitter", report.times.jitter),
        ("time to first audio", report.first_audio_ms),
        ("word latency", report.word_latency_ms),
        ("connect to ready", report.ready_ms),
        ("cut to resumed", report.outage_ms),
        ("audio gap by a cut", report.cut_gap_ms),
    ]
    head = f"{'ms':<24}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}"
    shown = [
        f"{name:<24}{found.p50:>9.2f}{found.p95:>9.2f}{found.p99:>9.2f}{found.max:>9.2f}"
        for name, found in rows
        if found is not None
    ]
    return "\n".join([head, *shown]) if shown else ""


def _sessions(report: ProbeReport) -> str:
    def badness(session: SessionReport) -> tuple[bool, int, float]:
        latency = session.times.latency
        is_answered = session.outcome is SessionOutcome.ANSWERED
        return not is_answered, session.counts.lost, latency.p99 if latency else 0.0

    worst = sorted(report.per_session, key=badness, reverse=True)[:SHOWN_SESSIONS]
    shown = worst if len(report.per_session) > SHOWN_SESSIONS else list(report.per_session)
    lines = [f"{'session':<9}{'first ms':>9}{'p50':>9}{'p99':>9}{'max':>9}{'lost':>7}{'late':>7}{'gaps':>7}"]
    lines += [_session(session) for session in shown]
    if len(shown) < len(report.per_session):
        lines.append(f"… the {len(shown)} worst of {len(report.per_session)} sessions")
    return "\n".join(lines)


def _session(session: SessionReport) -> str:
    latency, counts = session.times.latency, session.counts
    if latency is None:
        return f"{session.session:<9}{session.outcome}: {session.detail or 'no frame was answered'}"
    first = f"{session.first_audio_ms:.1f}" if session.first_audio_ms is not None else "-"
    line = (
        f"{session.session:<9}{first:>9}{latency.p50:>9.2f}{latency.p99:>9.2f}{latency.max:>9.2f}"
        f"{counts.lost:>7}{counts.late:>7}{counts.gaps:>7}"
    )
    return (
        line if session.outcome is SessionOutcome.ANSWERED else f"{line}  {session.outcome}: {session.detail}"
    )


def _generator(report: ProbeReport) -> str:
    own = report.generator
    line = (
        f"generator  {own.processes} process{'es' if own.processes > 1 else ''}, "
        f"{own.cpu_share:.1%} of {own.cores} cores"
    )
    for name, found in (("messages late", own.send_late_ms), ("event loop late", own.loop_late_ms)):
        if found is not None:
            line += f"; {name} p99 {found.p99:.1f} ms, max {found.max:.1f} ms"
    line += f"; {own.dropped_messages} messages too old to send" if own.dropped_messages else ""
    late = own.lateness(report.frame_ms)
    return f"{line}\nattention  the probe was late itself: {late}" if late else line
