"""Placement by phase: sessions of similar phase get neighbouring rows, and each has its own row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.rows import Placement

FRAME_S = 0.08


@given(st.lists(st.floats(0, 100), min_size=1, max_size=24), st.integers(24, 40))
def test_every_session_has_a_row_of_its_own_and_gives_it_back(times_s: list[float], rows: int) -> None:
    placement = Placement(rows, FRAME_S)
    taken = [placement.take(time_s) for time_s in times_s]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(rows))
    for row in taken:
        placement.give_back(row)
    assert sorted(placement.take(time_s) for time_s in np.linspace(0, 1, rows)) == list(range(rows))


def test_a_full_backend_has_its_rows_in_the_order_of_phases() -> None:
    random = np.random.default_rng(3)
    phases = random.permutation((np.arange(16) + 0.5) / 16)
    placement = Placement(16, FRAME_S)
    rows = [placement.take(float(1000 * FRAME_S + phase * FRAME_S)) for phase in phases]
    assert np.array_equal(np.argsort(rows), np.argsort(phases))


def test_a_taken_place_gives_the_nearest_free_row() -> None:
    placement = Placement(8, FRAME_S)
    assert [placement.take(0.5 * FRAME_S + 0.001) for _ in range(4)] == [4, 3, 5, 2]
