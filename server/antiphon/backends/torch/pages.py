"""Rings in pages: a row's memory consists of pages of one pool and is not contiguous.

A page has PAGE_SLOTS slots of every pooled ring, so one table of pages per row serves all layers. Snapshots
are ordered by slots, as for a row with contiguous rings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.snapshots import TensorSpec


def page_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a page's part of a pooled ring, with PAGE_SLOTS slots."""
    shape = list(spec.shape)
    if spec.page_slots > 1:
        del shape[spec.slot_axis]
    else:
        shape[spec.slot_axis] = PAGE_SLOTS
    return tuple(shape)


def page_bytes(specs: Iterable[TensorSpec]) -> int:
    """The bytes of one page, with its part of every ring."""
    return sum(spec.dtype.itemsize * prod(page_shape(spec)) for spec in specs)


def row_pages(spec: TensorSpec) -> int:
    """The number of pages that hold a whole ring."""
    return -(-spec.shape[spec.slot_axis] * spec.page_slots // PAGE_SLOTS)


def by_slots(spec: TensorSpec, pages: Tensor) -> Tensor:
    """Turn a row's pages ``[n, *page_shape]`` into its ring in the order of slots; a view or a copy."""
    ring = pages.movedim(0, spec.slot_axis)
    return ring if spec.page_slots > 1 else ring.flatten(spec.slot_axis, spec.slot_axis + 1)


def by_pages(spec: TensorSpec, ring: Tensor) -> Tensor:
    """Reverse :func:`by_slots`, for a ring cut to any length; zeros fill the last page."""
    if spec.page_slots == 1:
        axis, slots = spec.slot_axis, ring.shape[spec.slot_axis]
        shape = list(ring.shape)
        shape[axis] = -(-slots // PAGE_SLOTS) * PAGE_SLOTS
        whole = ring.new_zeros(shape)
        whole.narrow(axis, 0, slots).copy_(ring)
        ring = whole.unflatten(axis, (-1, PAGE_SLOTS))
    return ring.movedim(spec.slot_axis, 0)


@dataclass(frozen=True, slots=True)
class PageTable:
    """The pages of each row: ``pages`` int32 ``[rows, row_pages]``, in the order of their positions.

    ``rings`` are the rings that are stored in pages, by name.
    """

    pages: Tensor
    rings: Mapping[str, TensorSpec]

    def places(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The page, and the slot within it, of slots ``[n, T]`` of rows ``[n]``; both ``[n, T]``."""
        pages = self.pages[rows[:, None], torch.div(slots, PAGE_SLOTS, rounding_mode="floor")]
        return pages, slots % PAGE_SLOTS

    def read(self, name: str, pool: Tensor, rows: slice, slots: int) -> Tensor:
        """A copy of at least the first ``slots`` slots of a ring of neighbouring rows, ``[count,
        *shape]``.
        """
        pages = self.pages[rows, : -(-slots // PAGE_SLOTS)]
        spec = self.rings[name]
        of_rows = replace(spec, slot_axis=spec.slot_axis + 1)
        return by_slots(of_rows, pool[pages].movedim(1, 0))

    def pairs(self) -> PageTable:
        """The table for rings whose rows are pairs, ``[2, ...]``: it has a row for each half of a pair."""
        half = torch.arange(2, dtype=torch.int32, device=self.pages.device)[:, None]
        pages = (2 * self.pages[:, None] + half).flatten(0, 1)
        halves = {
            name: replace(spec, shape=spec.shape[1:], slot_axis=spec.slot_axis - 1)
            for name, spec in self.rings.items()
        }
        return PageTable(pages, halves)
