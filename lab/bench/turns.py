"""Times several calls alternately, so that other load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from lab.bench.harness import Values

Call: TypeAlias = Callable[[], object]

UNTIMED_TURNS = 2
"""Uncounted first rounds, which page in and allocate."""


def clock() -> Callable[[], float]:
    """Return the clock of measurements: with one thread its own CPU time, which other programs hardly change,
    otherwise the wall clock."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def clock_name(threads: int | None = None) -> str:
    """Return the name of the clock of :func:`clock` for a number of threads, None for the current one."""
    return "CPU time of the thread" if (threads or torch.get_num_threads()) == 1 else "wall-clock time"


def take_turns(calls: Mapping[str, Call], turns: int) -> Values:
    """Time several calls alternately; returns ``median_ms``, ``best_ms`` and the quartiles of each, by
    name."""
    now = clock()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + UNTIMED_TURNS):
        for name, call in calls.items():
            start_s = now()
            call()
            if turn >= UNTIMED_TURNS:
                times[name].append(1000 * (now() - start_s))
    return {name: summary(found) for name, found in times.items()}


def summary(found_ms: list[float]) -> Values:
    """Return the median, the best, the quartiles around the median, and the count."""
    low, _, high = statistics.quantiles(found_ms, n=4) if len(found_ms) > 1 else (found_ms[0],) * 3
    return {
        "median_ms": statistics.median(found_ms),
        "best_ms": min(found_ms),
        "quartiles_ms": [low, high],
        "runs": len(found_ms),
    }
