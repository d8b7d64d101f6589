"""Durations of the stages of a tick."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Milliseconds by stage; laps of the same stage are added up."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin the first lap."""
        self.stage_ms: dict[str, float] = {}
        self._clock, self._lap_s = clock, clock()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap for this stage."""
        now_s = self._clock()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000.0 * (now_s - self._lap_s)
        self._lap_s = now_s
