"""At which places of a stage a tick's rows are computed: packed, or each in its own place."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import IntArray
from antiphon.backends.torch.step import NO_ROW, Run, runs_of

SHORTEST_READ_FRAMES = 64
"""Reads of rings that are captured without kernels are bounded by the oldest row's frames, rounded up to a
power of two from here. Kernels bound each row by itself."""

WHOLE_RING = 1 << 30
"""A bound on reads of rings that is above every ring."""

_FEW_ROWS = (1, 2, 4, 8)
_ROWS_APART = 16


class Layout(Enum):
    """How the rows of a tick are laid out.

    EAGER: exactly those that are named. PADDED: kernels take the list of rows, whose length is rounded up so
    that few shapes are captured. WHOLE: all rows, each in its own place, where shapes are captured and no
    kernel takes a list.
    """

    EAGER = "eager"
    PADDED = "padded"
    WHOLE = "whole"


def row_buckets(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, ... up to the number of slots, and that itself."""
    sizes, size = list(_FEW_ROWS), _ROWS_APART
    while size < slots:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(size for size in sizes if size < slots), slots)


def read_bucket(frames: int) -> int:
    """The bound on captured ring reads for rows that have seen up to ``frames`` frames."""
    return max(SHORTEST_READ_FRAMES, 1 << (frames - 1).bit_length())


def captured_frames(layout: Layout, context_frames: int) -> tuple[int, ...]:
    """Frames that rows have seen at most, one for each bound on reads that is captured apart."""
    if layout is not Layout.WHOLE:
        return (SHORTEST_READ_FRAMES,)
    return tuple(sorted({read_bucket(1 << shift) for shift in range(context_frames.bit_length() + 1)}))


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one stage.

    ``rows`` int32 ``[n]`` is the row at each, NO_ROW where there is none. ``at`` ``[m]`` is the place of each
    named row, in the order they were named. ``runs``, ``filled`` and ``is_padded``: see
    :class:`antiphon.backends.torch.step.PackedStep`.
    """

    rows: IntArray
    at: NDArray[np.intp]
    runs: tuple[Run, ...]
    filled: int
    is_padded: bool

    @property
    def count(self) -> int:
        """The number of places n."""
        return int(self.rows.size)

    def key(self, context_frames: int) -> Hashable:
        """What a captured form depends on; past its context, one bound on reads serves all."""
        return self.count, min(self.filled, context_frames), self.is_padded


def place_rows(
    layout: Layout, slots: int, rows: IntArray, frames: NDArray[np.int64], *, is_fixed: bool = False
) -> Places:
    """Lay out rows int32 ``[m]`` that have seen ``frames [m]`` frames, this one not included.

    ``is_fixed``: each in its own place among all, and by itself in attention that is not by kernels.
    """
    count, is_eager = planned_rows(layout, slots, rows.size, is_fixed=is_fixed), layout is Layout.EAGER
    is_in_place = is_fixed or layout is Layout.WHOLE
    at = rows.astype(np.intp) if is_in_place else np.arange(rows.size)
    placed, filled = np.full(count, NO_ROW, np.int32), np.zeros(count, np.int64)
    placed[at], filled[at] = rows, frames + 1
    longest = int(filled.max())
    if is_eager:
        runs = runs_of(placed.tolist(), filled.tolist(), apart=is_fixed)
        return Places(placed, at, runs, longest, is_padded=count > rows.size)
    # Attention that is not by kernels adds in another order over other lengths: in a fixed tick one for all.
    # Kernels read each row up to its own length, so one captured form serves calls of any age.
    longest = WHOLE_RING if is_fixed or layout is Layout.PADDED else read_bucket(longest)
    whole = (Run(0, 0, slots, longest),) if layout is Layout.WHOLE else ()
    return Places(placed, at, whole, longest, is_padded=True)


def planned_rows(layout: Layout, slots: int, count: int, *, is_fixed: bool) -> int:
    """How many places a tick over ``count`` rows has."""
    if is_fixed or layout is Layout.WHOLE:
        return slots
    if layout is Layout.EAGER:
        return count
    return next(bucket for bucket in row_buckets(slots) if bucket >= count)
