"""The schedule with a fake clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_client.pacing import Pacer

PERIOD_S = 0.02


class FakeClock:
    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def run(pacer: Pacer, clock: FakeClock, pauses_s: list[float]) -> list[tuple[int, float, float]]:
    """Send everything; before message k the sender is held up by pauses_s[k]. (message, sent, late)."""
    sent: list[tuple[int, float, float]] = []
    turns = 0
    while not pacer.is_done:
        clock.sleep(pacer.wait_s(clock.now_s))
        clock.sleep(pauses_s[turns] if turns < len(pauses_s) else 0.0)
        turns += 1
        turn = pacer.take(clock.now_s)
        if turn is not None:
            sent.append((turn.message, clock.now_s, turn.late_s))
    return sent


def test_a_punctual_sender_keeps_the_absolute_schedule() -> None:
    clock = FakeClock(100.0)
    sent = run(Pacer(origin_s=100.5, period_s=PERIOD_S, messages=500), clock, [])
    assert [message for message, _, _ in sent] == list(range(500))
    for message, now_s, late_s in sent:
        assert now_s == pytest.approx(100.5 + message * PERIOD_S, abs=1e-9)
        assert late_s == pytest.approx(0.0, abs=1e-9)


def test_small_delays_are_recorded_and_do_not_add_up() -> None:
    clock = FakeClock()
    sent = run(Pacer(origin_s=0.0, period_s=PERIOD_S, messages=100), clock, [0.007] * 100)
    assert all(late_s == pytest.approx(0.007, abs=1e-9) for _, _, late_s in sent)
    assert sent[-1][1] == pytest.approx(99 * PERIOD_S + 0.007, abs=1e-9)


def test_a_short_pause_shifts_the_schedule_by_whole_periods_and_does_not_burst() -> None:
    clock = FakeClock()
    pacer = Pacer(origin_s=0.0, period_s=PERIOD_S, messages=50)
    sent = run(pacer, clock, [0.0] * 10 + [0.107])
    assert [message for message, _, _ in sent] == list(range(50))
    assert sent[10][2] == pytest.approx(0.107)
    assert pacer.due_s == pytest.approx((50 + 5) * PERIOD_S)
    assert sent[11][1] - sent[10][1] == pytest.approx(PERIOD_S - 0.007)
    assert pacer.dropped == 0


def test_after_a_long_pause_what_is_older_than_400_ms_is_dropped() -> None:
    clock = FakeClock()
    pacer = Pacer(origin_s=0.0, period_s=PERIOD_S, messages=200)
    sent = run(pacer, clock, [0.0] * 10 + [1.0])
    assert pacer.dropped == 30
    assert pacer.due_s == pytest.approx(200 * PERIOD_S + 0.4)
    assert [message for message, _, _ in sent[9:12]] == [9, 40, 41]


def test_a_pause_past_the_end_drops_the_rest_and_ends() -> None:
    pacer = Pacer(origin_s=0.0, period_s=PERIOD_S, messages=5)
    assert pacer.take(10.0) is None
    assert pacer.is_done
    assert pacer.dropped == 5


def test_a_period_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0 s, got 0 s"):
        Pacer(origin_s=0.0, period_s=0, messages=1)


@given(
    pauses_ms=st.lists(st.integers(0, 1500), max_size=30),
    period_ms=st.sampled_from([20, 40, 80]),
    origin_ms=st.integers(0, 1000),
)
def test_no_burst_no_early_message_and_nothing_unaccounted(
    pauses_ms: list[int], period_ms: int, origin_ms: int
) -> None:
    """Two messages never leave in one period of the schedule; every message is sent or counted."""
    clock = FakeClock()
    period_s = period_ms / 1000
    pacer = Pacer(origin_s=origin_ms / 1000, period_s=period_s, messages=60)
    sent = run(pacer, clock, [pause / 1000 for pause in pauses_ms])
    assert len(sent) + pacer.dropped == 60
    assert pacer.due_s - origin_ms / 1000 - 60 * period_s <= 0.4 + 1e-9
    indices = [message for message, _, _ in sent]
    assert indices == sorted(set(indices))
    ticks = [(now_s - origin_ms / 1000) / period_s for _, now_s, _ in sent]
    assert all(tick >= message - 1e-6 for tick, message in zip(ticks, indices, strict=True))
    for before, after in itertools.pairwise(ticks):
        assert int(after + 1e-6) > int(before - 1e-6)
