"""Engines for the contract tests of the IPC, in this process or in another one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from antiphon.engine.front_ends import LocalFrontEnd
from antiphon.ipc.engine_client import CallSession, EnginePort, connect
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from tests.engine.fakes import MODEL
from tests.ipc.engine_process import make_engine

PATIENCE_S = 120.0


@dataclass
class Place:
    """An engine's port, and how to drain the engine behind it."""

    port: EnginePort
    drain: Callable[[], None]


class Call:
    """A session and the news of it."""

    def __init__(self) -> None:
        self.session: CallSession
        self.news = asyncio.Event()
        self.told = 0

    def notify(self) -> None:
        self.told += 1
        self.news.set()

    async def until(self, is_so: Callable[[CallSession], bool]) -> None:
        """Wait for something that the session says of itself, looking only when there is news."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so(self.session):
                self.news.clear()
                if not is_so(self.session):
                    await self.news.wait()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something of which nothing tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def open_call(
    place: Place, *, wait_s: float = 0.0, prompt: Prompt | None = None, **parameters: Any
) -> Call:
    call = Call()
    call.session = await place.port.submit(
        SamplingParameters(**parameters), wait_s=wait_s, notify=call.notify, prompt=prompt
    )
    return call


@asynccontextmanager
async def one_process(facts: dict[str, Any]) -> AsyncIterator[Place]:
    engine = make_engine(facts, pools=None)
    front_end = LocalFrontEnd({MODEL: engine}, asyncio.get_running_loop())
    yield Place(front_end.client.engines[MODEL], engine.drain)
    assert engine.stop(PATIENCE_S)


def start_engine(facts: dict[str, Any], controls: list[socket.socket]) -> subprocess.Popen[bytes]:
    """The process of an engine with these ends of its front ends' sockets."""
    descriptors = [control.fileno() for control in controls]
    command = [sys.executable, "-m", "tests.ipc.engine_process", json.dumps(facts), *map(str, descriptors)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors)


@asynccontextmanager
async def two_processes(facts: dict[str, Any]) -> AsyncIterator[Place]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = start_engine(facts, [theirs])
    theirs.close()
    ports = await connect(ours)
    yield Place(ports[MODEL], lambda: os.kill(process.pid, signal.SIGUSR1))
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0


PLACES = {"one process": one_process, "two processes": two_processes}
