"""Evidence that one version is worse than another: a sequential test by betting.

A comparison takes the calls that ended since the last one. It subtracts the mean signal of the stable version
from that of the canary, which gives a difference between -1 and 1. If the canary is not worse by more than a
tolerance, these differences are at most the tolerance on average, whatever their distribution. Bets on larger
differences then have no expected gain. The capital of the bets starts at 1, and reaches 1/a with a
probability of at most a, however often the test is read (Ville's inequality; the bets are those of
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2023).

Capital lost while the canary had no fault would delay the detection of a later fault. The test therefore
restarts after a number of comparisons. Each round gets a smaller part of the probability: a/(1*2), a/(2*3),
..., which sum to a.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from antiphon.canary.signals import TrialArm

STAKES: Final = (0.1, 0.3, 0.6, 0.95)
"""The fractions of the capital that are bet; each fraction bets a quarter of the capital. Small fractions
detect a small difference in hundreds of comparisons, large ones detect a large difference in ten.
"""

ROUND_COMPARISONS: Final = 200
"""Number of comparisons after which the test restarts."""


@dataclass(slots=True)
class RunningMean:
    """A running mean: the sum of some values, and their number."""

    sum: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a value to the mean."""
        self.sum += value
        self.count += 1

    @property
    def mean(self) -> float:
        """The mean; 0 without values."""
        return self.sum / self.count if self.count else 0.0


def _nothing() -> dict[TrialArm, RunningMean]:
    return {arm: RunningMean() for arm in TrialArm}


@dataclass(slots=True)
class Evidence:
    """The comparisons of one signal. ``error`` is the probability that the test ever reports a difference
    between equal versions.
    """

    error: float
    tolerance: float
    comparisons: int = 0
    means: dict[TrialArm, RunningMean] = field(default_factory=_nothing)
    _since: dict[TrialArm, RunningMean] = field(default_factory=_nothing)
    _capitals: list[float] = field(default_factory=lambda: [1.0 / len(STAKES)] * len(STAKES))

    def add(self, arm: TrialArm, fault: float) -> None:
        """Add one call's value, from 0 to 1."""
        self.means[arm].add(fault)
        self._since[arm].add(fault)
        if all(each.count for each in self._since.values()):
            self._compare(self._since[TrialArm.CANARY].mean - self._since[TrialArm.STABLE].mean)
            self._since = _nothing()

    @property
    def capital(self) -> float:
        """The capital of this round's bets; it starts at 1."""
        return sum(self._capitals)

    @property
    def needed(self) -> float:
        """The capital from which this round shows that the canary is worse."""
        number = self._round(max(0, self.comparisons - 1)) + 1
        return number * (number + 1) / self.error

    @property
    def is_worse(self) -> bool:
        """Whether the canary is shown to be worse."""
        return self.capital >= self.needed

    def _compare(self, difference: float) -> None:
        if self._round(self.comparisons) > self._round(max(0, self.comparisons - 1)):
            self._capitals = [1.0 / len(STAKES)] * len(STAKES)
        self.comparisons += 1
        gain = (difference - self.tolerance) / (1.0 + self.tolerance)  # at least -1: no bet loses everything
        self._capitals = [
            capital * (1.0 + stake * gain) for capital, stake in zip(self._capitals, STAKES, strict=True)
        ]

    def _round(self, comparison: int) -> int:
        return comparison // ROUND_COMPARISONS
