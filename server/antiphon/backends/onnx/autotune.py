"""Measures the runs of a graph at the start, next to a simulated load, and chooses how to run it."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean, median
from typing import Final, TypeAlias

import numpy as np

from antiphon.cores import usable_cores

RUNS_OF_A_PART: Final = 3
"""The rows of a part take at least as long as this number of runs without rows. Two parts then spend at most
a seventh more processor time than one run, and finish in at most four sevenths of its time.
"""


@dataclass(frozen=True, slots=True)
class RunCost:
    """Milliseconds of a run over n rows: ``run_ms + n * row_ms``."""

    run_ms: float
    row_ms: float

    @classmethod
    def fit(cls, times_ms: Mapping[int, float]) -> RunCost:
        """Fit the line to the measured times by number of rows, with the least relative error."""
        if len(times_ms) == 1:
            ((count, time_ms),) = times_ms.items()
            return cls(0.0, time_ms / count)
        counts, times = np.array(list(times_ms)), np.array(list(times_ms.values()))
        row_ms, run_ms = np.polyfit(counts, times, 1, w=1 / times)
        return cls(max(0.0, float(run_ms)), max(0.0, float(row_ms)))

    @property
    def split_from(self) -> int | None:
        """The number of rows from which two parts at the same time are worth it; None if rows take no
        time.
        """
        return 2 * max(1, math.ceil(RUNS_OF_A_PART * self.run_ms / self.row_ms)) if self.row_ms else None

    def bridges(self, idle_rows: int) -> bool:
        """Whether ``idle_rows`` unneeded rows in a run take less time than another run."""
        return idle_rows * self.row_ms < self.run_ms


def cut(windows: Sequence[range], parts: int) -> list[list[range]]:
    """Divide the windows into at most ``parts`` lists with about equal numbers of rows; no list is empty, and
    the first is the longest.
    """
    total = sum(map(len, windows))
    ends = [-(-total * part // parts) for part in range(1, parts + 1)]
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
    """The cheapest windows that contain all of the ascending ``rows``.

    The cost is linear, so each gap between two rows can be decided separately.
    """
    windows: list[range] = []
    for row in rows:
        if windows and cost.bridges(row - windows[-1].stop):
            windows[-1] = range(windows[-1].start, row + 1)
        else:
            windows.append(range(row, row + 1))
    return windows


BURST_BYTES: Final = 1 << 20
"""Bytes that one burst of simulated work reads. A burst takes a fraction of a millisecond, like the handling
of a call's message.
"""
PAUSE: Final = 3.0
"""The pause after a burst, in multiples of its CPU time, so that the thread uses a quarter of a core."""


@contextmanager
def load(threads: int) -> Iterator[bool]:
    """Run a thread that uses a quarter of a core during the block; yield whether it runs.

    If ``threads`` leave a core free, that is enough for sockets, and no load is simulated.
    """
    if threads < max(2, usable_cores()):
        yield False
        return
    is_over, data = threading.Event(), bytes(BURST_BYTES)

    def disturb() -> None:
        pause_s = 0.0
        while not is_over.wait(pause_s):
            begin_s = time.thread_time()
            zlib.crc32(data)  # releases the interpreter's lock
            pause_s = PAUSE * (time.thread_time() - begin_s)

    thread = threading.Thread(target=disturb, name="antiphon-load", daemon=True)
    thread.start()
    try:
        yield True
    finally:
        is_over.set()
        thread.join()


LEAST_TURNS: Final = 3
SINGLE_TURNS: Final = 5
"""Rounds for a single mode, whose cost decides which rows a run bridges and which parts it has."""
MOST_TURNS: Final = 7
TRIAL_S: Final = 0.3
"""Seconds of measurement for a graph. A minimum number of rounds may take longer."""
FEW_ROWS: Final = 4
"""Maximum number of rows in runs that are timed for the cost of a single mode."""
SPIN_GAIN: Final = 0.95
"""Threads spin only if that takes less than this fraction of the time with sleeping threads. Spinning takes
CPU time from all other work, so a gain within the noise of a measurement is not enough.
"""


class ThreadMode(StrEnum):
    """How a run uses threads: all threads on one run, which sleep or spin while they wait, or each thread on
    a part.
    """

    SLEEPING = "sleeping"
    SPINNING = "spinning"
    PARTS = "parts"


Times: TypeAlias = dict[ThreadMode, dict[int, list[float]]]
"""Times of runs in milliseconds, by number of rows."""

Prepare: TypeAlias = Callable[[range], Callable[[], object]]
"""Binds neighbouring rows, and returns the run over them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way to run a graph: whether threads spin, from which number of rows parts run at the same
    time, and the cost of a whole run.
    """

    is_spinning: bool
    split_from: int | None
    cost: RunCost

    @classmethod
    def by(cls, times: Times) -> Choice:
        """Choose the mode with the lowest median time. The cost comes from the fastest run, the one least
        disturbed by other work.
        """
        whole = times.get(ThreadMode.SLEEPING) or times[ThreadMode.SPINNING]
        is_spinning = ThreadMode.SLEEPING not in times
        if not is_spinning and ThreadMode.SPINNING in times:
            spinning = times[ThreadMode.SPINNING]
            ratios = [median(spinning[count]) / median(found) for count, found in whole.items()]
            is_spinning = geometric_mean(ratios) < SPIN_GAIN
        if is_spinning:
            whole = times[ThreadMode.SPINNING]
        cost = RunCost.fit({count: min(found) for count, found in whole.items()})
        return cls(is_spinning, _split_from(whole, times.get(ThreadMode.PARTS, {})), cost)


def _split_from(whole: Mapping[int, Sequence[float]], parts: Mapping[int, Sequence[float]]) -> int | None:
    """The number of rows from which parts save most time, or None; all counts weigh equally."""
    found, saved, most = None, 0.0, 0.0
    for count in sorted(parts, reverse=True):
        saved += math.log(median(whole[count]) / median(parts[count]))
        if saved > most:
            found, most = count, saved
    return found


def time_modes(runs: Mapping[ThreadMode, Prepare], slots: int, counts: Sequence[int]) -> Times:
    """Time runs over ``counts`` of ``slots`` rows, alternating, so that other load affects every mode
    equally.

    A single mode is timed at few row counts, which is enough to compute its cost. The first run at a count
    is slower, so every count is timed at least ``LEAST_TURNS`` times; a single mode is timed ``SINGLE_TURNS``
    times.

    Modes alternate over different rows, as far as possible, so that rings are read from memory and not from a
    cache, as in a call. Each round begins with another mode. Rows are bound before the timing.
    """
    modes = list(runs)
    is_choice = len(modes) > 1
    counts = counts if is_choice else few(counts)
    times: Times = {mode: {count: [] for count in counts} for mode in modes}
    for mode in modes:
        runs[mode](range(slots))()
    begin_s = time.perf_counter()
    for turn in range(MOST_TURNS if is_choice else SINGLE_TURNS):
        for count in counts:
            windows = spaced(slots, count)
            for place in range(len(modes)):
                mode = modes[(turn + place) % len(modes)]
                run = runs[mode](windows[(3 * turn + 2 * place) % MOST_TURNS])
                start_s = time.perf_counter()
                run()
                times[mode][count].append(1000.0 * (time.perf_counter() - start_s))
        if is_choice and time.perf_counter() - begin_s > TRIAL_S and turn + 1 >= LEAST_TURNS:
            break
    return times


def few(counts: Sequence[int]) -> list[int]:
    """The numbers of rows that suffice for the cost of a single mode: the least, and the greatest up to
    ``FEW_ROWS``.
    """
    found = [count for count in counts if count <= FEW_ROWS]
    return sorted({min(found), max(found)})


def spaced(slots: int, count: int) -> list[range]:
    """``MOST_TURNS`` windows of ``count`` rows each, evenly spread over ``slots`` rows."""
    starts = np.linspace(0, slots - count, MOST_TURNS).astype(int).tolist()
    return [range(start, start + count) for start in starts]
