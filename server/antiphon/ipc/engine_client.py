"""A front end's view of a server's engines, in this process or in another.

:func:`antiphon.ipc.engine_client.connect` makes a client for engines in another process, and
:class:`antiphon.engine.front_ends.LocalFrontEnd` a client for engines in this process. Only the thread of one
event loop may use these objects.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from antiphon.backends.base import BackendInfo
from antiphon.errors import AntiphonError, ProtocolError, ServerFullError, SessionFailedError
from antiphon.ipc import messages
from antiphon.ipc.client_context import ChangedSessions, ClientContext, LatencyReport
from antiphon.ipc.health import Health
from antiphon.ipc.memory import MemoryLayout, hush, open_pool, ring
from antiphon.ipc.message_socket import MessageSocket, close_all, write_file
from antiphon.ipc.rings import Arena
from antiphon.ipc.session import Session, SessionLink
from antiphon.ipc.values import ResumeClaim
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

SILENT_S: Final = 2.0
"""Seconds without a message after which an engine counts as stuck; it reports its health four times a
second."""

SHORTAGE_S: Final = 5
"""Seconds after which a caller may retry when the process has no free file descriptor; by then ended calls
have freed theirs.
"""

ModelFacts: TypeAlias = BackendInfo
"""The fixed properties of a running engine: ``spec`` (with the model's name), ``kind``, ``slots``, ..."""

Notify: TypeAlias = Callable[[], None]
CallSession: TypeAlias = Session
"""The front end's half of a session."""

Post: TypeAlias = Callable[[messages.Request, Sequence[int]], None]
"""Passes a message to the engines; the caller keeps the descriptors and closes them."""


class EngineClient:
    """A front end's side of the engines: its sessions, and the requests that wait for an answer."""

    def __init__(self, post: Post, loop: asyncio.AbstractEventLoop) -> None:
        """Start without engines; ``post`` passes requests on."""
        self.loop = loop
        self.engines: dict[str, EnginePort] = {}
        self.closing = ExitStack()  # resources to free when the engines are lost
        self.is_lost = False
        self._post = post
        self._by_number: list[EnginePort] = []
        self._sessions: dict[str, tuple[EnginePort, Session]] = {}
        self._answers: dict[str | int, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self.changes = ChangedSessions[Session](loop, Session.notify)

    def add(
        self,
        facts: messages.EngineFacts,
        arena: Arena,
        nudge: Callable[[], None],
        *,
        drain: Callable[[str], None] = lambda _: None,
        health: Callable[[], Health] | None = None,
    ) -> None:
        """Add an engine, with the next number; see :class:`EnginePort`."""
        port = EnginePort(self, len(self._by_number), facts, arena, nudge, drain=drain, health=health)
        self._by_number.append(port)
        self.changes.contexts.append(port.side)
        self.engines[facts.name] = port

    def send(self, request: messages.Request, descriptors: Sequence[int] = ()) -> None:
        """Send a request; no effect once the engines are lost.

        Raises:
            ServerFullError: no file descriptor is free for a long request.
        """
        if self.is_lost:
            return
        try:
            self._post(request, descriptors)
        except OSError as error:
            raise ServerFullError(
                f"a {type(request).__name__} message could not be passed on: {error.strerror}; "
                f"try again in {SHORTAGE_S} s",
                retry_after_s=SHORTAGE_S,
            ) from error

    def begin(
        self, port: EnginePort, session: Session, request: messages.Open | messages.Resume
    ) -> asyncio.Future[None]:
        """Open a session; return a future that is done when the engine has answered.

        Raises:
            SessionFailedError: the engine's process has ended.
            ServerFullError: as :meth:`send`.
        """
        answer = self._expect(session.id)
        self._sessions[session.id] = port, session
        try:
            self.send(request)
        except AntiphonError:
            self._forget(session.id)
            raise
        return answer

    async def ask(self, make: Callable[[int], messages.Request], descriptors: Sequence[int] = ()) -> None:
        """Send the request ``make(number)``, and wait for the answer ``Checked``; raises the error in it."""
        number = next(self._numbers)
        answer = self._expect(number)
        try:
            self.send(make(number), descriptors)
            await answer
        finally:
            self._answers.pop(number, None)

    def _expect(self, key: str | int) -> asyncio.Future[None]:
        if self.is_lost:
            raise SessionFailedError("the engine's process has ended")
        answer = self._answers[key] = self.loop.create_future()
        return answer

    def closed(self, session: Session) -> None:
        """Remove a session that has closed."""
        if session.id in self._sessions:
            if session.lease is not None:
                self._sessions[session.id][0].side.seat(session.lease, None)
            self._forget(session.id)

    def _forget(self, call: str) -> None:
        self._sessions.pop(call, None)
        self._answers.pop(call, None)

    def handle(self, notice: messages.Notice) -> None:
        """Handle a message of the engines.

        Raises:
            ProtocolError: the message is not valid here.
        """
        match notice:
            case messages.HealthNow(model, health) if 0 <= model < len(self._by_number):
                self._by_number[model].store(health)
            case messages.Checked(number, error):
                self._answer(number, error)
            case messages.CallNotice(call):
                if call in self._sessions:  # else it closed meanwhile, and the engine gets that message
                    self._handle_call(notice, *self._sessions[call])
            case _:
                raise ProtocolError(f"an engine sent {type(notice).__name__}")

    def _handle_call(self, notice: messages.CallNotice, port: EnginePort, session: Session) -> None:
        match notice:
            case messages.Refused(call, error):
                self._answer(call, error)
                self._forget(call)
                return
            case messages.Ended(call, error):
                self._answer(call, error)  # it may have ended before it had a row or a place in the queue
            case messages.Admitted(call, lease):
                port.side.seat(lease, partial(self.changes.add, session))
                self._answer(call, None)
            case messages.Queued(call):
                self._answer(call, None)
        session.handle(notice)

    def _answer(self, key: str | int, error: AntiphonError | None) -> None:
        answer = self._answers.pop(key, None)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def lose(self, detail: str) -> None:
        """End all sessions and requests: the engines' process has ended."""
        if self.is_lost:
            return
        self.is_lost = True
        self.closing.close()
        error = SessionFailedError(detail)
        for key in tuple(self._answers):
            self._answer(key, error)
        for _, session in tuple(self._sessions.values()):
            session.close(error)
        for port in self._by_number:
            port.lose(detail)

    def close(self) -> None:
        """End all sessions, on both sides."""
        self.lose("this front end closes")


class EnginePort:
    """A front end's view of one model's engine; used on the event loop's thread."""

    def __init__(
        self,
        client: EngineClient,
        number: int,
        facts: messages.EngineFacts,
        arena: Arena,
        nudge: Callable[[], None],
        *,
        drain: Callable[[str], None],
        health: Callable[[], Health] | None,
    ) -> None:
        """Make the port of the engine with this number; ``nudge`` wakes its thread.

        In one process ``health`` reads the engine's health and ``drain`` drains it; otherwise the engine
        reports its health in messages, and the supervisor drains it.
        """
        self.info: ModelFacts = facts.info
        self.call_bytes = facts.call_bytes
        self.client = client
        self._number, self._drain, self._ask_health = number, drain, health
        deliveries = LatencyReport(client.loop, number, client.send)
        self.side = ClientContext(
            facts.info.spec, arena, text_entries=facts.text_entries, deliveries=deliveries
        )
        self._link = SessionLink(client.send, nudge, client.changes.add, client.closed)
        self._on_change: list[Callable[[], None]] = []
        self.store(facts.health)

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> Session:
        """Open a session. It is ACTIVE, or QUEUED for at most ``wait_s`` seconds; a session with a prompt is
        PRIMING first.

        ``notify`` is called on the event loop whenever the session has changed: replies, state, position,
        error, room. One call may announce several changes.

        Raises:
            ServerFullError: no row is free, or deadlines are being missed, and the session cannot wait.
            DrainingError: the server is shutting down. SessionFailedError: the device or the engine's process
            is lost. UnsupportedError: a prompt for a backend that supports no prompts.
        """
        session, answer = self.open(parameters, wait_s=wait_s, notify=notify, prompt=prompt)
        return await self._answered(session, answer)

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> Session:
        """Open an ACTIVE session that continues a call of another connection; it has a ``resumption``.

        Raises:
            ResumeError: the call does not exist, or belongs to another client. ServerFullError: this front
            end has no free lease. SessionFailedError: the engine's process is lost.
        """
        session, answer = self.open_resumed(claim, notify=notify)
        return await self._answered(session, answer)

    def open(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify | None,
        prompt: Prompt | None = None,
    ) -> tuple[Session, asyncio.Future[None]]:
        """Open the session for :meth:`submit`; return it and the future of the engine's answer."""
        session = self._session(parameters, notify, is_primed=prompt is None)
        request = messages.Open(session.id, self._number, parameters, wait_s, prompt)
        return session, self.client.begin(self, session, request)

    def open_resumed(
        self, claim: ResumeClaim, *, notify: Notify | None
    ) -> tuple[Session, asyncio.Future[None]]:
        """Open the session for :meth:`resume`; return it and the future of the engine's answer."""
        session = self._session(SamplingParameters(), notify)
        request = messages.Resume(session.id, self._number, claim)
        return session, self.client.begin(self, session, request)

    def _session(
        self, parameters: SamplingParameters, notify: Notify | None, *, is_primed: bool = True
    ) -> Session:
        name = secrets.token_hex(8)
        return Session(name, parameters, side=self.side, link=self._link, notify=notify, is_primed=is_primed)

    async def _answered(self, session: Session, answer: asyncio.Future[None]) -> Session:
        try:
            await answer
        except asyncio.CancelledError:
            session.close()
            raise
        if session.error is not None:  # it was admitted, and has ended since
            raise session.error
        return session

    async def check_room(self, wait_s: float) -> None:
        """Check that :meth:`submit` would now accept a caller that waits ``wait_s``; raises the same
        errors."""
        await self.client.ask(lambda number: messages.Check(self._number, number, wait_s))

    async def take_call(self, data: bytes) -> None:
        """Accept a call from another worker; its client can resume it here afterwards.

        Raises:
            UnsupportedError: the call comes from another model, backend or version. ServerFullError,
            DrainingError, SessionFailedError: there is no row for it. HandOverError: the call was on this
            server before, or this server accepts no calls from other workers.
        """
        if self._ask_health is not None:  # the engine is in this process
            await self.client.ask(lambda number: messages.Adopt(self._number, number, data))
            return
        memory = await self.client.loop.run_in_executor(None, write_file, data)
        try:
            await self.client.ask(lambda number: messages.Adopt(self._number, number), [memory])
        finally:
            os.close(memory)

    def note_lag(self, lag_s: float) -> None:
        """Report the lag of this process's event loop to admission."""
        self.client.send(messages.Lag(self._number, lag_s))

    def drain(self, target: str = "") -> None:
        """Stop admission; active calls continue, or move to the worker at ``target`` if possible."""
        self._drain(target)

    def health(self) -> Health:
        """The engine's health as far as this process knows it; never blocks."""
        if self._ask_health is not None:
            return self._ask_health()
        silent_s = time.monotonic() - self._heard_s
        if self.client.is_lost or silent_s < SILENT_S:
            return self._known
        detail = f"the engine's process has sent nothing for {silent_s:.1f} s"
        return replace(self._known, ready=False, stuck_s=silent_s, detail=detail)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the engine's health may have changed."""
        self._on_change.append(callback)

    # From the client.

    def store(self, health: Health) -> None:
        """Store the health that the engine reports."""
        self._known, self._heard_s = health, time.monotonic()
        self.change()

    def change(self) -> None:
        """Notify the callbacks that the engine's health may have changed."""
        for callback in self._on_change:
            callback()

    def lose(self, detail: str) -> None:
        """Handle the end of the engine's process."""
        self._known = replace(self._known, alive=False, ready=False, detail=detail)
        self.change()


async def connect(control: socket.socket) -> Mapping[str, EnginePort]:
    """Connect to the engines at the other end of ``control``, on the running event loop; returns the engines'
    ports by name, which own the socket.

    Raises:
        SessionFailedError: the engine's process ended before it reported its models.
    """
    loop = asyncio.get_running_loop()
    hello: asyncio.Future[None] = loop.create_future()

    def handle(notice: messages.Notice, descriptors: Sequence[int]) -> None:
        if isinstance(notice, messages.Hello) and not hello.done():
            _greet(client, notice, descriptors)
            hello.set_result(None)
        else:
            close_all(descriptors)
            client.handle(notice)

    def lost(reason: str) -> None:
        if not hello.done():
            hello.set_exception(SessionFailedError(f"the engine's process sent no hello: {reason}"))
        client.lose(f"the engine's process has ended: {reason}")

    control_socket = MessageSocket(control, messages.NOTICES, handle, lost=lost)
    client = EngineClient(control_socket.send, loop)
    client.closing.callback(control_socket.close)
    await hello
    return client.engines


def _greet(client: EngineClient, hello: messages.Hello, descriptors: Sequence[int]) -> None:
    """Map the memory of the engines from their hello, and watch their bell."""
    bell, *shared = descriptors

    def rung() -> None:
        hush(bell)
        client.changes.look()

    for number, facts in enumerate(hello.engines):
        memory, wake = shared[2 * number : 2 * number + 2]
        arena = open_pool(memory, MemoryLayout(facts.shape, facts.pools, facts.leases), hello.pool)
        os.close(memory)
        client.closing.callback(os.close, wake)
        client.add(facts, arena, LoopNudge(client, partial(ring, wake)).nudge)
    client.closing.callback(os.close, bell)
    client.closing.callback(client.loop.remove_reader, bell)
    client.loop.add_reader(bell, rung)


class LoopNudge:
    """Wakes an engine thread of another process, at most once per iteration of the event loop."""

    def __init__(self, client: EngineClient, wake: Callable[[], None]) -> None:
        """Wake by calling ``wake``."""
        self._client, self._wake = client, wake
        self._is_nudged = False

    def nudge(self) -> None:
        """Wake the engine thread in the next iteration of the event loop."""
        if not self._is_nudged:
            self._is_nudged = True
            self._client.loop.call_soon(self._nudge)

    def _nudge(self) -> None:
        self._is_nudged = False
        if not self._client.is_lost:
            self._wake()
