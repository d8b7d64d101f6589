"""Model state as named tensors, row first, and the view that modules have of it during one tick.

A :class:`State` owns S rows; ``docs/state.md`` lists every tensor. There are two ways to write.
:class:`MaskedStep` is a pure function from state to new state, for export; :class:`PackedStep` computes a
list of rows and writes only these, in place, for serving.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.page_pool import PAGE_SLOTS, PagePool
from antiphon.backends.snapshots import Tensors, TensorSpec, check_state
from antiphon.backends.torch.kernels.fused import MOST_POSITIONS, load_joined_past
from antiphon.backends.torch.pages import (
    PageTable,
    by_pages,
    by_slots,
    page_bytes,
    page_shape,
    row_pages,
)

NO_ROW = -1
"""In a list of rows: nothing is computed at this place."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring rows at neighbouring places, so that one view of a ring serves all of them.

    ``filled`` is the largest number of frames that any of them has received, including this pass's; None
    means no bound.
    """

    place: int
    row: int
    count: int
    filled: int | None = None

    @property
    def places(self) -> slice:
        """The run's places in the step."""
        return slice(self.place, self.place + self.count)

    @property
    def rows(self) -> slice:
        """The run's rows in the state."""
        return slice(self.row, self.row + self.count)


def runs_of(rows: Sequence[int], filled: Sequence[int | None], *, apart: bool = False) -> tuple[Run, ...]:
    """Cut a list of rows into runs; with ``apart`` each row is a separate run."""
    runs: list[Run] = []
    for place, (row, frames) in enumerate(zip(rows, filled, strict=True)):
        last = runs[-1] if runs else None
        if row == NO_ROW:
            continue
        if last and not apart and (last.place + last.count, last.row + last.count) == (place, row):
            most = None if frames is None or last.filled is None else max(frames, last.filled)
            runs[-1] = Run(last.place, last.row, last.count + 1, most)
        else:
            runs.append(Run(place, row, 1, frames))
    return tuple(runs)


class Step(ABC):
    """One tick's view of the state of n places.

    A run of None means all rows of a ring, unchanged. ``filled`` bounds the number of frames that any row has
    received, including this pass's; None means no bound.
    """

    in_place: ClassVar[bool]
    filled: int | None = None

    @property
    @abstractmethod
    def runs(self) -> Sequence[Run | None]:
        """The runs of rows whose rings the places read."""

    @property
    @abstractmethod
    def idle(self) -> Tensor | None:
        """Bool ``[n]``, true for places that take no part; None if all take part."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The current small tensor, ``[n, *spec.shape]``."""

    @abstractmethod
    def write(self, name: str, new: Tensor) -> None:
        """Replace a small tensor, for the rows that take part."""

    def extend(self, name: str, new: Tensor) -> Tensor:
        """A small tensor ``[n, C, P]`` followed by ``new [n, C, T]``; the last P positions are stored
        in it.
        """
        past = self.read(name)
        joined = torch.cat([past, new], dim=-1)
        self.write(name, joined[..., -past.shape[-1] :])
        return joined

    @abstractmethod
    def ring(self, name: str, run: Run | None, slots: int) -> Tensor:
        """The content of a ring, or a voice, for the rows of a run, without a copy.

        For a ring in pages it is a copy of at least the first ``slots`` slots.
        """

    @abstractmethod
    def write_slots(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]`` at ``slots [n, T]`` of a ring ``[rows, H, C, ...]``.

        A ring in pages has one more dimension: ``[rows, H, pages, D, slots of a page]``.
        """


class MaskedStep(Step):
    """A step as a pure function, in operators that ONNX Runtime supports and runs in place.

    ``tensors`` is replaced name by name, and the given tensors do not change. All tensors are ``[n, ...]``;
    ``exec_mask`` bool ``[n]`` selects the rows that advance; None selects all.
    """

    in_place = False

    def __init__(self, tensors: Mapping[str, Tensor], exec_mask: Tensor | None = None) -> None:
        """Start from ``tensors``."""
        self.tensors = dict(tensors)
        self.exec_mask = exec_mask

    @property
    def runs(self) -> Sequence[Run | None]:
        """The runs of rows whose rings the places read."""
        return (None,)

    @property
    def idle(self) -> Tensor | None:
        """Bool ``[n]``, true for places that take no part; None if all take part."""
        return None if self.exec_mask is None else ~self.exec_mask

    def read(self, name: str) -> Tensor:
        """The current small tensor, ``[n, *spec.shape]``."""
        return self.tensors[name]

    def ring(self, name: str, run: Run | None, slots: int) -> Tensor:  # noqa: ARG002
        """The content of a ring, or a voice, for the rows of a run, without a copy."""
        return self.tensors[name]

    def select(self, new: Tensor, old: Tensor) -> Tensor:
        """``new`` for rows that advance, ``old`` for the others. It works for booleans, which ONNX Runtime's
        Where does not accept.
        """
        if self.exec_mask is None:
            return new
        mask = self.exec_mask.view(-1, *[1] * (old.dim() - 1))
        return (new & mask) | (old & ~mask) if old.dtype == torch.bool else torch.where(mask, new, old)

    def write(self, name: str, new: Tensor) -> None:
        """Replace a small tensor, for the rows that take part."""
        old = self.tensors[name]
        self.tensors[name] = self.select(new, old).to(old.dtype)

    def write_slots(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]`` at ``slots [n, T]`` of a ring ``[rows, H, C, ...]``. Rows that do
        not advance keep their content.

        An indexed write becomes ScatterND, whose slices are whole heads.
        """
        ring = self.tensors[name]
        rows, heads = torch.arange(values.shape[0]), torch.arange(values.shape[1])
        index = (rows[:, None, None], heads[None, :, None], slots[:, None, :])
        self.tensors[name] = ring.index_put(index, self.select(values, ring[index]))


