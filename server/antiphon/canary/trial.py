"""The trial of a canary: its share of new calls, until it is shown to be worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from antiphon.canary.evidence import Evidence
from antiphon.canary.signals import SIGNALS, CallSignals, TrialArm

MAX_CALLERS: Final = 65_536
"""Maximum number of remembered callers, 8 MB. Above it all are forgotten, and their next calls count again.
"""


class Phase(StrEnum):
    """The phase of a trial, which determines the version that gets new calls."""

    RUNNING = "running"  # some go to the canary
    WITHDRAWN = "withdrawn"  # none do
    PROMOTED = "promoted"  # all do


@dataclass(frozen=True, slots=True)
class TrialRules:
    """The rules of a trial: ``share`` of new calls goes to the canary. ``error`` bounds the probability of
    withdrawing a canary whose signals are worse by at most ``tolerance``.
    """

    share: float = 0.1
    error: float = 0.01
    tolerance: float = 0.05


class Trial:
    """The calls of both versions so far, and the phase that they or an operator set."""

    def __init__(self, rules: TrialRules) -> None:
        """Begin without calls."""
        self.rules = rules
        self.phase = Phase.RUNNING
        self.reason = ""
        self.calls = dict.fromkeys(TrialArm, 0)
        self._evidence = self._begin()
        self._callers: set[str] = set()

    def add(self, arm: TrialArm, signals: CallSignals, caller: str = "") -> bool:
        """Add an ended call; returns whether the phase has changed.

        Only the first call of a named ``caller`` counts.
        """
        self.calls[arm] += 1
        if self.phase is not Phase.RUNNING or self._was_counted(caller):
            return False
        for name, value in zip(SIGNALS, signals.values, strict=True):
            if value is not None:
                self._evidence[name].add(arm, value)
        worse = [name for name, each in self._evidence.items() if each.is_worse]
        if worse:
            self.phase, self.reason = Phase.WITHDRAWN, self._say(worse[0])
        return bool(worse)

    def ask(self, phase: Phase) -> None:
        """Set the phase, at an operator's request; RUNNING restarts the trial."""
        self.phase, self.reason = phase, "by hand"
        if phase is Phase.RUNNING:
            self.calls, self.reason = dict.fromkeys(TrialArm, 0), ""
            self._evidence, self._callers = self._begin(), set()

    def report(self) -> dict[str, Any]:
        """The state of the trial as plain values."""
        return {
            "phase": self.phase.value,
            "reason": self.reason,
            "share": self.rules.share,
            "calls": {arm.value: count for arm, count in self.calls.items()},
            "signals": {name: _shown(each) for name, each in self._evidence.items()},
        }

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        """The evidence for each signal, by its name."""
        return self._evidence

    def _begin(self) -> dict[str, Evidence]:
        # Each signal has its share of the probability, so that the total is not exceeded.
        error = self.rules.error / len(SIGNALS)
        return {name: Evidence(error, self.rules.tolerance) for name in SIGNALS}

    def _was_counted(self, caller: str) -> bool:
        if not caller:
            return False
        if caller in self._callers:
            return True
        if len(self._callers) >= MAX_CALLERS:
            self._callers.clear()
        self._callers.add(caller)
        return False

    def _say(self, name: str) -> str:
        means = self._evidence[name].means
        shown = {arm: f"{means[arm].mean:.2f} in {means[arm].count} calls" for arm in TrialArm}
        return (
            f"{name}: {shown[TrialArm.CANARY]} of the canary, {shown[TrialArm.STABLE]} of the stable version"
        )


def _shown(evidence: Evidence) -> dict[str, Any]:
    return {
        **{arm.value: round(evidence.means[arm].mean, 4) for arm in TrialArm},
        "calls": {arm.value: evidence.means[arm].count for arm in TrialArm},
        "comparisons": evidence.comparisons,
        "capital": float(f"{evidence.capital:.4g}"),
        "needed": round(evidence.needed),
    }
