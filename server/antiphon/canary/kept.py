"""The trial in the process that owns it, which exports metrics and logs phase changes."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from antiphon.canary.metrics import TrialMetrics
from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase, Trial, TrialRules
from antiphon.log import Log


def _unheard(_phase: Phase) -> None:
    """Ignore the phase: no other process uses it."""


class KeptTrial:
    """The trial of a server; ``on_phase`` is called at every change of the phase."""

    def __init__(
        self,
        rules: TrialRules,
        *,
        registry: CollectorRegistry,
        log: Log,
        on_phase: Callable[[Phase], None] = _unheard,
    ) -> None:
        """Start the trial, with its metrics on ``registry``."""
        self.trial = Trial(rules)
        self._log, self._on_phase = log, on_phase
        registry.register(TrialMetrics(self.trial))

    def record(self, arm: TrialArm, signals: CallSignals, caller: str) -> None:
        """Record the end of a call of a version; with ``caller`` "" every call counts."""
        if self.trial.add(arm, signals, caller):
            self._changed()

    def ask(self, phase: Phase) -> None:
        """Set the phase, at an operator's request."""
        self.trial.ask(phase)
        self._changed()

    def _changed(self) -> None:
        trial = self.trial
        calls = {f"{arm.value}_calls": count for arm, count in trial.calls.items()}
        self._log.warning("canary", phase=trial.phase.value, reason=trial.reason, **calls)
        self._on_phase(trial.phase)
