"""The trial of a canary as a front end sees it: the supervisor compares the calls of all front ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase
from antiphon.errors import SessionFailedError
from antiphon.serve.hosting.central import ASK_S
from antiphon.supervisor.messages import AskPhase, Body, CanaryPhase, Compared, ControlSocket, Question


class CentralTrial:
    """What the supervisor has said last, and what it is asked."""

    def __init__(self, peer: ControlSocket) -> None:
        """Begin as a trial begins, until the supervisor says otherwise."""
        self._peer = peer
        self._phase = Phase.RUNNING

    @property
    def phase(self) -> Phase:
        """What becomes of new calls, as the supervisor said last."""
        return self._phase

    def hear(self, message: CanaryPhase) -> None:
        """The supervisor says a phase."""
        self._phase = message.phase

    def record(self, arm: TrialArm, signals: CallSignals, caller: str) -> None:
        """One ended call."""
        self._peer.send(Compared(arm, caller, signals.values))

    async def report(self) -> dict[str, Any]:
        """The state of the trial in plain values.

        Raises:
            SessionFailedError: the supervisor does not answer.
        """
        return await self._ask(Question("canary"))

    async def ask(self, phase: Phase) -> dict[str, Any]:
        """An operator wants a phase; the state after it.

        Raises:
            SessionFailedError: the supervisor does not answer.
        """
        return await self._ask(AskPhase(phase))

    async def _ask(self, message: Question | AskPhase) -> dict[str, Any]:
        try:
            body = await asyncio.wait_for(self._peer.ask(message), ASK_S)
        except TimeoutError as error:
            raise SessionFailedError(
                f"the supervisor did not answer within {ASK_S:g} s; ask again"
            ) from error
        said: dict[str, Any] = json.loads(body.data if isinstance(body, Body) else b"{}")
        return said
