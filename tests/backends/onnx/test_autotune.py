"""Measured choices at the start, and the measurements."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from antiphon.backends.onnx import autotune
from antiphon.backends.onnx.autotune import MOST_TURNS, Choice, ThreadMode, Times, few, time_modes

WHOLE = {1: [1.0], 2: [1.5], 4: [3.0], 7: [6.0]}


@pytest.mark.parametrize(
    ("parts", "split_from"),
    [
        ({1: 1.1, 2: 1.6, 4: 2.9, 7: 4.0}, 4),
        ({1: 1.1, 2: 1.4, 4: 2.9, 7: 4.0}, 2),
        ({1: 9.9, 2: 0.8, 4: 1.6, 7: 6.1}, 2),  # one disturbed number of rows does not outweigh all others
        ({1: 0.8, 2: 1.4, 4: 3.1, 7: 9.0}, None),
        ({1: 0.5, 2: 1.6, 4: 2.9, 7: 4.0}, 1),
    ],
)
def test_parts_run_from_the_rows_on_that_save_the_most(
    parts: dict[int, float], split_from: int | None
) -> None:
    times: Times = {
        ThreadMode.SLEEPING: WHOLE,
        ThreadMode.PARTS: {count: [ms] for count, ms in parts.items()},
    }
    assert Choice.by(times).split_from == split_from
    assert Choice.by({ThreadMode.SLEEPING: WHOLE}).split_from is None


@pytest.mark.parametrize(("share", "is_spinning"), [(0.9, True), (0.96, False), (1.5, False)])
def test_threads_spin_where_that_is_clearly_faster(share: float, is_spinning: bool) -> None:
    spinning = {count: [9.0, share * ms, share * ms] for count, (ms,) in WHOLE.items()}
    choice = Choice.by({ThreadMode.SLEEPING: WHOLE, ThreadMode.SPINNING: spinning})
    assert choice.is_spinning is is_spinning
    whole = Choice.by({ThreadMode.SPINNING: spinning} if is_spinning else {ThreadMode.SLEEPING: WHOLE})
    assert choice.cost == whole.cost
    assert Choice.by({ThreadMode.SPINNING: spinning}).is_spinning


def test_parts_are_held_against_the_way_that_was_chosen() -> None:
    half = {count: [ms / 2] for count, (ms,) in WHOLE.items()}
    between = {count: [0.7 * ms] for count, (ms,) in WHOLE.items()}
    assert Choice.by({ThreadMode.SLEEPING: WHOLE, ThreadMode.PARTS: between}).split_from == 1
    times: Times = {ThreadMode.SLEEPING: WHOLE, ThreadMode.SPINNING: half, ThreadMode.PARTS: between}
    assert Choice.by(times).split_from is None


@pytest.mark.parametrize(("trial_s", "turns"), [(0.0, autotune.LEAST_TURNS), (3600.0, MOST_TURNS)])
def test_ways_take_turns_over_other_rows(monkeypatch: pytest.MonkeyPatch, trial_s: float, turns: int) -> None:
    monkeypatch.setattr(autotune, "TRIAL_S", trial_s)
    seen: list[tuple[ThreadMode, range]] = []
    runs = {mode: (lambda window, mode=mode: lambda: seen.append((mode, window))) for mode in ThreadMode}
    times = time_modes(runs, 70, (1, 4))
    assert {mode: {count: len(ms) for count, ms in found.items()} for mode, found in times.items()} == {
        mode: {1: turns, 4: turns} for mode in ThreadMode
    }
    assert seen[:3] == [(mode, range(70)) for mode in ThreadMode]  # which pages in
    turned = [[*ThreadMode][turn % 3 :] + [*ThreadMode][: turn % 3] for turn in range(turns)]
    assert [mode for mode, _ in seen[3:]] == [mode for modes in turned for mode in 2 * modes]
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

    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=lambda: now_s))
    modes = (ThreadMode.SLEEPING, ThreadMode.SPINNING)
    times = time_modes(dict.fromkeys(modes, prepare), 4, (1, 4))
    assert times == {key: {1: [pytest.approx(2.0)] * 3, 4: [pytest.approx(8.0)] * 3} for key in modes}


def test_a_single_mode_is_timed_over_few_rows() -> None:
    times = time_modes({ThreadMode.SLEEPING: lambda _window: lambda: None}, 40, (1, 2, 4, 8, 16, 32, 40))
    timed = {count: len(ms) for count, ms in times[ThreadMode.SLEEPING].items()}
    assert timed == dict.fromkeys((1, 4), autotune.SINGLE_TURNS)
    assert [few((1,)), few((1, 2, 3)), few((1, 2, 4, 5))] == [[1], [1, 3], [1, 4]]


def test_slow_first_runs_do_not_change_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime allocates memory in the first run over a number of rows."""
    now_s, seen = 0.0, set[int]()

    def run(rows: int) -> None:
        nonlocal now_s
        now_s += 0.0005 + 0.0005 * rows + (0.002 if rows not in seen else 0)
        seen.add(rows)

    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=lambda: now_s))
    times = time_modes({ThreadMode.SLEEPING: lambda window: lambda: run(len(window))}, 21, (1, 2, 4, 8))
    cost = Choice.by(times).cost
    assert [cost.run_ms, cost.row_ms] == pytest.approx([0.5, 0.5])
    assert not cost.bridges(2)
