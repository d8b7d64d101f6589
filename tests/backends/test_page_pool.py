"""Shared pages: no page has two owners, none is lost, and the youngest rows are evicted first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon.backends.page_pool import PAGE_SLOTS, PagePool
from antiphon.errors import StepError

ROWS, MOST = 5, 3


def check(pool: PagePool) -> None:
    """Every page is one row's or free."""
    held = [page for row in range(ROWS) for page in pool.table[row, : pool.held[row]].tolist()]
    assert len(held) == len(set(held))
    assert len(held) + pool.free == pool.pages


def rows_of(row: int) -> NDArray[np.int32]:
    return np.array([row], np.int32)


@given(
    pages=st.integers(MOST, ROWS * MOST),
    steps=st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 400), st.booleans()), max_size=30),
)
def test_no_page_is_two_rows_and_none_is_lost(pages: int, steps: list[tuple[int, int, bool]]) -> None:
    pool = PagePool(ROWS, MOST, pages)
    for row, positions, is_over in steps:
        if is_over:
            pool.release([row])
        before, wanted = pool.held.copy(), min(-(-positions // PAGE_SLOTS), MOST)
        missing = max(0, wanted - int(before[row]))
        if missing > pool.free:
            words = rf"rows \[{row}\] need {missing} pages, and {pool.free} are free"
            with pytest.raises(StepError, match=words):
                pool.hold(rows_of(row), np.array([positions]))
        else:
            kept = pool.table[row, : before[row]].tolist()
            assert pool.hold(rows_of(row), np.array([positions])) is (missing > 0)
            assert pool.table[row, : before[row]].tolist() == kept, "what a row has stays where it is"
            before[row] += missing
        assert (pool.held == before).all()
        check(pool)


@given(
    ages=st.lists(st.integers(0, 5 * PAGE_SLOTS), min_size=ROWS, max_size=ROWS),
    spare=st.integers(0, 3),
    named=st.sets(st.integers(0, ROWS - 1), min_size=1),
)
def test_the_youngest_end_and_no_more_than_must(ages: list[int], spare: int, named: set[int]) -> None:
    frames = np.array(ages)
    held = np.minimum(-(-frames // PAGE_SLOTS), MOST)
    pool = PagePool(ROWS, MOST, max(MOST, int(held.sum()) + spare))
    pool.hold(np.arange(ROWS, dtype=np.int32), frames)
    rows = np.array(sorted(named), np.int32)
    ended = pool.youngest(rows, frames[rows] + 1, frames)
    missing = dict(zip(rows.tolist(), pool.missing(rows, frames[rows] + 1).tolist(), strict=True))

    def fits(without: list[int]) -> bool:
        freed = sum(int(pool.held[row]) for row in without)
        needed = sum(int(count) for row, count in missing.items() if row not in without)
        return needed <= pool.free + freed

    assert fits(ended)
    assert not ended or not fits(ended[:-1])
    kept = [row for row in range(ROWS) if row not in ended and (pool.held[row] or row in named)]
    assert all(frames[one] <= frames[other] for one in ended for other in kept)
    pool.release(ended)
    left = np.array([row for row in rows.tolist() if row not in ended], np.int32)
    pool.hold(left, frames[left] + 1)
    check(pool)


def test_where_pages_are_too_few_for_all_none_is_given() -> None:
    pool = PagePool(ROWS, MOST, MOST)
    rows = np.array([3, 0, 1], np.int32)
    with pytest.raises(StepError, match=r"rows \[3, 1\] need 4 pages, and 3 are free") as raised:
        pool.hold(rows, np.array([PAGE_SLOTS, 0, 3 * PAGE_SLOTS]))
    assert raised.value.rows == (3, 0, 1)
    assert (pool.free, pool.held.sum()) == (MOST, 0)


def test_pages_that_are_shared_for_timing_are_all_free_afterwards() -> None:
    pool = PagePool(ROWS, MOST, MOST + 1)
    pool.share()
    assert not pool.hold(np.arange(ROWS, dtype=np.int32), np.full(ROWS, 10_000))
    assert pool.table.max() == MOST
    pool.release(range(ROWS))
    assert (pool.free, pool.held.sum()) == (MOST + 1, 0)
    check(pool)
