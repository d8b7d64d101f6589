"""The number of CPU threads for a model beside its server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from antiphon.errors import ConfigError

CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""What a container may take of all cores: microseconds of CPU time, and of how many."""


def usable_cores(quota: Path = CPU_QUOTA) -> int:
    """The cores that this process may run on, or as many whole ones as its container's quota is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, _, period = quota.read_text().strip().partition(" ")
    except OSError:
        return cores
    if not (limit.isdecimal() and period.isdecimal() and int(period)):
        return cores  # "max": no limit
    return max(1, min(cores, int(limit) // int(period)))


def model_threads(asked: int | None = None) -> int:
    """As many as were asked for, or all cores but one, and at least one.

    Sockets and Opus run beside every step. With a thread on each core, a step's parallel parts wait for
    whichever of theirs was put aside meanwhile: beside one other busy process on two cores, a step of the
    built-in codec took 52 ms with two threads and 10 ms with one (medians, one row).

    Raises:
        ConfigError: fewer than one was asked for.
    """
    if asked is None:
        return max(1, (os.cpu_count() or 1) - 1)
    if asked < 1:
        raise ConfigError(f"threads is {asked}; a model needs at least 1")
    return asked
