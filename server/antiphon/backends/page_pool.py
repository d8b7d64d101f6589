"""The pages of each row's rings, when rows share fewer pages than all of them could fill.

A row takes a page when its position enters one that it does not have, and returns all pages when its call
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import StepError

PAGE_SLOTS: Final = 64
"""Slots of a page, the same as in a tile of the attention kernels."""


class PagePool:
    """Pages that rows share. ``table`` is int32 ``[rows, most]``; the first ``held`` entries of a row are its
    pages.
    """

    def __init__(self, rows: int, most: int, pages: int) -> None:
        """Start with ``pages`` free pages; a row has up to ``most``."""
        self.most, self.pages = most, pages
        self.table: NDArray[np.int32] = np.zeros((rows, most), np.int32)
        self.held: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._free: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self.held[:], self._free, self._is_shared = 0, list(range(self.pages - 1, -1, -1)), False

    @property
    def free(self) -> int:
        """The number of pages that no row has."""
        return len(self._free)

    def missing(self, rows: NDArray[np.int32], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of pages that each of the rows ``[n]`` lacks for ``positions [n]``."""
        wanted = np.minimum(-(-positions // PAGE_SLOTS), self.most)
        found: NDArray[np.int64] = np.maximum(wanted - self.held[rows], 0)
        return found

    def hold(self, rows: NDArray[np.int32], positions: NDArray[np.int64]) -> bool:
        """Give rows ``[n]`` the pages for ``positions [n]``; returns whether the table has changed.

        Raises:
            StepError: too few pages are free; the rows keep their former pages.
        """
        missing = self.missing(rows, positions)
        short = np.flatnonzero(missing)
        if (wanted := int(missing.sum())) > self.free:
            words = f"rows {rows[short].tolist()} need {wanted} pages, and {self.free} are free"
            raise StepError(words, rows=rows.tolist())
        for row, count in zip(rows[short].tolist(), missing[short].tolist(), strict=True):
            held = int(self.held[row])
            self.table[row, held : held + count] = [self._free.pop() for _ in range(count)]
            self.held[row] += count
        return bool(short.size)

    def release(self, rows: Sequence[int]) -> None:
        """Free the pages of rows."""
        if self._is_shared:
            self._clear()
        for row in rows:
            self._free.extend(self.table[row, : self.held[row]].tolist())
            self.held[row] = 0

    def share(self) -> None:
        """Make every row appear to have all its pages, until one is released; only for timing."""
        self.table[:] = np.arange(self.table.size).reshape(self.table.shape) % self.pages
        self.held[:], self._free, self._is_shared = self.most, [], True

    def youngest(
        self, rows: NDArray[np.int32], positions: NDArray[np.int64], frames: NDArray[np.int64]
    ) -> list[int]:
        """The rows to end so that ``rows [n]`` have room for ``positions [n]``, the youngest first.

        ``frames [S]`` is the age of every row; among rows of equal age the row with the highest number ends
        first. A row that ends needs no page.
        """
        missing = dict(zip(rows.tolist(), self.missing(rows, positions).tolist(), strict=True))
        free, ended = self.free, list[int]()
        alive = {*np.flatnonzero(self.held).tolist(), *missing}
        for row in sorted(alive, key=lambda row: (frames[row], -row)):
            if sum(missing.values()) <= free:
                break
            missing.pop(row, None)
            free += int(self.held[row])
            ended.append(row)
        return ended
