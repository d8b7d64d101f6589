"""Model state as named tensors, row first.

A :class:`State` owns S rows. A :class:`Step` is what modules see of it during one tick: the prefix of
rows ``0 .. n-1`` as views, and which of them advance. ``docs/state.md`` lists every tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One state tensor: its name, its shape without the row axis, its dtype, and what fresh rows hold.

    ``is_kept``: a tick's reset leaves it as it is. So it does with what is large and cannot be seen by the
    next session: rings, of which the position says what is there, and a voice, which is set, not lived.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: int | float = 0
    is_kept: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes one row of this tensor takes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def row_bytes(specs: Iterable[TensorSpec]) -> int:
    """Bytes of state one row takes, before anything is allocated."""
    return sum(spec.row_bytes for spec in specs)


class State:
    """S rows of named tensors, each ``[S, *spec.shape]``."""

    def __init__(self, specs: Iterable[TensorSpec], rows: int, device: torch.device | str = "cpu") -> None:
        """Allocate ``rows`` fresh rows."""
        self.rows = rows
        self.specs = {spec.name: spec for spec in specs}
        self.tensors = {
            spec.name: torch.full((rows, *spec.shape), spec.fill, dtype=spec.dtype, device=device)
            for spec in self.specs.values()
        }

    def reset(self, rows: Sequence[int]) -> None:
        """Make the given rows like fresh ones, bit for bit: everything is erased, rings and voices too."""
        for row in rows:
            for name, spec in self.specs.items():
                self.tensors[name][row].fill_(spec.fill)

    def renew(self, chosen: Tensor, prefix: str = "") -> None:
        """Make rows of the prefix ``0 .. n-1`` fresh where ``chosen``, bool ``[n]`` on the device, says so.

        Without a word from the host, so it can be captured, and at a cost that does not grow with rings:
        tensors that ``is_kept`` names are hidden by their position, not erased. With ``prefix`` only the
        tensors whose names begin with it.
        """
        rows = chosen.shape[0]
        for name, spec in self.specs.items():
            if name.startswith(prefix) and not spec.is_kept:
                self.tensors[name][:rows].masked_fill_(chosen.view(-1, *[1] * len(spec.shape)), spec.fill)

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """Copy one row: name to tensor of ``spec.shape``."""
        return {name: tensor[row].clone() for name, tensor in self.tensors.items()}

    def restore(self, row: int, snapshot: Mapping[str, Tensor]) -> None:
        """Put a snapshot into a row, which then continues bit-identically.

        Raises:
            UnsupportedError: the snapshot is of another model: a tensor is missing or of another shape.
        """
        for name, spec in self.specs.items():
            found = tuple(snapshot[name].shape) if name in snapshot else None
            if found != spec.shape:
                raise UnsupportedError(f"the snapshot has {name} of shape {found}, this model {spec.shape}")
        for name, tensor in self.tensors.items():
            tensor[row].copy_(snapshot[name])

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for tensor in self.tensors.values():
            tensor[target].copy_(tensor[source])

    def bytes(self) -> int:
        """Bytes held for all rows together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def step(self, rows: int, exec_mask: Tensor | None = None) -> Step:
        """The prefix of ``rows`` rows as views, updated in place by the modules that get it."""
        return Step({name: tensor[:rows] for name, tensor in self.tensors.items()}, exec_mask, in_place=True)

    def row_step(self, row: int) -> Step:
        """One row alone, ``[1, ...]``, as a view."""
        return Step({name: tensor[row : row + 1] for name, tensor in self.tensors.items()}, in_place=True)


class Step:
    """One tick's view of the state: tensors ``[n, ...]`` and which rows advance.

    ``exec_mask`` is bool ``[n]``; None means every row. With ``in_place`` the tensors are written
    where they are (eager, CUDA graphs); without, ``tensors`` is replaced name by name and the inputs
    stay as they were, which makes a module a pure function from state to new state (export).
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], exec_mask: Tensor | None = None, *, in_place: bool = False
    ) -> None:
        """Look at ``tensors``; ``in_place`` says whether writes go into them."""
        self.tensors = dict(tensors)
        self.exec_mask = exec_mask
        self.in_place = in_place

    def read(self, name: str) -> Tensor:
        """The tensor as it is now, ``[n, *spec.shape]``."""
        return self.tensors[name]

    def select(self, new: Tensor, old: Tensor) -> Tensor:
        """``new`` for rows that advance, ``old`` for the others."""
        if self.exec_mask is None:
            return new
        return torch.where(self.exec_mask.view(-1, *[1] * (old.dim() - 1)), new, old)

    def write(self, name: str, new: Tensor) -> None:
        """Replace a whole tensor, for the rows that advance."""
        old = self.tensors[name]
        new = self.select(new, old)
        if self.in_place:
            old.copy_(new)
        else:
            self.tensors[name] = new.to(old.dtype)

    def write_slots(self, name: str, slots: Tensor, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]`` at ``slots [n, T]`` of a ring ``[n, H, C, ...]``.

        Rows that do not advance get back what they held, so that nothing of theirs moves.
        """
        ring = self.tensors[name]
        index = slots.view(slots.shape[0], 1, -1, *[1] * (ring.dim() - 3)).expand(values.shape)
        if self.exec_mask is not None:
            values = self.select(values, ring.gather(2, index))
        if self.in_place:
            ring.scatter_(2, index, values)
        else:
            self.tensors[name] = ring.scatter(2, index, values)
