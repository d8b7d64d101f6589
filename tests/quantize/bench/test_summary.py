"""From rounds to numbers: percentiles, ratios within a round, rows by the server's rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon_quantize.bench.card import TickPlan
from antiphon_quantize.bench.run import run, spread, summarise, take_turns, timely_rows
from tests.quantize.bench.fakes import FRAME_MS, FakeBackend, FakeClock, fake_player, turn


def test_percentiles_are_over_the_ticks_of_all_turns() -> None:
    plan = TickPlan((1,), 1.0, 2, 0)
    turns = [turn(1, range(1, 51)), turn(1, range(51, 101), late=3)]
    ((result,),) = summarise({"a": turns}, plan, frame_ms=FRAME_MS, baseline=None).values()
    assert (result.p50_ms, result.p95_ms, result.p99_ms, result.max_ms) == (50.0, 95.0, 99.0, 100.0)
    middle = result.turn_p50_ms
    assert (middle.median, middle.low, middle.high) == (50.0, 25.0, 75.0)
    assert (result.late, len(result.samples_ms)) == (3, 100)
    assert result.speed_ratio is None


def test_speed_is_a_ratio_within_each_turn() -> None:
    plan = TickPlan((1,), 1.0, 3, 0)
    # The machine is four times as slow in the second turn: medians of speeds would mix turns.
    plain = [turn(1, [1.0], speed) for speed in (100.0, 25.0, 100.0)]
    small = [turn(1, [1.0], speed) for speed in (200.0, 50.0, 160.0)]
    results = summarise({"plain": plain, "small": small}, plan, frame_ms=FRAME_MS, baseline="plain")
    (own,), (other,) = results["plain"], results["small"]
    assert own.speed_ratio is None
    assert other.speed_ratio == spread([2.0, 2.0, 1.6])
    assert own.frames_per_s == spread([100.0, 25.0, 100.0])
    assert own.realtime_factor == pytest.approx(100 * 0.08)
    swapped = summarise({"plain": plain, "small": small}, plan, frame_ms=FRAME_MS, baseline="small")
    assert swapped["plain"][0].speed_ratio == spread([0.5, 0.5, 0.625])
    assert swapped["small"][0].speed_ratio is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_a_spread_holds_its_median(values: list[float]) -> None:
    found = spread(values)
    assert found.low <= found.median <= found.high
    assert found.low in values
    assert found.high in values


@pytest.mark.parametrize(
    ("p99_ms", "expected"),
    [
        ([10.0, 20.0, 33.9], (4, True)),  # all within 34 ms: half a frame less the reserve
        ([10.0, 20.0, 34.1], (3, False)),
        ([10.0, 30.0, 70.0], (2, False)),
        ([34.1, 50.0, 70.0], (0, False)),
    ],
)
def test_rows_in_time_are_those_whose_two_ticks_fit_into_a_frame(
    p99_ms: list[float], expected: tuple[int, bool]
) -> None:
    plan = TickPlan((1, 2, 4), 1.0, 1, 0)
    turns = [turn(rows, [ms]) for rows, ms in zip(plan.rows, p99_ms, strict=True)]
    results = summarise({"a": turns}, plan, frame_ms=FRAME_MS, baseline=None)["a"]
    assert timely_rows(results, FRAME_MS) == expected


def test_models_take_turns_at_every_number_of_rows() -> None:
    clock, plan, said = FakeClock(), TickPlan((1, 2), 0.4, 2, 0), list[str]()
    backends = {"a": FakeBackend(clock, [4.0]), "b": FakeBackend(clock, lambda rows: 8.0 * rows)}
    players = {label: fake_player(clock, backend, plan) for label, backend in backends.items()}
    turns = take_turns(players, plan, said.append)
    assert [line.partition(":")[0] for line in said] == [
        f"turn {number}/2, {rows} rows, {label}" for number in (1, 2) for rows in (1, 2) for label in "ab"
    ]
    assert "8.00 ms a tick, 125.0 frames/s" in said[1]
    results = summarise(turns, plan, frame_ms=FRAME_MS, baseline=None)
    assert [result.speed_ratio.median for result in results["b"] if result.speed_ratio] == pytest.approx(
        [0.5, 0.25]
    )
    assert [result.p99_ms for result in results["b"]] == pytest.approx([8.0, 16.0])


def test_frames_of_different_lengths_are_not_compared() -> None:
    clock, plan = FakeClock(), TickPlan((1,), 0.4, 1, 0)
    backends = [FakeBackend(clock, [4.0]), FakeBackend(clock, [4.0])]
    one, other = (fake_player(clock, backend, plan) for backend in backends)
    other = replace(other, facts=replace(other.facts, frame_ms=40.0))
    makers = [("a", lambda: one), ("b", lambda: other)]
    with pytest.raises(ConfigError, match="cannot be compared: a 80 ms, b 40 ms"):
        run(
            makers,
            plan,
            baseline=None,
            quality=lambda _: None,
            command="",
            now=datetime(2026, 1, 1, tzinfo=UTC),
            tell=lambda _: None,
        )
    assert all(backend.closed for backend in backends)
    assert not any(backend.steps for backend in backends)
