"""The trial of a canary, over all front ends: their calls come here, and the phase goes back to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from antiphon.canary.kept import KeptTrial
from antiphon.canary.signals import CallSignals
from antiphon.canary.trial import Phase, TrialRules
from antiphon.log import Log
from antiphon.supervisor.children import Child
from antiphon.supervisor.messages import AskPhase, Body, CanaryPhase, Compared


class FrontEndTrial:
    """What the supervisor does about a canary; nothing where there is none."""

    def __init__(
        self,
        rules: TrialRules | None,
        *,
        registry: CollectorRegistry,
        log: Log,
        front_ends: Callable[[], Iterable[Child]],
    ) -> None:
        """Begin the trial; ``front_ends`` are those that run."""
        self._front_ends = front_ends
        self._kept = (
            None if rules is None else KeptTrial(rules, registry=registry, log=log, on_phase=self._tell)
        )

    def compare(self, message: Compared) -> None:
        """A call of a front end has ended."""
        if self._kept is not None:
            self._kept.record(message.arm, CallSignals(*message.signals), message.caller)

    def ask(self, message: AskPhase) -> Body:
        """Set the phase; the state after it."""
        if self._kept is not None:
            self._kept.ask(message.phase)
        return self.report()

    def report(self) -> Body:
        """The state, in JSON."""
        return Body(json.dumps({} if self._kept is None else self._kept.trial.report()).encode())

    def greet(self, child: Child) -> None:
        """Tell a new front end the phase."""
        if self._kept is not None:
            child.peer.send(CanaryPhase(self._kept.trial.phase))

    def _tell(self, phase: Phase) -> None:
        for child in self._front_ends():
            child.peer.send(CanaryPhase(phase))
