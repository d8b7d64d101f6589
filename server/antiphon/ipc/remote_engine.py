"""One engine of another process as a port."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, replace
from typing import Any, Final, Protocol

import numpy as np

from antiphon.errors import AntiphonError
from antiphon.ipc import messages
from antiphon.ipc.arena import Counts
from antiphon.ipc.health import Health
from antiphon.ipc.local import Doorbell
from antiphon.ipc.memory import ring
from antiphon.ipc.port import ModelFacts, Notify
from antiphon.ipc.post import Post
from antiphon.ipc.remote_link import RemoteLink
from antiphon.ipc.resumption import ResumeClaim
from antiphon.ipc.session import Session
from antiphon.ipc.side import CallerSide
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

SILENT_S: Final = 2.0
"""An engine that says nothing for so long is stuck: it speaks four times a second."""


class ControlDesk(Protocol):
    """The front end's end of the control socket, as far as one engine needs it."""

    loop: asyncio.AbstractEventLoop
    post: Post
    doorbell: Doorbell
    is_lost: bool

    def expect(self, name: str, engine: RemoteEngine, session: Session) -> asyncio.Future[None]:
        """What is done once the engine has answered for a session."""
        ...

    async def check(self, model: int, wait_s: float) -> None:
        """Ask whether a caller would be taken."""
        ...

    async def pass_call(self, model: int, data: bytes) -> None:
        """Pass a call of another worker to an engine."""
        ...

    def forget(self, name: str) -> None:
        """The session has closed."""
        ...

    def close(self) -> None:
        """End all sessions, at both ends."""
        ...


class RemoteEngine:
    """:class:`antiphon.ipc.port.EnginePort` across processes; used on its event loop's thread."""

    def __init__(
        self, desk: ControlDesk, number: int, facts: dict[str, Any], side: CallerSide, wake: int
    ) -> None:
        """Stand for the engine of this number; ``wake`` is the eventfd that its thread waits for."""
        self.info: ModelFacts = messages.unpack_facts(facts["facts"])
        self.number, self.side, self.call_bytes = number, side, int(facts["call_bytes"])
        self.hear(facts["health"])
        self._desk, self._wake = desk, wake
        self._is_nudged = False
        self._at_lease: list[Session | None] = [None] * side.arena.leases
        self._seen: Counts = np.zeros(side.arena.leases, np.int64)
        self._on_lost: list[Callable[[], None]] = []

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> Session:
        """A new session; see :meth:`antiphon.ipc.port.EnginePort.submit`."""
        doorbell = self._desk.doorbell
        name = secrets.token_hex(8)
        link = RemoteLink(self, self._desk.post, name)
        session = Session(
            name,
            parameters,
            side=self.side,
            link=link,
            notify=lambda: doorbell.ring(notify, lambda error: session.notify_failed(error)),
            is_primed=prompt is None,
        )
        answer = self._desk.expect(name, self, session)
        try:
            self._open(name, parameters, wait_s, prompt)
        except AntiphonError:
            self._desk.forget(name)
            raise
        try:
            await answer
        except asyncio.CancelledError:
            session.close()
            raise
        return session

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> Session:
        """Go on with a call of another connection; see :meth:`antiphon.ipc.port.EnginePort.resume`."""
        doorbell, name = self._desk.doorbell, secrets.token_hex(8)
        link = RemoteLink(self, self._desk.post, name)
        session = Session(
            name,
            SamplingParameters(),
            side=self.side,
            link=link,
            notify=lambda: doorbell.ring(notify, lambda error: session.notify_failed(error)),
        )
        answer = self._desk.expect(name, self, session)
        try:
            self._desk.post.send(messages.Resume(self.number, name, astuple(claim)))
        except AntiphonError:
            self._desk.forget(name)
            raise
        try:
            await answer
        except asyncio.CancelledError:
            session.close()
            raise
        return session

    def _open(self, name: str, parameters: SamplingParameters, wait_s: float, prompt: Prompt | None) -> None:
        opening = messages.Open(self.number, name, asdict(parameters), wait_s, None)
        if prompt is None:
            self._desk.post.send(opening)
            return
        parts, data = messages.pack_prompt(prompt)
        self._desk.post.send_with(opening._replace(prompt=parts), data)

    async def check_room(self, wait_s: float) -> None:
        """Whether :meth:`submit` would take a caller now."""
        await self._desk.check(self.number, wait_s)

    def health(self) -> Health:
        """How the engine was a quarter of a second ago, or that its process is gone or silent."""
        silent_s = time.monotonic() - self._heard_s
        if self._desk.is_lost or silent_s < SILENT_S:
            return self._known
        detail = f"the engine's process has sent nothing for {silent_s:.1f} s"
        return replace(self._known, ready=False, stuck_s=silent_s, detail=detail)

    def drain(self, target: str = "") -> None:
        """No effect: the supervisor tells the engine."""

    async def take_call(self, data: bytes) -> None:
        """Take a call of another worker; see :meth:`antiphon.ipc.port.EnginePort.take_call`."""
        await self._desk.pass_call(self.number, data)

    def note_lag(self, lag_s: float) -> None:
        """No effect: the supervisor asks for it, and tells the engine."""

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call back once when the engine's process is gone, after all sessions have ended."""
        self._on_lost.append(callback)

    # What its link and its desk ask.

    def hear(self, health: Mapping[str, Any]) -> None:
        """The engine said how it is."""
        self._known, self._heard_s = Health(**health), time.monotonic()

    def nudge(self) -> None:
        """Wake the engine thread, once in a turn of the event loop."""
        if not self._is_nudged:
            self._is_nudged = True
            self._desk.loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._is_nudged = False
        if not self._desk.is_lost:
            ring(self._wake)

    def seat(self, session: Session, lease: int) -> None:
        """A session has a lease."""
        assert isinstance(session.link, RemoteLink)
        session.link.lease = lease
        self._at_lease[lease], self._seen[lease] = session, 0
        session.admitted(lease)
        session.tell()

    def leave(self, name: str, lease: int | None) -> None:
        """A session has closed."""
        self._desk.forget(name)
        if lease is not None:
            self._at_lease[lease] = None

    def look(self) -> None:
        """Tell the sessions that were in a tick."""
        ticks = self.side.arena.engine.ticks
        for lease in np.flatnonzero(ticks != self._seen).tolist():
            self._seen[lease] = ticks[lease]
            session = self._at_lease[lease]
            if session is not None:
                session.tell()

    def lose(self, detail: str) -> None:
        """The engine's process is gone."""
        self._known = replace(self._known, alive=False, ready=False, detail=detail)
        for callback in self._on_lost:
            callback()
