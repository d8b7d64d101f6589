"""Starts the supervisor's children, requests their heartbeats and answers, and kills them.

A child is a process, or in a single-process server a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from antiphon.errors import AntiphonError, ConfigError
from antiphon.ipc.message_socket import Handle, MessageSocket
from antiphon.log import Log
from antiphon.supervisor.messages import (
    CONTROL,
    Begin,
    Body,
    Connect,
    ControlReply,
    ControlSocket,
    Failed,
    Message,
    NewFrontEnd,
    Ping,
    Pong,
    Question,
    Ready,
)

STEADY_S = 10.0
"""Lifetime in seconds after which a front end is replaced at once."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0
"""Maximum seconds before the replacement of a front end with a shorter life; the pause is doubled each
time."""


def next_pause_s(last_s: float, lived_s: float) -> float:
    """The pause before a replacement, from the last pause and the life ``lived_s`` of the ended process."""
    if lived_s >= STEADY_S:
        return 0.0
    return min(max(2 * last_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)


PING_PERIOD_S = 0.25
"""Seconds from one heartbeat to the next."""

RESPONSIVE_S = 2 * PING_PERIOD_S
"""Seconds without a heartbeat after which a front end gets no new connections."""

SILENT_S = 2.0
"""Seconds without a heartbeat after which a front end is killed: its callers miss 25 frames."""

ANSWER_S = 0.2
"""Seconds to wait for the answer to an operator's question; later answers are dropped."""


class LocalTask:
    """Stands in for the process of a child that is a task of this process."""

    def __init__(self, work: Coroutine[Any, Any, None], end: ControlSocket) -> None:
        """Start ``work``; its ``end`` of the control socket sends the reason if it cannot start."""
        self.pid = os.getpid()
        self._task, self._end = asyncio.ensure_future(self._run(work)), end

    async def _run(self, work: Coroutine[Any, Any, None]) -> int:
        try:
            await work
        except AntiphonError as error:
            self._end.send(Failed(str(error)))
            return 2
        except Exception as error:  # a boundary: as with a process, only the end is visible
            Log().error("task failed", exc_info=error)
            return 1
        return 0

    async def wait(self) -> int:
        """The exit code, once the task has ended."""
        await asyncio.wait([self._task])
        return -signal.SIGKILL if self._task.cancelled() else self._task.result()

    def kill(self) -> None:
        """Cancel the task."""
        self._task.cancel()


class Child:
    """One process or task, and its control socket."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process | LocalTask,
        connect: Connect,
        handle: Handle[Message],
    ) -> None:
        self.name = name
        self.process = process
        self.lag_s = 0.0
        self.silent_s = self.stuck_s = 0.0
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._handle_message = handle
        self._pong: asyncio.Future[Message] | None = None
        self._failed = ""
        self.peer = connect(self._heard, lost=lambda _: None)
        self.ended = asyncio.ensure_future(self._reap())

    @property
    def device(self) -> str:
        """The device of one of several engines; "" for any other child."""
        return self.name.partition(" ")[2]

    @classmethod
    async def start(cls, name: str, command: Sequence[str], handle: Handle[Message]) -> Child:
        """Start a process by exec in a new session, so that it does not get a terminal's signals.

        The control socket and this process's id are appended to ``command`` as two numbers. The process
        imports its modules, and waits for :class:`Begin`, which must be its first message.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            stack.pop_all()
        return cls(name, process, partial(MessageSocket, ours, CONTROL), handle)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not been reaped."""
        return not self.ended.done()

    @property
    def is_ready(self) -> bool:
        """Whether the child is ready."""
        return self.is_alive and self.ready.done() and not self.ready.exception()

    @property
    def failure(self) -> str:
        """The reason for an end before the child was ready, else ""."""
        return str(self.ready.exception() or "") if self.ready.done() else ""

    @property
    def is_responsive(self) -> bool:
        """Whether the child is ready and reads its messages, and no heartbeat is overdue."""
        return self.is_ready and self.silent_s <= RESPONSIVE_S and not self.peer.is_congested

    def beat(self, elapsed_s: float) -> None:
        """Request a heartbeat, or increase the time for which it is overdue."""
        if self._pong is not None:
            if not self._pong.done() or self._pong.exception():
                self.silent_s += elapsed_s
                return
            pong = self._pong.result()
            said = pong if isinstance(pong, Pong) else Pong()
            self.lag_s, self.stuck_s = said.lag_s, self.stuck_s + elapsed_s if said.is_stuck else 0.0
        self.silent_s = 0.0
        self._pong = self.peer.ask(Ping())

    async def answer(self, what: str, limit_s: float | None = None) -> bytes | None:
        """The answer to a question; None if none arrives within ``limit_s``, or else ``ANSWER_S``."""
        with contextlib.suppress(AntiphonError, TimeoutError):
            if not self.peer.is_congested:  # operators' questions must not fill its queue
                body = await asyncio.wait_for(self.peer.ask(Question(what)), limit_s or ANSWER_S)
                return body.data if isinstance(body, Body) else None
        return None

    def kill(self) -> None:
        """Kill the child, even if it is stopped; :attr:`ended` follows.

        ``Process.kill`` could reap a process that has just ended, whose exit code would then be lost.
        """
        if isinstance(self.process, LocalTask):
            self.process.kill()
        elif self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _heard(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        if isinstance(message, Ready) and not self.ready.done():
            self.silent_s = 0.0  # it has been starting until now
            self.ready.set_result(message)
            return None
        if isinstance(message, Failed):
            self._failed = message.words
            return None
        return self._handle_message(message, descriptors)

    async def _reap(self) -> int:
        """The exit code, after the child has ended and all of its messages were read."""
        code = await self.process.wait()
        self.peer.read_rest()
        if not self.ready.done():
            kind = "task" if isinstance(self.process, LocalTask) else "process"
            words = self._failed or f"the {self.name} {kind} ended with {code} before it was ready"
            self.ready.set_exception(ConfigError(words))
            self.ready.exception()  # retrieved here, since there may be no other reader
        return code


@dataclass(frozen=True, slots=True)
class ChildProcesses:
    """Starts children with the commands ``engine`` and ``front_end``; each gets ``task`` first.

    ``devices`` are the devices of several engines, each with one process.
    """

    engine: Sequence[str]
    front_end: Sequence[str]
    task: bytes
    devices: Sequence[str] = ("",)

    async def start_engine(self, number: int, handle: Handle[Message]) -> Child:
        """Start the process of the engine with this number, counted from 0.

        Raises:
            OSError: the system has no process, file or memory left.
        """
        child = await Child.start(f"engine {self.devices[number]}".strip(), self.engine, handle)
        child.peer.send(Begin(number, self.task))
        return child

    async def start_front_end(self, number: int, handle: Handle[Message]) -> Child:
        """Start the process of a front end, which serves after :meth:`begin_front_end`. It raises as
        :meth:`start_engine`.
        """
        return await Child.start(f"front-end-{number}", self.front_end, handle)

    def begin_front_end(self, number: int, child: Child, engines: Sequence[Child]) -> None:
        """Let a started front end serve, with a link to each engine, which must be ready."""
        with contextlib.ExitStack() as stack:
            links = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in engines]
            for pair in links:
                for end in pair:
                    stack.enter_context(end)
            begin = Begin(number, self.task, engines[0].ready.result().models)
            child.peer.send(begin, [theirs.fileno() for theirs, _ in links])
            for engine, (_, ours) in zip(engines, links, strict=True):
                engine.peer.send(NewFrontEnd(number, child.pid), [ours.fileno()])