class PackedStep(Step):
    """A step over a list of rows, written in place; rows that are not in it are not touched.

    ``rows`` int64 ``[n]`` is the list, on the device; with ``is_padded`` some may be NO_ROW. Such a place
    reads and writes an extra row at the end of small tensors. Rings have no such row: without kernels, a
    place with NO_ROW writes the same data as the first place that has a row. ``tensors`` are the tensors of
    the whole state; ``table`` lists the rings in pages. Attention without kernels needs ``runs``; all
    attention needs ``filled``. ``is_fused``: operations that have a Triton kernel use it.
    """

    in_place = True

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        rows: Tensor,
        runs: Sequence[Run],
        *,
        small_rows: int,
        filled: int | None = None,
        is_padded: bool = False,
        is_fused: bool = False,
        table: PageTable | None = None,
    ) -> None:
        """View ``rows`` of ``tensors``; small tensors have ``small_rows`` rows."""
        self._table = table
        self._tensors, self.rows, self._runs, self.filled = tensors, rows, tuple(runs), filled
        self._small_rows, self._is_padded, self._is_fused = small_rows, is_padded, is_fused
        # -1 is the last row, as in a Python list; for pairs, -2 and -1 are the last two.
        self.at = torch.remainder(rows, small_rows) if is_padded else rows

    @property
    def runs(self) -> Sequence[Run]:
        """The runs of rows whose rings the places read."""
        return self._runs

    @property
    def idle(self) -> Tensor | None:
        """Bool ``[n]``, true for places that take no part; None if all take part."""
        return self.rows < 0 if self._is_padded else None

    def read(self, name: str) -> Tensor:
        """The current small tensor, ``[n, *spec.shape]``."""
        return self._tensors[name].index_select(0, self.at)

    def write(self, name: str, new: Tensor) -> None:
        """Replace a small tensor, for the rows that take part."""
        self._tensors[name].index_copy_(0, self.at, new)

    def extend(self, name: str, new: Tensor) -> Tensor:
        """A small tensor ``[n, C, P]`` followed by ``new [n, C, T]``; the last P positions are stored
        in it.
        """
        past = self._tensors[name]
        if not self._is_fused or past.shape[-1] + new.shape[-1] > MOST_POSITIONS:
            return super().extend(name, new)
        return load_joined_past()(past, self.at, new)

    def whole(self, name: str) -> Tensor:
        """A tensor of all rows, for kernels that take the list of rows."""
        return self._tensors[name]

    def pages(self, name: str) -> Tensor | None:
        """The table of a ring in pages, int32 ``[rows, pages of a row]``; None for any other ring."""
        return self._table.pages if self._table is not None and name in self._table.rings else None

    def ring(self, name: str, run: Run | None, slots: int) -> Tensor:
        """The content of a ring, or a voice, for the rows of a run; of a ring in pages a copy."""
        assert run is not None
        if self._table is not None and name in self._table.rings:
            return self._table.read(name, self._tensors[name], run.rows, slots)
        return self._tensors[name][run.rows]

    def write_slots(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]`` at ``slots [n, T]`` of a ring ``[rows, H, C, ...]``."""
        rows, values = self.rows, values.transpose(1, 2)
        if self._source is not None:
            rows, slots, values = (part.index_select(0, self._source) for part in (rows, slots, values))
        ring = self._tensors[name]
        if self._table is not None and name in self._table.rings:
            is_across = self._table.rings[name].page_slots > 1
            ring = ring.permute(0, 3, 1, 2) if is_across else ring.transpose(1, 2)
            ring.index_put_(self._table.places(rows, slots), values)
        elif ring.dim() > values.dim():
            page = ring.shape[-1]
            at = rows[:, None], slots // page, slots % page
            ring.permute(0, 2, 4, 1, 3).index_put_(at, values)
        else:
            ring.transpose(1, 2).index_put_((rows[:, None], slots), values)

    @cached_property
    def _source(self) -> Tensor | None:
        """Int64 ``[n]``: the place whose values each place writes into rings; None: its own."""
        idle = self.idle
        if idle is None:
            return None
        first = (~idle).int().argmax()
        return torch.where(idle, first, torch.arange(len(self.rows), device=self.rows.device))

    def pairs(self, names: Collection[str]) -> PackedStep:
        """A view of the step in which each half of a pair is a row, for tensors ``[rows, 2, ...]``."""
        tensors = {name: (found := self._tensors[name]).view(-1, *found.shape[2:]) for name in names}
        half = torch.arange(2, device=self.rows.device)

        def both(rows: Tensor) -> Tensor:
            return (2 * rows[:, None] + half).flatten()

        runs = [Run(2 * run.place, 2 * run.row, 2 * run.count, run.filled) for run in self._runs]
        return PackedStep(
            tensors,
            both(self.rows),
            runs,
            small_rows=2 * self._small_rows,
            filled=self.filled,
            is_padded=self._is_padded,
            table=None if self._table is None else self._table.pairs(),
        )


def row_bytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes of state of one row, before anything is allocated."""
    return sum(spec.dtype.itemsize * prod(spec.shape) for spec in specs)


