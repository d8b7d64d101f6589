"""State as named numpy arrays, row first, at addresses that never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.errors import UnsupportedError
from antiphon.models.graphs import Array, StateFormat, TensorFormat


class RowState:
    """S rows of a graph's state, each tensor ``[S, *shape]``.

    What no run changes (``StateFormat.output`` None) a reset leaves too: it is large, and whoever gave it to
    the row gives it another.
    """

    def __init__(self, tensors: Mapping[str, TensorFormat], state: Sequence[StateFormat], rows: int) -> None:
        """Allocate ``rows`` fresh rows of the tensors that ``state`` names."""
        self._fill = {entry.name: entry.fill for entry in state if entry.output is not None}
        self.arrays: dict[str, Array] = {entry.name: tensors[entry.name].allocate(rows) for entry in state}
        for entry in state:
            if entry.fill:  # zeros are there already, and cost no memory before they are written
                self.arrays[entry.name][:] = entry.fill

    def reset(self, rows: Sequence[int]) -> None:
        """Make rows like fresh ones, bit for bit: stale garbage is erased, not only hidden."""
        for name, fill in self._fill.items():
            for row in rows:
                self.arrays[name][row] = fill

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy one row, by name, without the row axis."""
        return {name: array[row].copy() for name, array in self.arrays.items()}

    def check(self, snapshot: Mapping[str, Array]) -> None:
        """Raise UnsupportedError unless a snapshot holds every tensor in its shape and dtype."""
        for name, array in self.arrays.items():
            found = snapshot.get(name)
            if found is None or found.shape != array.shape[1:] or found.dtype != array.dtype:
                what = "no" if found is None else f"{found.dtype} {list(found.shape)} as"
                raise UnsupportedError(
                    f"the snapshot has {what} {name}, this model {array.dtype} {list(array.shape[1:])}"
                )

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a row."""
        for name, array in self.arrays.items():
            array[row] = snapshot[name]

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for array in self.arrays.values():
            array[target] = array[source]

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(array.nbytes for array in self.arrays.values())
