"""Model state as named arrays, row first.

A :class:`State` owns S rows. A :class:`Step` is what modules see of it during one tick: the rows
``0 .. n-1``, and which of them advance. ``docs/state.md`` lists every tensor.

mlx's arrays are values, but an operation writes into its input's memory when nobody else holds that input.
So a ring is updated in place as long as the state is the only owner of its arrays when a tick is
evaluated: nothing here hands out a view that outlives it (``tests/backends/mlx/test_state.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import mlx.core as mx

from antiphon.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One state tensor: its name, its shape without the row axis, its dtype, and what fresh rows hold."""

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype
    fill: int | float = 0

    @property
    def row_bytes(self) -> int:
        """Bytes one row of this tensor takes."""
        return self.dtype.size * prod(self.shape)


class State:
    """S rows of named tensors, each ``[S, *spec.shape]``."""

    def __init__(self, specs: Iterable[TensorSpec], rows: int) -> None:
        """Allocate ``rows`` fresh rows."""
        self.rows = rows
        self.specs = {spec.name: spec for spec in specs}
        self.tensors = {
            spec.name: mx.full((rows, *spec.shape), spec.fill, dtype=spec.dtype)
            for spec in self.specs.values()
        }
        mx.eval(self.tensors)

    def reset(self, rows: Sequence[int], prefix: str = "") -> None:
        """Make the given rows like fresh ones, bit for bit (stale garbage is erased, not only hidden).

        With ``prefix`` only the tensors whose names begin with it.
        """
        for row in rows:
            for name, spec in self.specs.items():
                if name.startswith(prefix):
                    self.tensors[name][row] = mx.array(spec.fill, dtype=spec.dtype)

    def snapshot(self, row: int) -> dict[str, mx.array]:
        """Copy one row: name to array of ``spec.shape``."""
        index = mx.array(row)  # an array gathers into memory of its own; a number would give a view
        copies = {name: tensor[index] for name, tensor in self.tensors.items()}
        mx.eval(copies)
        return copies

    def restore(self, row: int, snapshot: Mapping[str, mx.array]) -> None:
        """Put a snapshot into a row, which then continues bit-identically.

        Raises:
            UnsupportedError: the snapshot is of another model: a tensor is missing or of another shape.
        """
        for name, spec in self.specs.items():
            found = tuple(snapshot[name].shape) if name in snapshot else None
            if found != spec.shape:
                raise UnsupportedError(f"the snapshot has {name} of shape {found}, this model {spec.shape}")
        for name, tensor in self.tensors.items():
            tensor[row] = snapshot[name]
        mx.eval(self.tensors)

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        self.restore(target, self.snapshot(source))

    def bytes(self) -> int:
        """Bytes held for all rows together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Step:
    """One tick's view of the state: rows ``0 .. rows-1``, and which of them advance.

    ``tensors`` are ``[S, ...]`` and are replaced name by name. ``exec_mask`` is bool ``[rows]``; None means
    every row.
    """

    def __init__(self, tensors: Mapping[str, mx.array], rows: int, exec_mask: mx.array | None = None) -> None:
        """Look at ``tensors``."""
        self.tensors = dict(tensors)
        self.rows = rows
        self.exec_mask = exec_mask

    def read(self, name: str) -> mx.array:
        """The tensor as it is now, ``[rows, *spec.shape]``."""
        return self.tensors[name][: self.rows]

    def select(self, new: mx.array, old: mx.array) -> mx.array:
        """``new`` for rows that advance, ``old`` for the others."""
        if self.exec_mask is None:
            return new
        return mx.where(self.exec_mask.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    def write(self, name: str, new: mx.array) -> None:
        """Replace a whole tensor, for the rows that advance."""
        whole = self.tensors[name]
        new = self.select(new, whole[: self.rows]).astype(whole.dtype)
        if self.rows < whole.shape[0]:
            new = mx.concatenate([new, whole[self.rows :]])
        self.tensors[name] = new

    def write_slots(self, name: str, slots: mx.array, values: mx.array) -> None:
        """Write ``values [rows, T, H, ...]`` at ``slots [rows, T]`` of a ring ``[S, H, C + 1, ...]``.

        Rows that do not advance write into the last slot, which nobody reads. (To give them back what they
        held, the ring would have to be read first, and mlx then copies all of it instead of writing into it.)
        """
        ring = self.tensors[name]
        if self.exec_mask is not None:
            slots = mx.where(self.exec_mask[:, None], slots, ring.shape[2] - 1)
        ring[mx.arange(self.rows)[:, None], :, slots] = values.astype(ring.dtype)
        self.tensors[name] = ring
