"""What is chosen by the times of runs, and how these are taken."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from antiphon.backends.onnx import trial
from antiphon.backends.onnx.trial import MOST_TURNS, Choice, Times, Way, time_ways

WHOLE = {1: [1.0], 2: [1.5], 4: [3.0], 7: [6.0]}


@pytest.mark.parametrize(
    ("parts", "apart_from"),
    [
        ({1: 1.1, 2: 1.6, 4: 2.9, 7: 4.0}, 4),
        ({1: 1.1, 2: 1.4, 4: 2.9, 7: 4.0}, 2),
        ({1: 9.9, 2: 0.8, 4: 1.6, 7: 6.1}, 2),  # one disturbed number of rows does not outweigh all others
        ({1: 0.8, 2: 1.4, 4: 3.1, 7: 9.0}, None),
        ({1: 0.5, 2: 1.6, 4: 2.9, 7: 4.0}, 1),
    ],
)
def test_parts_run_from_the_rows_on_that_save_the_most(
    parts: dict[int, float], apart_from: int | None
) -> None:
    times: Times = {Way.SLEEPING: WHOLE, Way.PARTS: {count: [ms] for count, ms in parts.items()}}
    assert Choice.by(times).apart_from == apart_from
    assert Choice.by({Way.SLEEPING: WHOLE}).apart_from is None


@pytest.mark.parametrize(("share", "is_spinning"), [(0.9, True), (0.96, False), (1.5, False)])
def test_threads_spin_where_that_is_clearly_faster(share: float, is_spinning: bool) -> None:
    spinning = {count: [9.0, share * ms, share * ms] for count, (ms,) in WHOLE.items()}
    choice = Choice.by({Way.SLEEPING: WHOLE, Way.SPINNING: spinning})
    assert choice.is_spinning is is_spinning
    whole = Choice.by({Way.SPINNING: spinning} if is_spinning else {Way.SLEEPING: WHOLE})
    assert choice.cost == whole.cost
    assert Choice.by({Way.SPINNING: spinning}).is_spinning


def test_parts_are_held_against_the_way_that_was_chosen() -> None:
    half = {count: [ms / 2] for count, (ms,) in WHOLE.items()}
    between = {count: [0.7 * ms] for count, (ms,) in WHOLE.items()}
    assert Choice.by({Way.SLEEPING: WHOLE, Way.PARTS: between}).apart_from == 1
    times: Times = {Way.SLEEPING: WHOLE, Way.SPINNING: half, Way.PARTS: between}
    assert Choice.by(times).apart_from is None


@pytest.mark.parametrize(("trial_s", "turns"), [(0.0, trial.LEAST_TURNS), (3600.0, MOST_TURNS)])
def test_ways_take_turns_over_other_rows(monkeypatch: pytest.MonkeyPatch, trial_s: float, turns: int) -> None:
    monkeypatch.setattr(trial, "TRIAL_S", trial_s)
    seen: list[tuple[Way, range]] = []
    runs = {way: (lambda window, way=way: lambda: seen.append((way, window))) for way in Way}
    times = time_ways(runs, 70, (1, 4))
    assert {way: {count: len(ms) for count, ms in found.items()} for way, found in times.items()} == {
        way: {1: turns, 4: turns} for way in Way
    }
    assert seen[:3] == [(way, range(70)) for way in Way]  # which pages in
    turned = [[*Way][turn % 3 :] + [*Way][: turn % 3] for turn in range(turns)]
    assert [way for way, _ in seen[3:]] == [way for ways in turned for way in 2 * ways]
    assert all(len(window) in (1, 4) and window.stop <= 70 for _, window in seen[3:])
    for place in range(3, len(seen), 3):
        assert len({window for _, window in seen[place : place + 3]}) == 3


def test_binding_rows_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def spend(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def prepare(window: range) -> Callable[[], None]:
        spend(0.5)
        return lambda: spend(0.002 * len(window))

    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: now_s))
    times = time_ways({Way.SLEEPING: prepare}, 4, (1, 4))
    assert times == {Way.SLEEPING: {1: [pytest.approx(2.0)] * 3, 4: [pytest.approx(8.0)] * 3}}