class State:
    """The state of S rows as named tensors ``[S, *spec.shape]``; without ``spec.is_kept`` a tensor has S + 1
    rows.

    Row S belongs to no session: places of a tick without a row read and write it. Pooled rings are pages,
    ``[pages, *page_shape]``. Each row normally has pages for its whole rings. An ``overcommit`` above 1
    divides the number of pages; a row then takes pages from ``pool`` as it grows.
    """

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        rows: int,
        device: torch.device | str = "cpu",
        *,
        overcommit: float = 1.0,
    ) -> None:
        """Allocate ``rows`` fresh rows."""
        self.rows, self.device = rows, torch.device(device)
        self.specs = {spec.name: spec for spec in specs}
        rings = {name: spec for name, spec in self.specs.items() if spec.is_pooled}
        self.table: PageTable | None = None
        self.pool: PagePool | None = None
        pages = 0
        if rings:
            (most,) = {row_pages(spec) for spec in rings.values()}
            pages = max(most, math.ceil(rows * most / overcommit))
            numbers = torch.arange(rows * most, dtype=torch.int32, device=device).view(rows, most)
            self.table = PageTable(numbers.remainder(pages), rings)
            self.pool = PagePool(rows, most, pages) if pages < rows * most else None
        self._page_count, self._overcommit = pages, overcommit
        self.tensors = {
            name: torch.full(
                (pages, *page_shape(spec)) if spec.is_pooled else (rows + (not spec.is_kept), *spec.shape),
                spec.fill,
                dtype=spec.dtype,
                device=device,
            )
            for name, spec in self.specs.items()
        }

    def share_pages(self) -> None:
        """Make every row appear to have all its pages, for timing; the rows then share pages."""
        if self.pool is not None and self.table is not None:
            self.pool.share()
            self.table.pages.copy_(torch.from_numpy(self.pool.table))

    def release(self, rows: NDArray[np.int32]) -> None:
        """Free the pages of rows that restart, if rows share them."""
        if self.pool is not None:
            self.pool.release(rows.tolist())

    def hold(self, rows: NDArray[np.int32], positions: NDArray[np.int64]) -> None:
        """Give rows the pages for ``positions [n]`` of their rings, if rows share pages.

        Raises:
            StepError: fewer pages are free.
        """
        if self.pool is not None and self.table is not None and self.pool.hold(rows, positions):
            self.table.pages.copy_(torch.from_numpy(self.pool.table), non_blocking=True)

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones, bit for bit: everything is erased, including rings and voices."""
        if self.pool is not None:
            self.pool.release(rows)  # a page's next row reads only what it wrote
        for row in rows:
            for name, spec in self.specs.items():
                if not spec.is_pooled:
                    self.tensors[name][row].fill_(spec.fill)
                elif self.pool is None and self.table is not None:
                    self.tensors[name][self.table.pages[row]] = spec.fill

    def reset_rows(self, chosen: Tensor, prefix: str = "") -> None:
        """Reset the rows for which ``chosen``, bool ``[S]`` on the device, is true.

        It runs without the host, so it can be captured, and its cost does not grow with rings: tensors with
        ``is_kept`` are hidden by their position, not erased. With ``prefix`` only the tensors whose names
        begin with it are reset.
        """
        for name, spec in self.specs.items():
            if name.startswith(prefix) and not spec.is_kept:
                chosen_rows = chosen.view(-1, *[1] * len(spec.shape))
                self.tensors[name][: self.rows].masked_fill_(chosen_rows, spec.fill)

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """Copy one row: name to tensor of ``spec.shape``, of rings only the filled part.

        Content of earlier sessions in the last page is zeroed.
        """
        own, copies = self._row(row), {}
        for name, spec in self.specs.items():
            copies[name] = spec.cut(own[name], own).clone(memory_format=torch.contiguous_format)
            seen = spec.positions(own) if spec.page_slots > 1 else None
            unused = -(seen or 0) % spec.page_slots
            if seen is not None and unused and seen < spec.shape[spec.slot_axis] * spec.page_slots:
                copies[name].select(spec.slot_axis, -1)[..., -unused:] = 0
        return copies

    def _row(self, row: int) -> dict[str, Tensor]:
        """All tensors of a row; of rings in pages, the begun ones."""
        own = {name: self.tensors[name][row] for name, spec in self.specs.items() if not spec.is_pooled}
        if self.table is not None:
            for name, spec in self.table.rings.items():
                pages = self.table.pages[row, : _pages_begun(spec, own)]
                own[name] = by_slots(spec, self.tensors[name][pages])
        return own

    def check(self, snapshot: Mapping[str, Tensor]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept a snapshot."""
        check_state(snapshot, self.specs.values())

    def restore(self, row: int, snapshot: Mapping[str, Tensor]) -> None:
        """Write a checked snapshot into a fresh row, which then continues bit-identically.

        Raises:
            StepError: rows share pages, and too few are free.
        """
        for name, spec in self.specs.items():
            if not spec.is_pooled:
                spec.cut(self.tensors[name][row], snapshot).copy_(snapshot[name])
        if self.table is None:
            return
        for name, spec in self.table.rings.items():
            count = _pages_begun(spec, snapshot)
            self.hold(np.array([row], np.int32), np.array([count * PAGE_SLOTS]))
            self.tensors[name][self.table.pages[row, :count]] = by_pages(spec, snapshot[name])

    def bytes(self) -> int:
        """Bytes held for all rows together."""
        own = [spec for spec in self.specs.values() if not spec.is_pooled]
        return self.rows * row_bytes(own) + self._page_count * self.page_bytes

    def promised_bytes(self) -> int:
        """Bytes reserved for a row; of shared pages, only its share."""
        own = row_bytes(spec for spec in self.specs.values() if not spec.is_pooled)
        most = 0 if self.table is None else self.table.pages.shape[1]
        return own + math.ceil(most * self.page_bytes / self._overcommit)

    @property
    def page_bytes(self) -> int:
        """The bytes of one page, with its part of every pooled ring."""
        return page_bytes(spec for spec in self.specs.values() if spec.is_pooled)

    def step(
        self,
        rows: Sequence[int] | None = None,
        filled: Sequence[int | None] | None = None,
        *,
        apart: bool = False,
    ) -> PackedStep:
        """A step over rows named by the host, all of them by default.

        ``filled`` bounds the number of frames that each row has received, including this pass's. With
        ``apart`` attention processes each row separately, so that its result does not depend on other rows.
        """
        named = range(self.rows) if rows is None else rows
        bounds = [None] * len(named) if filled is None else filled
        known = [bound for bound in bounds if bound is not None]
        return PackedStep(
            self.tensors,
            torch.tensor(list(named), device=self.device),
            runs_of(named, bounds, apart=apart),
            small_rows=self.rows + 1,
            filled=max(known) if len(known) == len(bounds) else None,
            is_padded=min(named) < 0,
            table=self.table,
        )


def _pages_begun(spec: TensorSpec, row: Tensors) -> int:
    """The filled pages of a pooled ring."""
    used = spec.used(row)
    if used is None:
        return row_pages(spec)
    return used if spec.page_slots > 1 else -(-used // PAGE_SLOTS)
