"""Grouping of rows into windows, and its cost."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.onnx.autotune import RunCost, cut, split

rows_of_nine = st.sets(st.integers(0, 8), min_size=1, max_size=6).map(sorted)
costs = st.builds(RunCost, st.sampled_from([0.0, 0.4, 1.0, 2.5, 9.0]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))


def cost_ms(windows: list[range], cost: RunCost) -> float:
    return sum(cost.run_ms + len(window) * cost.row_ms for window in windows)


@given(rows=rows_of_nine, cost=costs)
def test_no_other_split_costs_less(rows: list[int], cost: RunCost) -> None:
    got = split(rows, cost)
    covered = [row for window in got for row in window]
    assert covered == sorted(set(covered))
    assert set(rows) <= set(covered)
    for cuts in range(len(rows)):
        for places in combinations(range(1, len(rows)), cuts):
            bounds = [0, *places, len(rows)]
            parts = [rows[begin:end] for begin, end in pairwise(bounds)]
            other = [range(part[0], part[-1] + 1) for part in parts]
            assert cost_ms(got, cost) <= cost_ms(other, cost) + 1e-9


@given(rows=rows_of_nine, cost=costs, parts=st.integers(1, 4))
def test_parts_have_the_rows_of_the_windows_and_about_as_many_each(
    rows: list[int], cost: RunCost, parts: int
) -> None:
    windows = split(rows, cost)
    found = cut(windows, parts)
    lengths = [sum(map(len, part)) for part in found]
    whole = [row for window in windows for row in window]
    assert [row for part in found for window in part for row in window] == whole
    assert len(found) == min(parts, len(whole))
    assert max(lengths) - min(lengths) <= 1
    assert all(len(window) for part in found for window in part)


@pytest.mark.parametrize(
    ("cost", "wanted"),
    [
        (RunCost(0.5, 1.0), [range(1), range(2, 4), range(8, 9)]),
        (RunCost(1.5, 1.0), [range(4), range(8, 9)]),
        (RunCost(5.0, 1.0), [range(9)]),
    ],
)
def test_a_gap_is_bridged_where_another_run_costs_more(cost: RunCost, wanted: list[range]) -> None:
    assert split([0, 2, 3, 8], cost) == wanted


def test_a_cost_is_the_line_through_measured_times() -> None:
    exact = RunCost.fit({count: 0.3 + 0.2 * count for count in (1, 2, 4, 8)})
    assert exact.run_ms == pytest.approx(0.3)
    assert exact.row_ms == pytest.approx(0.2)
    assert RunCost.fit({1: 2.0}) == RunCost(0.0, 2.0)
    assert RunCost.fit({1: 1.0, 2: 3.0, 4: 9.0}).run_ms == 0  # never below nothing
