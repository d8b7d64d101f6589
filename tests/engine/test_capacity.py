"""The number of rows that fit into memory and into the time of a frame."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.backends.stopwatch import StepClock
from antiphon.cores import core_time
from antiphon.engine.sizing import MemoryFacts, check_fit, rows_that_fit
from antiphon.engine.tick_times import (
    GROWTH,
    HostLoad,
    TickRule,
    TickTime,
    measure_tick,
    next_rows,
    rows_in_time,
    tick_limit_s,
    tick_s,
)
from antiphon.errors import ConfigError
from tests.engine.fakes import FakeBackend, FakeClock, fake_spec

MEMORY = MemoryFacts(total_bytes=10_000, weights_bytes=4_000, row_bytes=1_500)


def test_what_does_not_fit_is_refused_with_all_the_bytes() -> None:
    check_fit(MEMORY, 4)
    wanted = (
        "5 rows do not fit: weights 4,000 bytes + 5 x 1,500 bytes = 11,500 bytes, "
        "but there are 10,000; 4 rows would fit"
    )
    with pytest.raises(ConfigError) as caught:
        check_fit(MEMORY, 5)
    assert str(caught.value) == wanted


def test_weights_alone_that_do_not_fit_leave_no_row() -> None:
    with pytest.raises(ConfigError, match="0 rows would fit"):
        check_fit(MemoryFacts(100, 200, 0), 1)
    wanted = (
        "not even one row fits: weights 9,000 bytes + one row 1,500 bytes = 10,500 bytes, "
        "but only 9,000 of 10,000 may be used"
    )
    with pytest.raises(ConfigError) as caught:
        rows_that_fit(MemoryFacts(10_000, 9_000, 1_500), reserve_fraction=0.1, at_most=8)
    assert str(caught.value) == wanted


@given(
    st.builds(MemoryFacts, st.integers(1, 10**12), st.integers(0, 10**12), st.integers(0, 10**10)),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.integers(1, 300),
)
def test_the_most_rows_that_leave_the_reserve(memory: MemoryFacts, reserve: float, at_most: int) -> None:
    usable = int(memory.total_bytes * (1 - reserve))
    try:
        rows = rows_that_fit(memory, reserve_fraction=reserve, at_most=at_most)
    except ConfigError:
        assert memory.needed(1) > usable
        return
    assert 1 <= rows <= at_most
    assert memory.needed(rows) <= usable
    assert rows == at_most or memory.needed(rows + 1) > usable
    check_fit(memory, rows)


def test_two_ticks_fit_into_a_frame_less_its_reserve() -> None:
    assert tick_limit_s(0.080, reserve_fraction=0.0) == pytest.approx(0.040)
    assert tick_limit_s(0.080, reserve_fraction=0.25) == pytest.approx(0.030)


def test_rows_in_time_lie_on_the_line_between_two_measured_ticks() -> None:
    ticks = [TickTime(1, 0.010), TickTime(2, 0.012), TickTime(4, 0.020), TickTime(8, 0.040)]
    assert rows_in_time(ticks, 0.040) == 8
    assert rows_in_time(ticks, 0.030) == 6
    assert rows_in_time(ticks, 0.0299) == 5
    assert rows_in_time(ticks, 0.019) == 3
    assert rows_in_time(ticks, 0.011) == 1
    assert rows_in_time(ticks, 0.001) == 1, "a machine too slow for one row still serves it"
    assert rows_in_time(ticks[:2], 1.0) == 2, "nothing is promised beyond what was measured"


@given(st.floats(0, 0.03), st.floats(1e-4, 0.02))
def test_ticks_are_timed_a_little_beyond_the_limit(run_s: float, row_s: float) -> None:
    ticks = [TickTime(1, run_s + row_s)]
    while ticks[-1].seconds <= 0.034:
        rows = next_rows(ticks, 0.034)
        assert ticks[-1].rows < rows <= GROWTH * ticks[-1].rows
        ticks.append(TickTime(rows, run_s + row_s * rows))
    in_time = max(1, int((0.034 - run_s) / row_s + 1e-6))
    assert abs(rows_in_time(ticks, 0.034) - in_time) <= 1
    assert ticks[-1].rows <= 1.25 * in_time + 2
    assert next_rows([TickTime(4, 0.02), TickTime(8, 0.02)], 0.034) == 16, "time does not grow with rows"
    assert [next_rows([TickTime(1, first_s)], 0.034) for first_s in (0.0, 0.005, 0.011, 0.03)] == [8, 6, 3, 2]


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=9), st.floats(1e-4, 1.0))
def test_rows_in_time_never_exceed_the_first_row_count_that_was_late(
    seconds: list[float], limit_s: float
) -> None:
    ticks = [TickTime(2**power, value) for power, value in enumerate(seconds)]
    rows = rows_in_time(ticks, limit_s)
    late = [tick.rows for tick in ticks if tick.seconds > limit_s]
    assert 1 <= rows <= ticks[-1].rows
    assert not late or rows < late[0] or late[0] == 1


def test_what_other_models_took_is_not_there_any_more() -> None:
    shared = MemoryFacts(10_000, 1_000, 1_000, taken_bytes=5_000)
    check_fit(shared, 4)
    with pytest.raises(ConfigError) as refused:
        check_fit(shared, 5)
    assert str(refused.value).endswith(
        "= 6,000 bytes, but there are 5,000 (5,000 of 10,000 belong to other models); 4 rows would fit"
    )
    assert rows_that_fit(shared, reserve_fraction=0.1, at_most=99) == 3
    assert rows_that_fit(shared, reserve_fraction=0.1, at_most=99, models_waiting=2) == 1
    with pytest.raises(ConfigError) as refused:
        rows_that_fit(shared, reserve_fraction=0.1, at_most=99, models_waiting=3)
    assert str(refused.value).endswith(
        "but only 1,333 of 10,000 may be used, a part of 3 (5,000 of 10,000 belong to other models)"
    )
    with pytest.raises(ConfigError, match="but there are 0 "):
        check_fit(MemoryFacts(10_000, 1_000, 1_000, taken_bytes=12_000), 1)


def test_ticks_of_models_that_share_a_device_make_each_other_longer() -> None:
    assert tick_limit_s(0.080, reserve_fraction=0.0, models=2) == pytest.approx(0.020)


LOAD = HostLoad(call_s=0.0008, caller_s=0.0004, cores=2, loops=2)


def line_of_ticks(row_s: float) -> list[TickTime]:
    return [TickTime(rows, row_s * rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]


@pytest.mark.parametrize(
    ("threads", "models", "calls", "slowdown"),
    [
        (1, 1, 40, 1.3),  # 0.6 of a core: the other one is free
        (1, 1, 100, 2.6),  # 1.5 cores: half of a core is taken from the tick
        (2, 1, 40, 3.25),  # 0.6 of a core, for which both threads wait
        (1, 3, 10, 3.3 / 0.55),  # 0.45 of a core, for which three threads on two cores wait
        (0, 1, 40, 1.0),
    ],
)
def test_sockets_take_cores_from_a_tick(threads: int, models: int, calls: int, slowdown: float) -> None:
    assert LOAD.slowdown(calls, 0.08, threads=threads, models=models) == pytest.approx(slowdown)


@pytest.mark.parametrize(
    ("threads", "models", "slowdown"), [(2, 1, 1.3 / 0.7), (1, 1, 1.3), (2, 2, float("inf"))]
)
def test_threads_with_rows_of_their_own_hardly_wait_for_each_other(
    threads: int, models: int, slowdown: float
) -> None:
    """40 calls take 0.6 of one of two cores."""
    found = LOAD.slowdown(40, 0.08, threads=threads, models=models, splits_rows=True)
    assert found == pytest.approx(slowdown)
    rule = TickRule(0.08, 0.15, LOAD, threads, models, splits_rows=True)
    assert rule.slowdown(40) == pytest.approx(slowdown)


def test_event_loops_and_cores_have_an_end() -> None:
    assert LOAD.slowdown(66, 0.08, threads=2) > 50
    assert LOAD.slowdown(67, 0.08, threads=2) == float("inf"), "a core for sockets stalls both threads"
    alone = replace(LOAD, loops=1, cores=64)
    assert alone.slowdown(84, 0.08, threads=0) == 1.0
    assert alone.slowdown(86, 0.08, threads=0) == float("inf"), "0.86 of a core on one event loop"


def test_sockets_leave_fewer_calls_than_ticks_alone_would_allow() -> None:
    ticks = line_of_ticks(0.00087)
    quiet = TickRule(0.08, 0.15, threads=2)
    assert quiet.calls(ticks, 256) == 91
    assert replace(quiet, load=LOAD).calls(ticks, 256) == 33
    assert replace(quiet, load=LOAD, threads=1).calls(ticks, 256) == 68
    assert replace(quiet, load=LOAD, is_packed=False).calls(ticks, 256) == 20


ROWS = st.builds(lambda first, row: (first * 0.001, row * 0.0001), st.integers(0, 3), st.integers(1, 20))
"""Seconds of a tick: without rows, and for each row."""
QUOTAS = st.sampled_from([(0.5, 0.1), (0.25, 0.1), (0.75, 0.1), (0.9, 0.1), (0.5, 0.02), (0.5, 0.3)])


def latest_s(
    calls: int,
    tick: tuple[float, float],
    socket_s: float,
    quota: tuple[float, float],
    *,
    is_packed: bool = True,
) -> float:
    """The longest wait of a frame in 3 s of calls at random phases, on a core that the kernel takes away from
    a process that has used its quota, until the next period.
    """
    chance, (share, period_s) = Random(calls), quota
    phases = [0.08 * chance.random() for _ in range(calls)]
    arrivals = sorted(phase + 0.08 * number for phase in phases for number in range(40))
    now_s, period, used_s, latest, waiting = 0.0, 0, 0.0, 0.0, list[float]()

    def work(seconds: float) -> None:
        nonlocal now_s, period, used_s
        while seconds > 1e-9:
            if (current := int(now_s / period_s + 1e-9)) != period:
                period, used_s = current, 0.0
            end_s = (period + 1) * period_s
            done_s = min(seconds, share * period_s - used_s, end_s - now_s)
            seconds, used_s = seconds - done_s, used_s + done_s
            now_s = now_s + done_s if done_s > 1e-9 else end_s

    while arrivals or waiting:
        if not waiting:
            now_s = max(now_s, arrivals[0])
        while arrivals and arrivals[0] <= now_s:
            waiting.append(arrivals.pop(0))
            work(socket_s)
        work(tick[0] + tick[1] * (len(waiting) if is_packed else calls))
        latest, waiting = max(latest, now_s - waiting[0]), []
    return latest


@settings(max_examples=40)
@given(ROWS, st.floats(0.0002, 0.003), QUOTAS, st.booleans())
def test_with_a_quota_below_one_core_no_frame_of_the_chosen_calls_is_late(
    tick: tuple[float, float], socket_s: float, quota: tuple[float, float], is_packed: bool
) -> None:
    ticks = [TickTime(rows, tick[0] + tick[1] * rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128)]
    load = HostLoad(socket_s, cores=quota[0], period_s=quota[1], loops=1)
    calls = TickRule(0.08, 0.15, load, threads=1, is_packed=is_packed).calls(ticks, 128)
    assert calls == 1 or latest_s(calls, tick, socket_s, quota, is_packed=is_packed) < 0.08


def test_a_quota_below_one_core_is_charged_with_its_pauses(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    cores, period_s = core_time(tmp_path, tmp_path / "none")
    quota = TickRule(0.08, 0.15, replace(LOAD, cores=cores, period_s=period_s, loops=1), threads=1)
    calls = quota.calls(line_of_ticks(0.00087), 256)
    assert calls == 12
    assert 2 * calls * (0.0012 + 0.00087) <= 0.05 < 2 * (calls + 1) * (0.0012 + 0.00087), (
        "two frames a period"
    )
    assert latest_s(18, (0.0011, 0.00087), 0.0012, (0.5, 0.1)) > 0.08, "what its average allows"
    assert quota.words.endswith("; the CPU quota is 0.50 cores")
    assert "quota" not in replace(quota, load=LOAD).words


@pytest.mark.parametrize(("period_s", "calls"), [(0.1, 8), (0.02, 13), (0.005, 15), (0.3, 11)])
def test_the_period_of_a_quota_counts(period_s: float, calls: int) -> None:
    ticks = [TickTime(rows, 0.0011 + 0.00087 * rows) for rows in (1, 2, 4, 8, 16, 32)]
    load = replace(LOAD, cores=0.5, period_s=period_s, loops=1)
    assert TickRule(0.08, 0.15, load, threads=1).calls(ticks, 256) == calls


@given(st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True), st.integers(1, 200))
def test_a_tick_between_measured_ones_is_on_their_line(sizes: list[int], rows: int) -> None:
    ticks = [TickTime(size, 0.003 + 0.001 * size) for size in sorted(sizes)]
    seconds = tick_s(ticks, rows)
    if len(ticks) > 1 and rows >= ticks[0].rows:
        assert seconds == pytest.approx(0.003 + 0.001 * rows)
    else:
        assert seconds == pytest.approx(ticks[0].seconds * rows / ticks[0].rows)


def test_more_threads_than_cores_make_a_tick_longer() -> None:
    assert replace(LOAD, cores=1).slowdown(0, 0.08, threads=2) == pytest.approx(2.0)


def test_a_tick_of_one_row_that_sockets_make_too_long_leaves_one_call() -> None:
    ticks = line_of_ticks(0.033)
    quiet = TickRule(0.08, 0.15, threads=1)
    assert quiet.calls(ticks, 256) == 2
    assert replace(quiet, load=LOAD).calls(ticks, 256) == 1, "43 ms, the limit is 34"
    full = HostLoad(call_s=0.04, caller_s=0.0, cores=8, loops=1)
    assert replace(quiet, load=full).calls(line_of_ticks(0.001), 256) == 1, (
        "two calls take a whole event loop"
    )


@given(
    st.floats(1e-5, 0.1),
    st.floats(0, 0.002),
    st.integers(0, 4),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_more_load_never_gives_more_calls(
    row_s: float, call_s: float, threads: int, models: int, is_packed: bool, splits_rows: bool
) -> None:
    load = HostLoad(call_s, call_s / 2, cores=4, loops=3)
    rule = TickRule(0.08, 0.15, load, threads, models, is_packed=is_packed, splits_rows=splits_rows)
    more = replace(rule, load=replace(rule.load, call_s=1.5 * call_s))
    ticks = line_of_ticks(row_s)
    assert 1 <= more.calls(ticks, 100) <= rule.calls(ticks, 100) <= 100


@pytest.mark.parametrize(
    ("threads", "wall", "thread", "process", "seconds"),
    [
        (1, 5.0, 1.0, 1.1, 1.1),  # other programs took the core for most of the time
        (2, 1.0, 0.9, 1.6, 0.9),
        (2, 5.0, 0.2, 1.8, 0.9),  # in parts: the calling thread sleeps while others compute
        (1, 1.0, 1.0, 1.3, 1.0),  # another thread of the process
        (0, 5.0, 0.1, 0.1, 5.0),  # a device computes
    ],
)
def test_the_time_of_a_tick_beside_other_programs(
    threads: int, wall: float, thread: float, process: float, seconds: float
) -> None:
    clock = StepClock(*(iter([0.0, value]).__next__ for value in (wall, thread, process)))
    assert clock.seconds(lambda: None, threads) == pytest.approx(seconds)


@given(st.integers(1, 40), st.integers(0, 99))
def test_the_ready_rows_of_a_timed_tick_are_any_of_the_calls(rows: int, calls: int) -> None:
    backend = FakeBackend(fake_spec(), 64)
    measure_tick(backend, rows, StepClock(FakeClock()), calls)
    ready = backend.steps[-1].rows.tolist()
    assert ready == sorted(set(ready))
    assert len(ready) == rows
    assert ready[-1] < max(rows, min(calls, 64))


def test_a_tick_whose_rows_are_apart_is_timed_as_such() -> None:
    backend = FakeBackend(fake_spec(), 64)
    measure_tick(backend, 8, StepClock(FakeClock()), 18)
    ready = backend.steps[-1].rows
    assert np.diff(ready).max() > 1, "calls at random phases leave idle rows between the ready ones"


def test_a_busy_start_leaves_the_number_of_calls_as_it_is() -> None:
    """A neighbour that takes nine tenths of the processor triples no tick of a backend on the CPU."""

    def measured(busy: float) -> list[TickTime]:
        now = {"wall": 0.0, "cpu": 0.0}
        clock = StepClock(*(partial(now.__getitem__, name) for name in ("wall", "cpu", "cpu")))

        def step_s(rows: int) -> float:
            now["wall"] += 0.002 * rows / (1 - busy)
            now["cpu"] += 0.002 * rows
            return 0.0

        backend = FakeBackend(fake_spec(), 16, clock=FakeClock(), step_s=step_s, cpu_threads=1)
        return [measure_tick(backend, rows, clock, rows) for rows in (1, 2, 4, 8, 16)]

    assert measured(0.9) == measured(0.0)
