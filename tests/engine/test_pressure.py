"""Lateness: it starts above one fraction, ends below another, and forgets old frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.config import EngineConfig
from antiphon.engine.metrics import CELLS, LateCount, LatePressure

CONFIG = EngineConfig(
    late_window_s=10.0, late_min_frames=5, late_refuse_fraction=0.10, late_admit_fraction=0.05
)


def record(pressure: LatePressure, now_s: float, *, frames: int, late: int) -> None:
    for index in range(frames):
        pressure.record_many(now_s, frames=1, late=int(index < late))


def test_it_rises_above_one_limit_and_falls_below_the_other() -> None:
    pressure = LatePressure(CONFIG)
    record(pressure, 100.0, frames=50, late=5)
    assert not pressure.is_high(100.0), "10 % is not above 10 %"
    record(pressure, 100.0, frames=1, late=1)
    assert pressure.is_high(100.0)
    record(pressure, 101.0, frames=49, late=0)
    assert pressure.count(101.0) == LateCount(100, 6)
    assert pressure.is_high(101.0), "6 % lies between the limits: it stays as it was"
    record(pressure, 101.0, frames=50, late=0)
    assert not pressure.is_high(101.0)
    record(pressure, 101.0, frames=1, late=1)
    assert not pressure.is_high(101.0)


def test_few_late_frames_say_nothing_and_a_few_more_do_however_few_there_are_in_all() -> None:
    pressure = LatePressure(CONFIG)
    record(pressure, 5.0, frames=4, late=4)
    assert not pressure.is_high(5.0)
    record(pressure, 5.0, frames=1, late=1)
    assert pressure.is_high(5.0)


def test_a_step_that_runs_on_is_late_before_any_reply_is() -> None:
    pressure = LatePressure(CONFIG)
    record(pressure, 5.0, frames=10, late=0)
    pressure.begin_step(5.0, rows=3, frame_s=0.08)
    assert pressure.count(5.07) == LateCount(10, 0)
    assert pressure.count(5.09) == LateCount(13, 3)
    assert not pressure.is_high(5.09), "3 late frames say nothing yet"
    assert pressure.count(5.17) == LateCount(16, 6)
    assert pressure.is_high(5.17)
    pressure.end_step()
    assert pressure.count(5.17) == LateCount(10, 0), "what it made late is recorded when it is sent"


def test_it_falls_by_itself_when_nobody_is_left_to_be_late() -> None:
    pressure = LatePressure(CONFIG)
    record(pressure, 50.0, frames=100, late=100)
    assert pressure.is_high(50.0)
    assert pressure.is_high(59.9)
    assert not pressure.is_high(60.0)
    assert pressure.count(60.0).frames == 0


def test_clocks_of_threads_may_be_slightly_out_of_order() -> None:
    pressure = LatePressure(CONFIG)
    pressure.record_many(20.5, frames=1, late=1)
    pressure.record_many(19.5, frames=1, late=1)
    assert pressure.count(20.5) == LateCount(2, 2)


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_the_window_holds_the_last_ten_cells(steps: list[tuple[float, bool]]) -> None:
    pressure = LatePressure(CONFIG)
    cell_s = CONFIG.late_window_s / CELLS
    now_s = 1000.0
    recorded: list[tuple[int, bool]] = []
    for gap_s, is_late in steps:
        now_s += gap_s
        pressure.record_many(now_s, frames=1, late=int(is_late))
        recorded.append((int(now_s / cell_s), is_late))
        recent = [late for cell, late in recorded if cell > int(now_s / cell_s) - CELLS]
        assert pressure.count(now_s) == LateCount(len(recent), sum(recent))
