"""A supervisor with stub children inside a test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from antiphon.supervisor import children as children_module
from antiphon.supervisor import supervisor as supervisor_module
from antiphon.supervisor.children import ChildProcesses
from antiphon.supervisor.connection_bounds import ConnectionLimits
from antiphon.supervisor.supervisor import Supervisor, SupervisorPlan

STUB = str(Path(__file__).parent / "stub.py")
PATIENCE_S = 120.0


@dataclass
class Caller:
    """A connection to a stub front end, greeted by it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    front_end: int
    pid: int

    async def say(self, words: str) -> str:
        self.writer.write(f"{words}\n".encode())
        return (await self.reader.readline()).decode().strip()

    async def ask(self, what: str) -> bytes:
        return await self.reader.readexactly(int(await self.say(f"ask {what}")))

    async def is_dropped(self) -> bool:
        """Wait for the end of the connection."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


@dataclass
class Running:
    """A running supervisor and who called it."""

    port: int
    task: asyncio.Task[int]
    announced: list[Sequence[str]] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)

    async def call(self) -> Caller:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            number, pid = (await reader.readline()).split()
        caller = Caller(reader, writer, int(number), int(pid))
        self.callers.append(caller)
        return caller

    def spread(self) -> Counter[int]:
        """The number of calls at each front end."""
        return Counter(caller.front_end for caller in self.callers)

    async def health(self) -> dict[str, Any]:
        caller = await self.call()
        found: dict[str, Any] = json.loads(await caller.ask("health"))
        caller.close()
        return found

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.task


def plan(
    listener: socket.socket, *, engine: str = "", front_end: str = "", engines: int = 1, **changes: Any
) -> SupervisorPlan:
    """A plan of stubs with these words."""
    python, devices = sys.executable, ("",) if engines == 1 else tuple(map(str, range(engines)))
    commands = (python, STUB, "engine", engine), (python, STUB, "front-end", front_end)
    children = ChildProcesses(*commands, b"", devices)
    return SupervisorPlan(
        **{
            "start_engine": children.start_engine,
            "start_front_end": children.start_front_end,
            "begin_front_end": children.begin_front_end,
            "front_ends": 2,
            "engines": engines,
            "listeners": [listener],
            "limits": ConnectionLimits(),
            "counted_address": lambda address: address,
            "announce": lambda lines: None,
            "drain_s": 5.0,
            "leave_s": 5.0,
            **changes,
        }
    )


@asynccontextmanager
async def supervised(
    *,
    silent_s: float = PATIENCE_S,
    responsive_s: float = PATIENCE_S,
    answer_s: float = PATIENCE_S,
    **changes: Any,
) -> AsyncIterator[Running]:
    """A supervisor on a free port; its processes have all ended afterwards.

    A child that waits for a busy machine stays, gets its share of connections, and is in every answer, unless
    a test sets ``silent_s``, ``responsive_s`` or ``answer_s``.
    """
    with (
        patch.object(supervisor_module, "SILENT_S", silent_s),
        patch.object(children_module, "RESPONSIVE_S", responsive_s),
        patch.object(children_module, "ANSWER_S", answer_s),
    ):
        async with running_supervisor(**changes) as running:
            yield running


@asynccontextmanager
async def running_supervisor(**changes: Any) -> AsyncIterator[Running]:
    """The same, with the product's own patience."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready = asyncio.Event()
    announced: list[Sequence[str]] = []

    def announce(lines: Sequence[str]) -> None:
        announced.append(lines)
        ready.set()

    supervisor = Supervisor(plan(listener, announce=announce, **changes))
    running = Running(listener.getsockname()[1], asyncio.create_task(supervisor.run()), announced)
    await wait_for_one(running.task, asyncio.create_task(ready.wait()))
    try:
        yield running
    finally:
        for caller in running.callers:
            caller.close()
        if not running.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait([running.task], timeout=PATIENCE_S)


async def wait_for_one(run: asyncio.Task[int], ready: asyncio.Task[Any]) -> None:
    await asyncio.wait([run, ready], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
    ready.cancel()
    if run.done():
        run.result()


def children() -> list[int]:
    """The stubs that this process has started and not reaped; other tests of it may have left a helper."""
    started = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in started if is_stub(Path(f"/proc/{pid}"))]


def is_stub(process: Path) -> bool:
    """Whether a process runs the stub, or did: nothing is known of one that has ended."""
    command = (process / "cmdline").read_bytes()
    return not command or STUB.encode() in command
