"""Which row belongs to whom: rows, and a generation that changes with every owner."""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of the backend, for the time one session owns it.

    Two owners of the same row differ in ``generation``, so a result tagged with the slot of a session
    that left compares unequal to the slot of the next.
    """

    row: int
    generation: int


class SlotTable:
    """Rows ``0 .. rows-1``, given out lowest first. Not thread-safe: admission holds the lock."""

    def __init__(self, rows: int) -> None:
        """Start with all rows free."""
        self.rows = rows
        self._free = list(range(rows))  # a heap, as sorted lists are
        self._generations = [0] * rows

    @property
    def free(self) -> int:
        """Rows that nobody owns."""
        return len(self._free)

    def take(self) -> Slot | None:
        """The lowest free row under a new generation, or None when all are owned."""
        if not self._free:
            return None
        row = heapq.heappop(self._free)
        self._generations[row] += 1
        return Slot(row, self._generations[row])

    def give_back(self, slot: Slot) -> None:
        """Free a slot's row. Raises ValueError for a slot that is not the row's current owner."""
        if not self.is_owned(slot):
            raise ValueError(
                f"{slot} is not owned; row {slot.row} is at generation {self._generations[slot.row]}"
            )
        self._generations[slot.row] += 1
        heapq.heappush(self._free, slot.row)

    def is_owned(self, slot: Slot) -> bool:
        """Whether this slot is still its row's current owner."""
        # take makes the generation odd, give_back even: an odd one is somebody's.
        return self._generations[slot.row] == slot.generation and slot.generation % 2 == 1
