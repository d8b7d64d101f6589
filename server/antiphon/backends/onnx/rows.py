"""State as named numpy arrays, row first, at addresses that never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from antiphon.backends.base import IntArray
from antiphon.backends.snapshots import Form
from antiphon.models.graphs import Array, GraphFormat

SLOT_AXES: Final[Mapping[str, int]] = {
    "k": 1, "v": 1, "k_scale": 1, "v_scale": 1, "k_offset": 1, "k_across": 2,
}  # fmt: skip
"""Last parts of the names of rings, ``MODULE.LAYER.PART``, and which axis of a row's tensor are the slots.

``MODULE.position`` counts what was written into them.
"""


class RowState:
    """S rows of a graph's state, each tensor ``[S, *shape]``.

    What no run changes (``StateFormat.output`` None) a reset leaves too: it is large, and is written when
    the row is given another (a voice).
    """

    def __init__(self, form: GraphFormat, rows: int) -> None:
        """Allocate ``rows`` fresh rows."""
        self._fill = {entry.name: entry.fill for entry in form.state if entry.output is not None}
        self.arrays: dict[str, Array] = {e.name: form.input(e.name).allocate(rows) for e in form.state}
        for entry in form.state:
            if entry.fill:  # zeros are there already, and cost no memory before they are written
                self.arrays[entry.name][:] = entry.fill

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Make rows like fresh ones, bit for bit: stale garbage is erased, not only hidden.

        Beyond its position a ring is fresh already.
        """
        for row in rows:
            own = {name: self.arrays[name][row, ...] for name in self._fill}
            parts = {name: array[_filled(name, own)] for name, array in own.items()}
            for name, part in parts.items():
                part[...] = self._fill[name]

    def gather(self, source: RowState, rows: IntArray) -> None:
        """Copy ``rows`` of another state into the first rows of this one."""
        for name, array in self.arrays.items():
            np.take(source.arrays[name], rows, axis=0, out=array[: rows.size], mode="clip")

    def scatter(self, target: RowState, rows: IntArray) -> None:
        """Copy what runs change of the first rows of this state into ``rows`` of another."""
        for name in self._fill:
            target.arrays[name][rows] = self.arrays[name][: rows.size]

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy one row, by name, without the row axis; rings as far as they are filled."""
        own = {name: array[row, ...] for name, array in self.arrays.items()}
        return {name: array[_filled(name, own)].copy() for name, array in own.items()}

    def forms(self, snapshot: Mapping[str, Array]) -> dict[str, Form]:
        """What a snapshot has of a row that is filled as far as this one."""
        fresh = {name: array[0, ...] for name, array in self.arrays.items()}
        given = {name: snapshot[name] for name, own in fresh.items() if name in snapshot}
        beside = fresh | {name: own for name, own in given.items() if own.shape == fresh[name].shape}
        return {name: (own[_filled(name, beside)].shape, own.dtype) for name, own in fresh.items()}

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a fresh row."""
        for name, array in self.arrays.items():
            array[row, ...][_filled(name, snapshot)] = snapshot[name]

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return sum(array.nbytes for array in self.arrays.values())


def _filled(name: str, row: Mapping[str, Array]) -> tuple[Any, ...]:
    """Where a row's tensor holds something: a ring up to the row's position, any other everywhere."""
    module, _, part = name.rpartition(".")
    position = row.get(f"{module.rpartition('.')[0]}.position")
    if part not in SLOT_AXES or position is None:
        return (...,)
    return (*[slice(None)] * (SLOT_AXES[part] + position.ndim), slice(int(position.max())))
