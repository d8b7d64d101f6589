"""Measures the durations of a tick's stages, and of whole steps next to other programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


class Stopwatch:
    """Measures the milliseconds of each stage; laps of the same stage are added up."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin the first lap."""
        self.stage_ms: dict[str, float] = {}
        self._clock, self._lap_s = clock, clock()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap for this stage."""
        now_s = self._clock()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000.0 * (now_s - self._lap_s)
        self._lap_s = now_s


@dataclass(frozen=True, slots=True)
class StepClock:
    """Measures the time of a step without the time that other programs take from its cores.

    ``wall`` is any clock; ``thread`` and ``process`` return the processor time of the calling thread and of
    all threads.
    """

    wall: Callable[[], float] = time.perf_counter
    thread: Callable[[], float] = time.thread_time
    process: Callable[[], float] = time.process_time

    def seconds(self, step: Callable[[], object], threads: int) -> float:
        """The time of a step that computes on ``threads`` threads, or, with 0, on a device.

        A step's threads compute in parallel. On free cores it therefore takes the processor time of the
        calling thread, or the average over all threads if that is longer. While other programs run, its
        wall-clock time is longer.
        """
        begun = self.wall(), self.thread(), self.process()
        step()
        wall_s, thread_s, process_s = (
            now - then for now, then in zip((self.wall(), self.thread(), self.process()), begun, strict=True)
        )
        return min(wall_s, max(thread_s, process_s / threads)) if threads else wall_s
