"""Seconds that keys have used in a day, summed over front ends."""

from __future__ import annotations

from antiphon.supervisor.messages import Use
from antiphon.supervisor.shared import DaySeconds


def test_seconds_of_a_day_are_those_of_all_front_ends_and_of_ended_ones() -> None:
    seconds = DaySeconds()
    assert seconds.report(1, Use("2001-09-09", (("alice", 5.0),))).seconds == (("alice", 5.0),)
    assert seconds.report(2, Use("2001-09-09", (("alice", 1.0), ("bob", 2.0)))).seconds == (
        ("alice", 6.0),
        ("bob", 2.0),
    )
    assert seconds.report(2, Use("2001-09-09", (("alice", 3.0),))).seconds == (("alice", 8.0),)
    seconds.gone(1)
    assert seconds.report(1, Use("2001-09-09", (("alice", 0.5),))).seconds == (("alice", 8.5),)
    assert seconds.report(1, Use("2001-09-10", (("alice", 0.25),))).seconds == (("alice", 0.25),)
    assert seconds.report(2, Use("2001-09-09", (("alice", 9.0),))).seconds == (("alice", 14.5),)
    assert seconds.report(1, Use("2001-09-10", (("alice", 0.25),))).seconds == (("alice", 0.25),)


def test_many_days_are_not_kept() -> None:
    seconds = DaySeconds()
    for day in range(10, 30):
        assert seconds.report(1, Use(f"2001-09-{day}", (("alice", 1.0),))).seconds == (("alice", 1.0),)
    seconds.gone(1)
    assert seconds.report(1, Use("2001-09-29", (("alice", 0.0),))).seconds == (("alice", 1.0),)
    assert seconds.report(1, Use("2001-09-10", (("alice", 0.0),))).seconds == (("alice", 0.0),)
