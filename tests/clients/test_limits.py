"""Messages for exceeded limits of a report."""

from __future__ import annotations

import pytest

from antiphon_client.limits import ProbeLimits
from antiphon_client.record import SessionOutcome, SessionRecord
from antiphon_client.report import GeneratorReport, ProbeReport, report_probe
from tests.clients.records import NAN, make_record

GENERATOR = GeneratorReport(processes=1, cores=2, cpu_s=0.0, wall_s=1.0, loop_late_ms=None)


def report(*records: SessionRecord) -> ProbeReport:
    return report_probe(records, GENERATOR)


GOOD = report(make_record([10.0, 20.0, 30.0]))
FAULTY = report(
    make_record([10.0, NAN, 200.0, 10.0], misplaced=2),
    make_record([], session=1, outcome=SessionOutcome.REJECTED, planned_frames=4),
)


def test_without_limits_frames_break_none_but_a_session_not_let_in_does() -> None:
    assert ProbeLimits(rejected=None).broken_by(FAULTY) == []
    assert ProbeLimits().broken_by(FAULTY) == ["rejected sessions: 1, limit 0"]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (ProbeLimits(p50_ms=5, rejected=1), "p50 frame latency: 10.0 ms, limit 5 ms"),
        (ProbeLimits(p99_ms=80, rejected=1), "p99 frame latency: 200.0 ms, limit 80 ms"),
        (ProbeLimits(max_ms=199.5, rejected=1), "longest frame latency: 200.0 ms, limit 199.5 ms"),
        (ProbeLimits(first_audio_ms=60, rejected=1), "longest time to first audio: 70.0 ms, limit 60 ms"),
        (ProbeLimits(lost=0, rejected=1), "lost frames: 1, limit 0"),
        (ProbeLimits(late=0, rejected=1), "late frames: 1, limit 0"),
        (ProbeLimits(gaps=0, rejected=1), "playback gaps: 2, limit 0"),
        (ProbeLimits(misplaced=1, rejected=1), "misplaced replies: 2, limit 1"),
        (ProbeLimits(rejected=0), "rejected sessions: 1, limit 0"),
    ],
)
def test_each_limit_is_broken_by_more_and_kept_by_as_much(limits: ProbeLimits, sentence: str) -> None:
    assert limits.broken_by(FAULTY) == [sentence]


def test_limits_that_are_just_kept_break_nothing() -> None:
    kept = ProbeLimits(
        p50_ms=20.001, p99_ms=30.001, max_ms=30.001, first_audio_ms=90, lost=0, late=0, gaps=2, rejected=0
    )
    assert kept.broken_by(GOOD) == []


def test_a_failed_session_is_always_a_fault() -> None:
    failed = report(make_record([10.0], outcome=SessionOutcome.FAILED, planned_frames=5))
    assert ProbeLimits().broken_by(failed) == ["failed sessions: 1, limit 0"]


def test_a_probe_nobody_answered_breaks_even_without_limits() -> None:
    nobody = report(make_record([], outcome=SessionOutcome.REJECTED, planned_frames=5))
    assert ProbeLimits(p99_ms=80).broken_by(nobody) == [
        "none of 1 sessions was admitted: the server is full: 0 of 4 rows are free",
        "p99 frame latency: not measured, no frame was answered, limit 80 ms",
        "rejected sessions: 1, limit 0",
    ]
