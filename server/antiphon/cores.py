"""Counts the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")


class CoreTime(NamedTuple):
    """The processor seconds that a process may use in a second, and the period of its CPU quota in seconds; 0
    without a quota.
    """

    cores: float
    period_s: float = 0.0


def usable_cores(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """The whole cores of :func:`core_time`; at least one."""
    return max(1, int(core_time(cgroups, own_groups).cores))


def core_time(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> CoreTime:
    """The cores that this process may run on, or its CPU quota if that is less.

    A quota belongs to the process's control group or to any group around it, in version 1 or 2.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [CoreTime(cores), *_quotas(cgroups, own_groups)]
    return min(quotas, key=lambda one: (one.cores, -one.period_s))  # a longer period has longer pauses


def _quotas(cgroups: Path, own_groups: Path) -> Iterator[CoreTime]:
    """Each quota found. In a container the own group is the top one, whatever its path is."""
    for hierarchy, group in _groups(own_groups):
        for folder in (PurePosixPath(group), *PurePosixPath(group).parents):
            place = cgroups / hierarchy / str(folder).lstrip("/")
            if hierarchy:
                words = [_read(place / "cpu.cfs_quota_us"), _read(place / "cpu.cfs_period_us")]
            else:
                words = (_read(place / "cpu.max") or "").split()
            # Without a limit the file has "max", or -1.
            if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
                yield CoreTime(int(words[0]) / int(words[1]), int(words[1]) / 1e6)


def _groups(own_groups: Path) -> Iterator[tuple[str, str]]:
    """The groups with the quotas of this process: a hierarchy's folder ("" in version 2), and a group in
    it."""
    yield "", "/"
    for line in _read(own_groups).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield "", group
        elif "cpu" in controllers.split(","):
            yield controllers, group
            yield "cpu", group


def _read(file: Path) -> str:
    """Return the text of a file without outer white space, or "" if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
