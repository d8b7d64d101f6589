"""Days of simulated callers: what has to hold whatever the rule is."""

from __future__ import annotations

import pytest

from lab.bench.scale_day import DAY_S, HOUR_S, CallDay
from lab.bench.scale_out import DAYS, RULES, ScaleCell, page
from lab.bench.scale_simulation import DayOutcome, DaySimulation, ScaledFleet, root_free, share_free

START_S = 300.0


def day(fleet: ScaledFleet, peak: float = 12, seed: int = 3) -> DayOutcome:
    return DaySimulation(fleet, CallDay(peak).callers(seed), DAY_S).run()


@pytest.mark.parametrize("name", RULES)
def test_without_callers_there_are_no_workers_beyond_the_fewest(name: str) -> None:
    outcome = day(ScaledFleet(RULES[name], START_S, fewest=2), peak=0)
    assert (outcome.arrived, outcome.refused, outcome.most_workers) == (0, 0, 2)
    assert outcome.paid_row_s == pytest.approx(2 * 16 * DAY_S, rel=1e-3)
    assert outcome.idle_share == 1.0


@pytest.mark.parametrize("start_s", [0.0, 60.0, 600.0])
@pytest.mark.parametrize("name", RULES)
def test_every_caller_is_served_or_refused_and_rows_are_never_overdrawn(name: str, start_s: float) -> None:
    outcome = day(ScaledFleet(RULES[name], start_s, rows=4, most=5), peak=16)
    assert outcome.arrived == outcome.served + outcome.refused > 1000
    assert len(outcome.waited_s) == outcome.queued <= outcome.served
    assert max(outcome.waited_s, default=0.0) <= ScaledFleet(RULES[name], start_s).patience_s
    assert outcome.used_row_s <= outcome.paid_row_s <= 5 * 4 * DAY_S
    assert outcome.most_workers <= 5 + 1  # one that drains beside those that stay


def test_more_free_rows_refuse_and_queue_fewer_and_cost_more() -> None:
    shares = [day(ScaledFleet(share_free(share), START_S), peak=30) for share in (0.0, 0.2, 0.5)]
    roots = [day(ScaledFleet(root_free(count), START_S), peak=30) for count in (0.0, 2.0, 6.0)]
    for outcomes in (shares, roots):
        turned = [outcome.refused + outcome.queued for outcome in outcomes]
        assert turned == sorted(turned, reverse=True)
        assert turned[0] > turned[-1]
        idle = [outcome.idle_share for outcome in outcomes]
        assert idle == sorted(idle)


def test_workers_that_start_at_once_turn_fewer_callers_away() -> None:
    quick, slow = (day(ScaledFleet(share_free(0.0), start_s), peak=30) for start_s in (0.0, 600.0))
    assert quick.refused < slow.refused


def test_used_rows_are_the_calls_that_were_held() -> None:
    """One caller of 100 s: its seconds and no others, and its row is taken from a worker that serves."""
    outcome = DaySimulation(ScaledFleet(share_free(0.0), 6.0), [(10.0, 100.0)], DAY_S).run()
    assert outcome.served == 1
    assert outcome.used_row_s == pytest.approx(100.0)
    assert outcome.paid_row_s == pytest.approx(16 * DAY_S)


def test_a_caller_waits_its_patience_and_no_longer() -> None:
    fleet = ScaledFleet(share_free(0.0), 6.0, rows=1, most=1, queue=1)
    callers = [(0.0, 30.0), (5.0, 30.0), (6.0, 30.0), (15.0, 30.0)]
    outcome = DaySimulation(fleet, callers, DAY_S).run()
    # The second gives up at 25 s; the third and the fourth find it in the queue, which is full.
    assert (outcome.served, outcome.refused, outcome.queued) == (1, 3, 0)


def test_a_day_is_the_same_for_the_same_seed_and_has_its_peak_and_burst() -> None:
    one, two = (list(CallDay(120).callers(5)) for _ in range(2))
    assert one == two
    assert one != list(CallDay(120).callers(6))
    hours = [sum(1 for at_s, _ in one if at_s // HOUR_S == hour) for hour in range(24)]
    assert max(hours) in (hours[19], hours[20])
    assert sum(length for _, length in one) / len(one) == pytest.approx(180.0, rel=0.05)
    burst = sum(1 for at_s, _ in one if 15 * HOUR_S <= at_s < 15 * HOUR_S + 300)
    before = sum(1 for at_s, _ in one if 15 * HOUR_S - 300 <= at_s < 15 * HOUR_S)
    assert burst > 1.4 * before


def test_the_page_has_a_row_a_cell() -> None:
    text = page([ScaleCell(12, 6.0, "2 roots", 0.001, 0.02, 9.0, 0.4, 3)])
    assert text.endswith("| 12 | 6 s | 2 roots | 0.100% | 2.000% | 9 s | 40.0% | 3 |\n")
    assert set(DAYS) == {12, 120, 1200}
