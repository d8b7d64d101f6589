"""A day of callers: when each comes and how long it stays, from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

DAY_S = 86_400.0
HOUR_S = 3_600.0


@dataclass(frozen=True)
class CallDay:
    """Calls by the hour: two humps over a quiet night, and minutes in which twice as many come.

    ``peak_calls`` are those at once at the second hump, on average; call lengths are log-normal.
    """

    peak_calls: float
    mean_call_s: float = 180.0
    spread: float = 0.8
    burst_at_s: float = 15 * HOUR_S
    burst_s: float = 300.0
    burst_factor: float = 2.0

    def rate_per_s(self, at_s: float) -> float:
        """Callers a second at a time of the day."""
        hour = at_s / HOUR_S
        humps = 0.9 * math.exp(-(((hour - 10.5) / 2.5) ** 2)) + math.exp(-(((hour - 20.0) / 2.0) ** 2))
        rate = self.peak_calls / self.mean_call_s * min(1.0, 0.06 + humps)
        is_burst = self.burst_at_s <= at_s < self.burst_at_s + self.burst_s
        return rate * (self.burst_factor if is_burst else 1.0)

    def callers(self, seed: int) -> Iterator[tuple[float, float]]:
        """Times of arrival in order, each with the length of its call."""
        if not self.peak_calls:
            return
        chance = Random(seed)
        most = self.peak_calls / self.mean_call_s * self.burst_factor
        middle = math.log(self.mean_call_s) - self.spread**2 / 2
        at_s = 0.0
        while (at_s := at_s + chance.expovariate(most)) < DAY_S:
            if chance.random() * most < self.rate_per_s(at_s):
                yield at_s, chance.lognormvariate(middle, self.spread)
