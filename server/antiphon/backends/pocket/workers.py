"""Threads that step rows: each computes on one core, whatever torch does elsewhere in the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


def make_workers(threads: int, name: str) -> ThreadPoolExecutor:
    """So many threads, started, each with one core for an operation."""
    before = torch.get_num_threads()
    started = threading.Barrier(threads)
    pool = ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda _: started.wait(), range(threads)))
    torch.set_num_threads(before)  # a new thread elsewhere would have begun with one
    return pool


def deal(costs: Sequence[float], threads: int) -> list[list[int]]:
    """The places of ``costs`` in at most ``threads`` groups, none empty, that cost about the same.

    The dearest goes first, each to the group that costs the least so far.
    """
    groups: list[list[int]] = [[] for _ in range(threads)]
    totals = [0.0] * threads
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        least = totals.index(min(totals))
        groups[least].append(place)
        totals[least] += costs[place]
    return [group for group in groups if group]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo what importing the package does: torch has one thread then, and its loader makes logging print."""
    threads, root = torch.get_num_threads(), logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)
    try:
        yield
    finally:
        root.removeHandler(quiet)
        torch.set_num_threads(threads)
