"""Model state as named arrays, row first, and one stage's view of it.

A :class:`State` owns S rows. A :class:`Step` is one stage's pass over some of them: small tensors are
gathered into the order of the pass and scattered back, rings are written and read in place. ``docs/state.md``
lists every tensor.

mlx arrays are values, but an operation writes into its input's memory if it holds the only reference to that
input. Therefore a ring is updated in place if the state is the only owner of its arrays when a tick is
evaluated; it is written before it is read, since mlx copies a ring whose old content is still needed
(``tests/backends/mlx/test_state.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import IntArray
from antiphon.backends.snapshots import TensorSpec, check_state


class State:
    """S rows of named tensors, each ``[S, *spec.shape]``."""

    def __init__(self, specs: Iterable[TensorSpec], rows: int) -> None:
        """Allocate ``rows`` fresh rows."""
        self.rows = rows
        self.specs = {spec.name: spec for spec in specs}
        self.tensors = {
            spec.name: mx.full((rows, *spec.shape), mx.array(spec.fill, dtype=spec.dtype))
            for spec in self.specs.values()
        }
        mx.eval(self.tensors)

    def reset(self, rows: Sequence[int], prefix: str = "", *, keeps_voice: bool = False) -> None:
        """Reset rows to fresh ones, bit for bit (old content is erased, not only hidden).

        With ``prefix`` only the tensors whose names begin with it are reset; ``keeps_voice`` excludes the
        voices.
        """
        for row in rows:
            for name, spec in self.specs.items():
                if name.startswith(prefix) and not (keeps_voice and spec.is_kept):
                    self.tensors[name][row] = mx.array(spec.fill, dtype=spec.dtype)

    def snapshot(self, row: int) -> dict[str, mx.array]:
        """Copy one row: name to array of ``spec.shape``, rings cut to the part that is filled."""
        index = mx.array(row)  # an array index copies; a number would give a view
        own = {it.position: self.tensors[it.position][row] for it in self.specs.values() if it.position}
        copies = {}
        for name, spec in self.specs.items():
            tensor, used = self.tensors[name], spec.used(own)
            copies[name] = (tensor if used is None else tensor[:, :, :used])[index]
        mx.eval(copies)
        return copies

    def check(self, snapshot: Mapping[str, mx.array]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept a snapshot."""
        check_state(snapshot, self.specs.values())

    def restore(self, row: int, snapshot: Mapping[str, mx.array]) -> None:
        """Write a checked snapshot into a fresh row, which then continues bit-identically."""
        for name, spec in self.specs.items():
            if spec.position is None:
                self.tensors[name][row] = snapshot[name]
            elif filled := spec.used(snapshot):
                self.tensors[name][row, :, :filled] = snapshot[name]
        mx.eval(self.tensors)

    def to_host(self, snapshot: Mapping[str, mx.array]) -> dict[str, NDArray[Any]]:
        """Convert a snapshot to numpy arrays, bfloat16 as uint16."""
        return {
            name: np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
            for name, array in snapshot.items()
        }

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, mx.array]:
        """Reverse :meth:`to_host`."""
        narrow = {name for name, spec in self.specs.items() if spec.dtype == mx.bfloat16}
        found = {name: mx.array(array) for name, array in arrays.items()}
        return {
            name: array.view(mx.bfloat16) if name in narrow and array.dtype == mx.uint16 else array
            for name, array in found.items()
        }

    def bytes(self) -> int:
        """Bytes held for all rows together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Packing:
    """The places of the m named rows of a stage among the n that are computed.

    ``rows`` int32 ``[n]`` is the row at each place; ``places`` int64 ``[m]`` the places of the named rows.
    Results at other places are discarded. ``runs`` are ``(start, stop, row)``: places ``start .. stop-1``
    hold neighbouring rows from ``row`` on.
    """

    def __init__(self, named: IntArray, total: int, *, is_fixed: bool, size: int | None = None) -> None:
        """Pack ``named`` int32 ``[m]`` of ``total`` rows: each in its own place, or adjacent.

        Adjacent rows are in ascending order; ``size`` is the number of computed rows, by default m.
        """
        self.named, count = named, len(named)
        self.rows: IntArray = np.arange(total, dtype=np.int32)
        if is_fixed:
            self.places = named.astype(np.int64)
            # Each separately, since a row's result must not depend on its neighbours.
            self.runs = [(row, row + 1, row) for row in np.sort(named).tolist()]
            return
        ordered = np.sort(named)
        self.rows = np.concatenate([ordered, np.repeat(ordered[:1], (size or count) - count)])
        self.places = np.searchsorted(ordered, named)
        starts = [0, *(np.flatnonzero(np.diff(ordered) != 1) + 1).tolist(), count]
        self.runs = [(start, stop, int(ordered[start])) for start, stop in pairwise(starts)]

    @property
    def size(self) -> int:
        """The number n of computed rows."""
        return len(self.rows)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Spread ``values [m, ...]`` of the named rows, in their order, to ``[n, ...]``; others are 0."""
        whole = np.zeros((self.size, *values.shape[1:]), values.dtype)
        whole[self.places] = values
        return whole

    def gather(self, values: mx.array) -> NDArray[Any]:
        """Return the named rows of ``values [n, ...]``, in their order: ``[m, ...]``."""
        found: NDArray[Any] = np.array(values)[self.places]
        return found


