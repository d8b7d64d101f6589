"""Which rows are run together: arithmetic over row numbers and what runs cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RunCost:
    """Milliseconds of a run over n rows: ``run_ms + n * row_ms``."""

    run_ms: float
    row_ms: float

    @classmethod
    def fit(cls, times_ms: Mapping[int, float]) -> RunCost:
        """The line that is nearest to measured times by number of rows, by relative error."""
        if len(times_ms) == 1:
            ((count, time_ms),) = times_ms.items()
            return cls(0.0, time_ms / count)
        counts, times = np.array(list(times_ms)), np.array(list(times_ms.values()))
        row_ms, run_ms = np.polyfit(counts, times, 1, w=1 / times)
        return cls(max(0.0, float(run_ms)), max(0.0, float(row_ms)))

    def bridges(self, idle_rows: int) -> bool:
        """Whether running idle rows along costs less than one more run."""
        return idle_rows * self.row_ms < self.run_ms


def cut(windows: Sequence[range], parts: int) -> list[list[range]]:
    """The same rows in at most ``parts`` lists of windows, of about as many rows each; none is empty."""
    total = sum(map(len, windows))
    ends = [total * part // parts for part in range(1, parts + 1)]
    found: list[list[range]] = [[] for _ in ends]
    seen = 0
    for window in windows:
        part = next(index for index, end in enumerate(ends) if seen < end)
        while len(window):
            piece = window[: ends[part] - seen]
            if len(piece):
                found[part].append(piece)
            seen, window, part = seen + len(piece), window[len(piece) :], part + 1
    return [part for part in found if part]


def split(rows: Sequence[int], cost: RunCost) -> list[range]:
    """The cheapest windows that hold all of the ascending ``rows``.

    The cost is linear, so each gap between two rows is decided by itself.
    """
    windows: list[range] = []
    for row in rows:
        if windows and cost.bridges(row - windows[-1].stop):
            windows[-1] = range(windows[-1].start, row + 1)
        else:
            windows.append(range(row, row + 1))
    return windows
