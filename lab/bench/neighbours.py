"""CPU time of other processes during a measurement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psutil

MOST_CORES: Final = 0.2
"""Above this number of cores a measurement is affected by other processes; the kernel's own took up to
0.17."""


def busy_cpu_s() -> float:
    """Return the seconds that all cores of the machine have been busy so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def own_cpu_s() -> float:
    """Return the CPU seconds of this process and of all processes that it has started, including ended
    ones."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended: its parent has its time
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass
class Neighbours:
    """The CPU use of other processes since the creation of this object, in cores."""

    busy_s: Callable[[], float] = busy_cpu_s
    own_s: Callable[[], float] = own_cpu_s
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Start to count."""
        self._began_s, self._others_s = self.clock(), self.busy_s() - self.own_s()

    def cores(self) -> float:
        """Return the mean number of cores that other processes have kept busy so far."""
        others_s = self.busy_s() - self.own_s() - self._others_s
        return max(0.0, others_s) / max(self.clock() - self._began_s, 1e-9)
