"""Late, lost and rejected frames of a report, from constructed records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_client.limits import ProbeLimits
from antiphon_client.measures import Distribution
from antiphon_client.record import SessionOutcome, SessionRecord
from antiphon_client.report import GeneratorReport, ProbeReport, report_probe, report_session
from tests.clients.records import NAN, make_record

GENERATOR = GeneratorReport(processes=1, cores=2, cpu_s=3.0, wall_s=10.0, loop_late_ms=None)


def report(*records: SessionRecord) -> ProbeReport:
    return report_probe(records, GENERATOR)


def test_a_frame_is_late_above_80_ms_and_not_at_it() -> None:
    found = report_session(make_record([79.9, 80.1, 30.0], origin_s=0.0))
    assert found.counts.late == 1
    assert found.times.latency is not None
    assert found.times.latency.max == pytest.approx(80.1)


def test_lost_is_a_frame_without_reply_whose_deadline_passed_while_the_session_lived() -> None:
    record = make_record([10.0, NAN, 10.0, NAN], origin_s=1.0, ended_s=1.0 + 3 * 0.08 + 0.05)
    assert report_session(record).counts.lost == 1
    longer = make_record([10.0, NAN, 10.0, NAN], origin_s=1.0, ended_s=1.5)
    assert report_session(longer).counts.lost == 2


def test_delay_frames_at_the_start_are_neither_expected_nor_lost() -> None:
    counts = report_session(make_record([NAN, NAN, 10.0, 10.0], delay_frames=2)).counts
    assert (counts.planned, counts.sent, counts.expected, counts.answered, counts.lost) == (2, 4, 2, 2, 0)


def test_rejected_sessions_stay_in_the_denominator() -> None:
    rejected = make_record([], session=1, outcome=SessionOutcome.REJECTED, planned_frames=4)
    found = report(make_record([10.0] * 4), rejected)
    assert (found.sessions, found.answered, found.rejected, found.failed) == (2, 1, 1, 0)
    assert found.counts.planned == 8
    assert found.counts.lost == 0
    assert found.answered_share == 0.5


def test_a_session_cut_off_is_failed_and_its_overdue_frames_are_lost() -> None:
    failed = make_record([10.0, NAN, NAN], outcome=SessionOutcome.FAILED, planned_frames=100, ended_s=1.2)
    found = report(failed)
    assert found.failed == 1
    assert found.counts.lost == 1
    assert found.answered_share == 0.01


def test_first_audio_runs_from_the_first_message_and_ready_from_the_connection() -> None:
    found = report_session(make_record([30.0, 30.0]))
    assert found.first_audio_ms == pytest.approx(90.0)
    assert found.ready_ms == pytest.approx(100.0)
    nothing = report_session(make_record([], outcome=SessionOutcome.REJECTED))
    assert nothing.first_audio_ms is None
    assert nothing.times.latency is None


def test_server_stamps_are_waiting_plus_step() -> None:
    found = report(make_record([30.0] * 5))
    assert found.times.server is not None
    assert found.times.server.max == 6.0
    assert found.times.step is not None
    assert found.times.step.max == 5.0


def test_full_load_is_the_time_all_answered_sessions_overlap() -> None:
    found = report(make_record([9.0] * 101), make_record([9.0] * 101, origin_s=3.0))
    assert found.full_load_s == pytest.approx(6.0)
    alone = report(make_record([], outcome=SessionOutcome.REJECTED, planned_frames=3))
    assert alone.full_load_s == 0.0
    assert alone.frames_per_s == 0.0


def test_throughput_of_one_real_time_session_is_about_one_second_a_second() -> None:
    assert report(make_record([9.0] * 1000)).realtime_factor == pytest.approx(1.0, rel=0.01)


def test_the_generators_own_share_and_lateness_are_reported() -> None:
    generator = report(make_record([9.0] * 10, dropped_messages=3)).generator
    assert generator.cpu_share == pytest.approx(0.15)
    assert generator.send_late_ms is not None
    assert generator.send_late_ms.p50 == pytest.approx(0.2)
    assert generator.dropped_messages == 3


@pytest.mark.parametrize(
    ("record", "loop_ms", "words"),
    [
        (make_record([9.0] * 10), 39.0, ""),
        (make_record([9.0] * 10), 41.0, "its event loop woke 41 ms late (p99)"),
        (make_record([9.0] * 10, dropped_messages=3), 0.0, "3 of its messages were too old to send"),
    ],
)
def test_a_generator_that_was_late_itself_says_so(record: SessionRecord, loop_ms: float, words: str) -> None:
    late = replace(GENERATOR, loop_late_ms=Distribution.of([loop_ms] * 3))
    assert report_probe([record], late).generator.lateness(80.0) == words
    broken = ProbeLimits(p50_ms=1.0).broken_by(report_probe([record], late))
    doubt = f"the probe itself was late, which may explain part of it: {words}"
    assert broken[1:] == ([doubt] if words else [])


def test_a_report_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 session, got 0"):
        report()


@given(
    st.lists(
        st.lists(st.one_of(st.floats(0, 500), st.just(NAN)), max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_totals_are_the_sum_of_sessions_and_every_frame_is_accounted(sessions: list[list[float]]) -> None:
    found = report(*(make_record(frames, session=k) for k, frames in enumerate(sessions)))
    counts = found.counts
    assert counts.answered + counts.lost == counts.expected == counts.sent == sum(map(len, sessions))
    for name in ("sent", "answered", "lost", "late", "gaps"):
        assert getattr(counts, name) == sum(getattr(s.counts, name) for s in found.per_session)
