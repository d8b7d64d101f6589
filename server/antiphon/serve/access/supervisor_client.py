"""A front end's questions to the supervisor about the whole server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase
from antiphon.errors import HandOverError, ServerFullError, SessionFailedError
from antiphon.supervisor.messages import (
    AskPhase,
    Body,
    Compared,
    GiveBack,
    Message,
    Question,
    SignedRequest,
    Take,
    Taken,
    Use,
    Used,
)
from antiphon.supervisor.shared import SharedState

ASK_S: Final = 0.3
"""Seconds to wait for the supervisor's answer. The supervisor gives its other children 0.2 s."""

LEASE_S: Final = 2.0
"""Seconds to wait for the supervisor to grant a session. It needs microseconds, unless it is stopped."""

RETRY_AFTER_S: Final = 5
"""Seconds after which a caller retries when the supervisor did not answer."""


class SupervisorClient:
    """Asks the supervisor about sessions by key, requests of workers, the trial of a canary, and answers for
    operators.

    ``phase`` is the phase of the trial in the supervisor's last report. ``shared`` answers instead of a
    supervisor in a single-process server, and is None in other servers.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        ask: Callable[[Message], Awaitable[Message]],
        shared: SharedState | None = None,
    ) -> None:
        """Send through these functions of a control socket or of :meth:`here`."""
        self._send, self._ask = send, ask
        self._held: set[int] = set()
        self.phase, self.shared = Phase.RUNNING, shared

    @classmethod
    def here(cls) -> Self:
        """The client of a single-process server, whose own process handles the messages."""
        shared = SharedState()

        async def ask(message: Message) -> Message:
            reply = shared.handle(0, message)
            found = await reply if isinstance(reply, Awaitable) else reply
            assert found is not None
            return found

        def send(message: Message) -> None:
            shared.handle(0, message)

        return cls(send, ask, shared)

    async def take(self, asked: Take) -> str:
        """Ask the supervisor to grant one more session; return "", or the reason for the refusal.

        Raises:
            ServerFullError: the supervisor does not answer.
        """
        if not (asked.key_limit or asked.address_limit):
            return ""
        self._held.add(asked.lease)
        return await self._taken(asked, "sessions could not be counted")

    async def take_request(self, header: str) -> None:
        """Accept another worker's request with a checked header, once per server.

        Raises:
            HandOverError: it was accepted before.
            ServerFullError: the supervisor does not answer.
        """
        if refusal := await self._taken(SignedRequest(header), "requests could not be compared"):
            raise HandOverError(refusal)

    async def _taken(self, asked: Take | SignedRequest, failed: str) -> str:
        """The supervisor's reason for a refusal, or ""; ``failed`` begins the error if there is no answer."""
        try:
            taken = await asyncio.wait_for(self._ask(asked), LEASE_S)
        except (TimeoutError, SessionFailedError) as error:
            words = f"{failed} within {LEASE_S:g} s; try again in {RETRY_AFTER_S} s"
            raise ServerFullError(words, retry_after_s=RETRY_AFTER_S) from error
        return taken.refusal if isinstance(taken, Taken) else ""

    def give_back(self, lease: int) -> None:
        """Report that a session that :meth:`take` counted has ended; no effect on other leases."""
        if lease in self._held:
            self._held.discard(lease)
            self._send(GiveBack(lease))

    async def used(self, use: Use) -> dict[str, float]:
        """Report the usage of keys in this process; return their usage on the whole server, in seconds.

        Without an answer it returns their usage in this process.
        """
        try:
            used = await asyncio.wait_for(self._ask(use), ASK_S)
        except (TimeoutError, SessionFailedError):
            used = None
        return dict(used.seconds if isinstance(used, Used) else use.seconds)

    def report(self, use: Use) -> None:
        """Report the usage of keys in this process."""
        self._send(use)

    def record(self, arm: TrialArm, signals: CallSignals, caller: str) -> None:
        """Report that one call of a version on trial has ended."""
        self._send(Compared(arm, caller, signals.values))

    def note_phase(self, phase: Phase) -> None:
        """Store the phase of the trial that the supervisor has reported."""
        self.phase = phase

    async def trial(self, phase: Phase | None = None) -> dict[str, Any]:
        """The state of the trial as plain values, after setting an operator's ``phase``, if any.

        Raises:
            SessionFailedError: the supervisor does not answer.
        """
        try:
            data = await self.answer(Question("canary") if phase is None else AskPhase(phase))
        except TimeoutError as error:
            raise SessionFailedError(
                f"the supervisor did not answer within {ASK_S:g} s; ask again"
            ) from error
        said: dict[str, Any] = json.loads(data or b"{}")
        return said

    async def answer(self, question: Question | AskPhase) -> bytes:
        """Ask the supervisor a question; return the body of its answer.

        Raises:
            TimeoutError, SessionFailedError: there is no answer.
        """
        body = await asyncio.wait_for(self._ask(question), ASK_S)
        return body.data if isinstance(body, Body) else b""
