"""The engines of another process as ports: one control socket, one bell, one event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.errors import AntiphonError, ProtocolError, SessionFailedError
from antiphon.ipc import messages
from antiphon.ipc.arena import Shape
from antiphon.ipc.local import Doorbell
from antiphon.ipc.memory import MemoryLayout, hush, open_pool
from antiphon.ipc.post import Post, close_all, write_bytes
from antiphon.ipc.remote_engine import RemoteEngine
from antiphon.ipc.remote_link import BatchedDeliveries, RemoteLink
from antiphon.ipc.resumption import Resumption
from antiphon.ipc.session import Session
from antiphon.ipc.side import CallerSide
from antiphon.models.sampling import SamplingParameters


async def connect(control: socket.socket) -> Mapping[str, RemoteEngine]:
    """The engines at the other end of ``control`` by name, for the running event loop; it owns the socket.

    Raises:
        SessionFailedError: the engine's process ended before it said what it serves.
    """
    loop = asyncio.get_running_loop()
    post = Post(control, time.monotonic)
    hello: asyncio.Future[tuple[messages.Message, list[int]]] = loop.create_future()

    def read() -> None:
        try:
            received = post.receive()
        except (EOFError, ProtocolError) as error:
            hello.set_exception(SessionFailedError(f"the engine's process did not say hello: {error}"))
            loop.remove_reader(post)
        else:
            if received is not None:
                hello.set_result(received)
                loop.remove_reader(post)

    loop.add_reader(post, read)
    message, descriptors = await hello
    if not isinstance(message, messages.Hello):
        raise SessionFailedError(f"the engine's process began with {type(message).__name__}, not with hello")
    return Desk(loop, post, message, descriptors).engines


class Desk:
    """A front end's end of the control socket: who waits for an answer, and which session a message is of."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, post: Post, hello: messages.Hello, descriptors: Sequence[int]
    ) -> None:
        """Map the memory, and read from now on."""
        self.loop, self.post, self.doorbell = loop, post, Doorbell(loop)
        self.is_lost = False
        self._bell, *shared = descriptors
        self._wakes: list[int] = []
        self._sessions: dict[str, tuple[RemoteEngine, Session]] = {}
        self._answers: dict[str | int, asyncio.Future[None]] = {}
        self._checks = 0
        self.engines: dict[str, RemoteEngine] = {}
        for number, facts in enumerate(hello.models):
            memory, wake = shared[2 * number : 2 * number + 2]
            plan = MemoryLayout(Shape(**facts["shape"]), facts["pools"], facts["leases"])
            arena = open_pool(memory, plan, hello.pool)
            os.close(memory)
            self._wakes.append(wake)
            info = messages.unpack_facts(facts["facts"])
            deliveries = BatchedDeliveries(loop, post, number)
            side = CallerSide(info.spec, arena, text_entries=facts["text_entries"], deliveries=deliveries)
            self.engines[facts["name"]] = RemoteEngine(self, number, facts, side, wake)
        self._by_number = tuple(self.engines.values())
        loop.add_reader(post, self._read)
        loop.add_reader(self._bell, self._rung)

    def expect(self, name: str, engine: RemoteEngine, session: Session) -> asyncio.Future[None]:
        """What is done once the engine has answered for a session.

        Raises:
            SessionFailedError: the engine's process is gone.
        """
        self._must_be_there()
        self._sessions[name] = engine, session
        answer = self._answers[name] = self.loop.create_future()
        return answer

    async def check(self, model: int, wait_s: float) -> None:
        """Ask whether a caller would be taken."""
        self._must_be_there()
        self._checks += 1
        answer = self._answers[self._checks] = self.loop.create_future()
        self.post.send(messages.Check(model, self._checks, wait_s))
        await answer

    async def pass_call(self, model: int, data: bytes) -> None:
        """Pass a call of another worker to an engine; its bytes are copied beside the event loop."""
        self._must_be_there()
        self._checks += 1
        number = self._checks
        memory = await self.loop.run_in_executor(None, write_bytes, data)
        try:
            self._must_be_there()
            answer = self._answers[number] = self.loop.create_future()
            self.post.send(messages.Adopt(model, number), [memory])
        finally:
            os.close(memory)
        await answer

    def forget(self, name: str) -> None:
        """A session has closed."""
        self._sessions.pop(name, None)
        self._answers.pop(name, None)

    def _must_be_there(self) -> None:
        if self.is_lost:
            raise SessionFailedError("the engine's process is gone")

    def _rung(self) -> None:
        hush(self._bell)
        for engine in self._by_number:
            engine.look()

    def _read(self) -> None:
        try:
            while (received := self.post.receive()) is not None:
                message, descriptors = received
                close_all(descriptors)
                self._do(message)
            self.post.flush()
            if self.post.has_lost:  # our end closes, so the engine's ends every call and lease there
                self._lose("the engine's process has taken no messages for too long")
        except (EOFError, ProtocolError) as error:
            self._lose(f"the engine's process is gone: {error}")

    def _do(self, message: messages.Message) -> None:
        match message:
            case messages.HealthNow(model, health):
                self._by_number[model].hear(health)
                self.post.flush()
                return
            case messages.Checked(number, error):
                self._answer(number, error)
                return
            case messages.Admitted(call) | messages.Queued(call) | messages.Refused(call):
                pass
            case (
                messages.Primed(call) | messages.Ended(call) | messages.Resumed(call) | messages.Moving(call)
            ):
                pass
            case _:
                raise ProtocolError(f"an engine sent {type(message).__name__}")
        if call not in self._sessions:  # it closed meanwhile, and the engine will hear of that
            return
        engine, session = self._sessions[call]
        match message:
            case messages.Admitted(_, lease):
                engine.seat(session, lease)
                self._answer(call, None)
            case messages.Queued(_, position, retry_after_s):
                assert isinstance(session.link, RemoteLink)
                session.link.place = position, retry_after_s
                self._answer(call, None)
                session.tell()
            case messages.Primed(_, number):
                session.primed(number)
            case messages.Moving():
                session.moving()
            case messages.Resumed():
                _, first, parameters, notes, *counts = message
                said = tuple((seq, data) for seq, data in notes)
                session.resumed(Resumption(first, SamplingParameters(**parameters), said, *counts))
            case messages.Ended(_, error):
                self._answer(call, error)  # it may have ended before it was seated, or queued
                session.ended(messages.unpack_error(error))
            case messages.Refused(_, error):
                self._answer(call, error)
                self.forget(call)

    def _answer(self, key: str | int, error: list[Any] | None) -> None:
        answer = self._answers.pop(key, None)
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(messages.unpack_error(error))

    def _lose(self, detail: str) -> None:
        """End everything: it is the only process that could answer."""
        self.is_lost = True
        self.loop.remove_reader(self.post)
        self.loop.remove_reader(self._bell)
        self.post.close()
        close_all([self._bell, *self._wakes])
        error: AntiphonError = SessionFailedError(detail)
        for answer in tuple(self._answers.values()):
            if not answer.done():
                answer.set_exception(error)
        self._answers.clear()
        for _, session in tuple(self._sessions.values()):
            session.ended(error)
        for engine in self._by_number:
            engine.lose(detail)

    def close(self) -> None:
        """Leave: all sessions end, at both ends."""
        if not self.is_lost:
            self._lose("this front end leaves")
