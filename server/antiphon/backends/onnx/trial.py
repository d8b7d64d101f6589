"""How the runs of a graph are measured at the start, and what is chosen by that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean, median
from typing import Final, TypeAlias

import numpy as np

from antiphon.backends.onnx.windows import RunCost

LEAST_TURNS: Final = 3
MOST_TURNS: Final = 7
TRIAL_S: Final = 0.3
"""Of a graph: turns go on so long, unless there were fewer than the least."""
SPIN_GAIN: Final = 0.95
"""Of the time with threads that sleep: threads spin where they take less than that. What they spin is taken
from whatever else the machine does, so that a time within the noise of a measurement is no reason."""


class Way(StrEnum):
    """How a run uses threads: all on one run, asleep or spinning where they wait, or each on a part of it."""

    SLEEPING = "sleeping"
    SPINNING = "spinning"
    PARTS = "parts"


Times: TypeAlias = dict[Way, dict[int, list[float]]]
"""Milliseconds of runs, by number of rows."""

Prepare: TypeAlias = Callable[[range], Callable[[], object]]
"""Binds neighbouring rows, and gives the run over them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether threads spin, from how many rows on parts run at the same time, and what a whole run costs."""

    is_spinning: bool
    apart_from: int | None
    cost: RunCost

    @classmethod
    def by(cls, times: Times) -> Choice:
        """What was fastest by the medians of its runs; cost is of the best, which met no other work."""
        whole = times.get(Way.SLEEPING) or times[Way.SPINNING]
        is_spinning = Way.SLEEPING not in times
        if not is_spinning and Way.SPINNING in times:
            spinning = times[Way.SPINNING]
            ratios = [median(spinning[count]) / median(found) for count, found in whole.items()]
            is_spinning = geometric_mean(ratios) < SPIN_GAIN
        if is_spinning:
            whole = times[Way.SPINNING]
        cost = RunCost.fit({count: min(found) for count, found in whole.items()})
        return cls(is_spinning, _apart_from(whole, times.get(Way.PARTS, {})), cost)


def _apart_from(whole: Mapping[int, Sequence[float]], parts: Mapping[int, Sequence[float]]) -> int | None:
    """From how many rows on parts save the most, all numbers timed counting alike; None where they cost."""
    found, saved, most = None, 0.0, 0.0
    for count in sorted(parts, reverse=True):
        saved += math.log(median(whole[count]) / median(parts[count]))
        if saved > most:
            found, most = count, saved
    return found


def time_ways(runs: Mapping[Way, Prepare], slots: int, counts: Sequence[int]) -> Times:
    """Time runs over so many of ``slots`` rows, by turns: what else the machine does meets every way.

    Ways run one after the other over other rows, as far as there are any: rings come from memory, as in a
    call. Each turn begins with another way. Rows are bound before the time is taken.
    """
    ways = list(runs)
    times: Times = {way: {count: [] for count in counts} for way in ways}
    for way in ways:
        runs[way](range(slots))()
    begin_s = time.perf_counter()
    for turn in range(MOST_TURNS):
        for count in counts:
            windows = spaced(slots, count)
            for place in range(len(ways)):
                way = ways[(turn + place) % len(ways)]
                run = runs[way](windows[(3 * turn + 2 * place) % MOST_TURNS])
                start_s = time.perf_counter()
                run()
                times[way][count].append(1000.0 * (time.perf_counter() - start_s))
        if turn + 1 >= LEAST_TURNS and time.perf_counter() - begin_s > TRIAL_S:
            break
    return times


def spaced(slots: int, count: int) -> list[range]:
    """Windows of so many rows, as far from each other as there is room."""
    starts = np.linspace(0, slots - count, MOST_TURNS).astype(int).tolist()
    return [range(start, start + count) for start in starts]