class Packed:
    """The small state tensors of a stage's n rows, in the stage's order: name to ``[n, ...]``."""

    def __init__(self, tensors: Mapping[str, mx.array]) -> None:
        """Start with these tensors."""
        self.tensors = dict(tensors)

    def read(self, name: str) -> mx.array:
        """The current tensor, ``[n, *spec.shape]``."""
        return self.tensors[name]

    def write(self, name: str, new: mx.array) -> None:
        """Replace a whole tensor."""
        self.tensors[name] = new


class Step(Packed):
    """One stage's pass over some rows of a state.

    ``frames`` int64 ``[n]`` counts each row's frames, including this one, and so bounds which slots of a ring
    are read.
    """

    def __init__(self, state: State, packing: Packing, frames: NDArray[np.int64]) -> None:
        """Start a pass over ``state``."""
        super().__init__({})
        self.state, self.packing, self.frames = state, packing, frames
        self._rows = mx.array(packing.rows)
        self._places, self._named = mx.array(packing.places), mx.array(packing.named)
        self._written: set[str] = set()

    def read(self, name: str) -> mx.array:
        """The current tensor, ``[n, *spec.shape]``."""
        if name not in self.tensors:
            self.tensors[name] = self.state.tensors[name][self._rows]
        return self.tensors[name]

    def write(self, name: str, new: mx.array) -> None:
        """Replace a whole tensor, for the named rows, once the stage is over."""
        self.tensors[name] = new
        self._written.add(name)

    def commit(self) -> None:
        """Write the stage's results to the state."""
        for name in self._written:
            spec = self.state.specs[name]
            self.state.tensors[name][self._named] = self.tensors[name][self._places].astype(spec.dtype)
        self._written.clear()

    def write_slots(self, name: str, slots: mx.array, values: mx.array) -> None:
        """Write the named rows' ``values [n, T, H, ...]`` into ``slots [n, T]`` of a ring."""
        ring = self.state.tensors[name]
        ring[self._named[:, None], :, slots[self._places]] = values[self._places].astype(ring.dtype)

    def read_slots(self, name: str, run: tuple[int, int, int], length: int) -> mx.array:
        """The first ``length`` slots of the ring ``name``, for the rows of ``run``, without a copy."""
        start, stop, row = run
        return self.state.tensors[name][row : row + stop - start, :, :length]


Layer: TypeAlias = Callable[[mx.array, Packed], mx.array]


def fused(layer: Layer, specs: Iterable[TensorSpec]) -> Layer:
    """A layer with the same result, whose operations mlx fuses; it may use only the tensors of the state in
    ``specs``.
    """
    names = [spec.name for spec in specs]

    def pure(x: mx.array, tensors: dict[str, mx.array]) -> tuple[mx.array, dict[str, mx.array]]:
        packed = Packed(tensors)
        return layer(x, packed), packed.tensors

    compiled: Callable[..., Any] = mx.compile(pure)

    def run(x: mx.array, step: Packed) -> mx.array:
        out, tensors = compiled(x, {name: step.read(name) for name in names})
        for name, tensor in tensors.items():
            step.write(name, tensor)
        return out  # type: ignore[no-any-return]

    return run
