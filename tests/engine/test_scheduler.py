"""Buckets and moves, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.scheduler import Move, bucket_for, propose_move, usable_buckets
from antiphon.errors import ConfigError

BUCKETS = st.sets(st.integers(1, 64), min_size=1, max_size=8).map(lambda sizes: tuple(sorted(sizes)))


@given(BUCKETS, st.data())
def test_a_bucket_is_the_smallest_that_is_large_enough(buckets: tuple[int, ...], data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, buckets[-1]))
    bucket = bucket_for(rows, buckets)
    assert bucket in buckets
    assert bucket >= rows
    assert all(smaller < rows for smaller in buckets if smaller < bucket)


@given(BUCKETS, st.data())
def test_moves_end_with_the_smallest_bucket_that_holds_all_rows(
    buckets: tuple[int, ...], data: st.DataObject
) -> None:
    owned = data.draw(st.sets(st.integers(0, buckets[-1] - 1)))
    count = len(owned)
    for _ in range(count + 1):
        move = propose_move(owned, buckets)
        if move is None:
            break
        assert move.source == max(owned)
        assert move.target == min(set(range(buckets[-1])) - owned)
        assert move.target < move.source
        owned = owned - {move.source} | {move.target}
    assert propose_move(owned, buckets) is None
    assert len(owned) == count
    if owned:
        assert bucket_for(max(owned) + 1, buckets) == bucket_for(count, buckets)


def test_no_move_while_the_bucket_would_stay_the_same() -> None:
    assert propose_move({0, 2}, (1, 2, 4)) == Move(source=2, target=1)
    assert propose_move({0, 1, 3}, (1, 2, 4)) is None
    assert propose_move(set(), (1, 2, 4)) is None


def test_a_fixed_batch_always_runs_over_all_rows() -> None:
    assert usable_buckets([1, 2, 4], is_fixed=True) == (4,)
    assert usable_buckets([1, 2, 4], is_fixed=False) == (1, 2, 4)


@pytest.mark.parametrize("buckets", [[], [0, 1], [2, 1], [1, 1]])
def test_buckets_that_do_not_ascend_are_refused(buckets: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"buckets must ascend from at least 1, the backend has \["):
        usable_buckets(buckets, is_fixed=False)
