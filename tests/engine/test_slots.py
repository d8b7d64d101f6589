"""Rows go out lowest first, and no two owners of a row ever look the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.slots import Slot, SlotTable


@given(st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=80), st.integers(1, 6))
def test_lowest_free_row_first_and_every_owner_unique(actions: list[int | None], rows: int) -> None:
    table = SlotTable(rows)
    owned: list[Slot] = []
    seen: set[Slot] = set()
    for action in actions:
        free = set(range(rows)) - {slot.row for slot in owned}
        assert table.free == len(free)
        if action is None:
            slot = table.take()
            assert (None if slot is None else slot.row) == min(free, default=None)
            if slot is not None:
                assert slot not in seen
                seen.add(slot)
                owned.append(slot)
        elif owned:
            slot = owned.pop(action % len(owned))
            assert table.is_owned(slot)
            table.give_back(slot)
            assert not table.is_owned(slot)
    assert all(table.is_owned(slot) for slot in owned)


def test_a_slot_is_given_back_once() -> None:
    table = SlotTable(2)
    slot = table.take()
    assert slot == Slot(0, 1)
    table.give_back(slot)
    with pytest.raises(
        ValueError, match=r"Slot\(row=0, generation=1\) is not owned; row 0 is at generation 2"
    ):
        table.give_back(slot)
