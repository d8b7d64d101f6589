"""One model's engine and one of its sessions, as a front end sees them, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from antiphon.backends.base import BackendInfo
from antiphon.ipc.health import Health
from antiphon.ipc.resumption import ResumeClaim
from antiphon.ipc.session import Session
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

ModelFacts: TypeAlias = BackendInfo
"""What does not change while an engine runs: ``spec`` (with the model's name), ``kind``, ``slots``, ..."""

Notify: TypeAlias = Callable[[], None]


CallSession: TypeAlias = Session
"""A caller's half of a session. Its owner need not ask where the other half is."""


class EnginePort(Protocol):
    """One model's engine, as a front end sees it."""

    @property
    def info(self) -> ModelFacts:
        """The model, its backend, device, rows, and whether it takes prompts."""
        ...

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """A new session, ACTIVE, or QUEUED for at most ``wait_s`` seconds; with a prompt first PRIMING.

        ``notify`` is called on the thread of the event loop that submits, whenever the session has changed:
        replies, state, position, error, room. Several changes may be one call.

        Raises:
            ServerFullError: no row is free, or deadlines are being missed, and the session cannot wait.
            DrainingError: the server is leaving.
            SessionFailedError: the device, or the engine's process, is lost.
            UnsupportedError: a prompt for a backend that takes none.
        """
        ...

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> CallSession:
        """A session that goes on with a call of another connection, ACTIVE, with its ``resumption``.

        Raises:
            ResumeError: there is no such call, or it is not this client's.
            ServerFullError: this front end has no place.
            SessionFailedError: the engine's process is lost.
        """
        ...

    async def check_room(self, wait_s: float) -> None:
        """Whether :meth:`submit` would take a caller now, who waits so long; raises as it would."""
        ...

    def health(self) -> Health:
        """How the engine is, as far as this process knows; it never blocks."""
        ...

    def drain(self, target: str = "") -> None:
        """Admit no further caller; active ones go on, or to the worker at ``target`` where it can."""
        ...

    @property
    def call_bytes(self) -> int:
        """The most that one call of this model has as bytes."""
        ...

    async def take_call(self, data: bytes) -> None:
        """Take a call of another worker; its client can resume it here afterwards.

        Raises:
            UnsupportedError: it is of another model, backend or version.
            ServerFullError, DrainingError, SessionFailedError: there is no row for it.
            HandOverError: it was here before, or none are taken.
        """
        ...

    def note_lag(self, lag_s: float) -> None:
        """Tell admission how late the event loop of this process runs."""
        ...
