"""Which row of the backend a session gets: neighbours for sessions whose frames come at like times.

Sessions of like phase are ready in the same ticks, and a backend may run neighbouring rows for less than
scattered ones (decision 0021). A session's phase is known with its first frame, so it gets its row then.
"""

from __future__ import annotations

import numpy as np

from antiphon.backends.base import BoolArray


class Placement:
    """The rows ``0 .. rows-1``: free ones, and the place of each phase among them."""

    def __init__(self, rows: int, frame_s: float) -> None:
        """Start with all rows free."""
        self._frame_s = frame_s
        self._is_free: BoolArray = np.ones(rows, np.bool_)

    def take(self, complete_s: float) -> int:
        """The free row nearest to the place of a first frame that was complete at ``complete_s``.

        The phase, from 0 to 1, is stretched over all rows. There is a free row: admission lets no more
        sessions in than there are rows.
        """
        free = np.flatnonzero(self._is_free)
        place = (complete_s / self._frame_s) % 1.0 * self._is_free.size
        row = int(free[np.argmin(np.abs(free + 0.5 - place))])
        self._is_free[row] = False
        return row

    def give_back(self, row: int) -> None:
        """The row's session has ended."""
        self._is_free[row] = True
