"""Model state as named tensors, row first: a :class:`State` owns S rows.

``docs/state.md`` lists every tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from antiphon.backends.snapshots import Form, check_tensors
from antiphon.backends.torch.step import PackedStep, runs_of


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One state tensor: its name, its shape without the row axis, its dtype, and what fresh rows hold.

    ``is_kept``: a tick's reset leaves it as it is, and no row is spared for padding. So it is with what is
    large and cannot be seen by the next session: rings, of which the position says what is there, and a
    voice, which is set, not lived. Of a ring, ``position`` names the tensor that says how many positions its
    row has seen, and ``slot_axis`` is the axis of ``shape`` along which they lie, or, where ``page_slots`` is
    above 1, pages of so many: the last axis is the slots of a page.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: int | float = 0
    is_kept: bool = False
    position: str | None = None
    slot_axis: int = 1
    page_slots: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes one row of this tensor takes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def pair(self) -> TensorSpec:
        """The same for a row that is two sequences."""
        return replace(self, shape=(2, *self.shape), slot_axis=self.slot_axis + 1)

    def cut(self, tensor: Tensor, positions: int) -> Tensor:
        """What of one row's tensor is in use after so many positions; of pages, those that are begun."""
        if self.position is None:
            return tensor
        used = -(-positions // self.page_slots)
        return tensor.narrow(self.slot_axis, 0, min(used, self.shape[self.slot_axis]))

    def kept(self, tensor: Tensor, positions: int) -> Tensor:
        """A copy of what is in use; what earlier sessions left in the last page is zeros."""
        found = self.cut(tensor, positions).clone()
        unused = -positions % self.page_slots
        if unused and positions < self.shape[self.slot_axis] * self.page_slots:
            found.select(self.slot_axis, -1)[..., -unused:] = 0
        return found


def row_bytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes of state one row takes, before anything is allocated."""
    return sum(spec.row_bytes for spec in specs)


class State:
    """S rows of named tensors, ``[S, *spec.shape]``, and of those that are not kept one row more.

    That row, the last, belongs to no session: places of a tick without a row read and write it.
    """

    def __init__(self, specs: Iterable[TensorSpec], rows: int, device: torch.device | str = "cpu") -> None:
        """Allocate ``rows`` fresh rows."""
        self.rows, self.device = rows, torch.device(device)
        self.specs = {spec.name: spec for spec in specs}
        self.tensors = {
            spec.name: torch.full(
                (rows + (not spec.is_kept), *spec.shape), spec.fill, dtype=spec.dtype, device=device
            )
            for spec in self.specs.values()
        }

    def reset(self, rows: Sequence[int]) -> None:
        """Make the given rows like fresh ones, bit for bit: everything is erased, rings and voices too."""
        for row in rows:
            for name, spec in self.specs.items():
                self.tensors[name][row].fill_(spec.fill)

    def renew(self, chosen: Tensor, prefix: str = "") -> None:
        """Make rows fresh where ``chosen``, bool ``[S]`` on the device, says so.

        Without a word from the host, so it can be captured, and at a cost that does not grow with rings:
        tensors that ``is_kept`` names are hidden by their position, not erased. With ``prefix`` only the
        tensors whose names begin with it.
        """
        for name, spec in self.specs.items():
            if name.startswith(prefix) and not spec.is_kept:
                chosen_rows = chosen.view(-1, *[1] * len(spec.shape))
                self.tensors[name][: self.rows].masked_fill_(chosen_rows, spec.fill)

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """Copy one row: name to tensor of ``spec.shape``, rings only as far as they are filled."""
        of_row = {name: tensor[row] for name, tensor in self.tensors.items()}
        return {
            name: self.specs[name].kept(tensor, self._positions(name, of_row))
            for name, tensor in of_row.items()
        }

    def _positions(self, name: str, beside: Mapping[str, Tensor]) -> int:
        """How many positions a row's tensor has seen, by the count ``beside`` it."""
        position = self.specs[name].position
        return 0 if position is None else int(beside[position].max())

    def _cut(self, name: str, tensor: Tensor, beside: Mapping[str, Tensor]) -> Tensor:
        """What of a row's tensor is filled, by the position ``beside`` it."""
        return self.specs[name].cut(tensor, self._positions(name, beside))

    def check(self, snapshot: Mapping[str, Tensor]) -> None:
        """Raise UnsupportedError unless :meth:`restore` can take a snapshot."""
        wanted: dict[str, Form] = {}
        for name, spec in self.specs.items():
            whole = torch.empty(spec.shape, device="meta")
            is_known = spec.position is None or spec.position in snapshot
            wanted[name] = (self._cut(name, whole, snapshot) if is_known else whole).shape, spec.dtype
        check_tensors(snapshot, wanted)

    def restore(self, row: int, snapshot: Mapping[str, Tensor]) -> None:
        """Put a snapshot that was checked into a fresh row, which then continues bit-identically."""
        for name, tensor in self.tensors.items():
            self._cut(name, tensor[row], snapshot).copy_(snapshot[name])

    def bytes(self) -> int:
        """Bytes held for all rows together."""
        return self.rows * row_bytes(self.specs.values())

    def step(
        self,
        rows: Sequence[int] | None = None,
        filled: Sequence[int | None] | None = None,
        *,
        apart: bool = False,
    ) -> PackedStep:
        """A step over rows named by the host, all of them by default.

        ``filled`` bounds the frames that each has seen, this pass's included. ``apart``: attention looks at
        each row by itself, so that its result does not depend on the rows beside it.
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
        )
