"""A server under a service manager, its processes, and a proxy in front of it that delays and stalls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket as sockets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from antiphon.backends.null import NullFaults
from antiphon.protocol import events, moshi
from lab.bench.fault_talker import QUERY, RESET, Talker
from tests.serve.harness import FRAME_SAMPLES
from tests.serve.process import START_S, said, start_process
from tests.support.launch import free_port

RESTART_S = 1.0
"""Seconds that a service manager waits before it restarts an ended server (RestartSec of our unit)."""

TRY_S = 0.1
NEWCOMER_S = 1.0
"""Seconds without data after which a new caller gives up a connection, and retries."""


class Service:
    """A server process on a separate port, which is restarted whenever it ends."""

    def __init__(
        self,
        *options: str,
        faults: NullFaults | None = None,
        environment: Mapping[str, str],
        is_calm: bool = False,
    ) -> None:
        """Prepare; nothing is started yet. A calm server refuses no call because its machine is busy."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self.exits: list[int] = []
        self.log: list[str] = []
        self._options, self._faults, self._environment = options, faults, environment
        self._is_over, self._is_calm = False, is_calm
        self._process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Run the server, and restart it when it ends, until the block ends."""
        is_up = asyncio.Event()
        keeping = asyncio.ensure_future(self._keep(is_up))
        try:
            async with asyncio.timeout(START_S):
                await is_up.wait()
            yield self
        finally:
            self._is_over = True
            if self._process is not None and self._process.returncode is None:
                for process in self.processes():
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, is_up: asyncio.Event) -> None:
        while not self._is_over:
            faults = self._faults if not self.starts else None
            self._process = process = await start_process(
                *("--port", str(self.port), *self._options),
                faults=faults,
                environment=self._environment,
                is_calm=self._is_calm,
            )
            self.starts += 1
            assert process.stderr is not None
            reading = asyncio.ensure_future(self._read(process.stderr))
            try:
                await said(process, r"https?://\S+")
                is_up.set()
                assert process.stdout is not None
                await process.stdout.read()
            except AssertionError:
                is_up.set()
            self.exits.append(await process.wait())
            await reading
            await asyncio.sleep(RESTART_S)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.log.append(line.decode(errors="replace").rstrip())

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the server, the first process first."""
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def of_role(self, role: str) -> list[psutil.Process]:
        """Return the processes of a role: supervisor, engine or front-end."""
        first, *others = self.processes()
        return [first] if role == "supervisor" else [each for each in others if role in each.cmdline()]


class Proxy:
    """A TCP proxy that delays every piece by ``delay_s``, and passes nothing while :attr:`open` is clear."""

    def __init__(self, port: int, *, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Forward to ``port``; replies are no faster than ``bytes_per_s``, 0 for no limit."""
        self._port, self._delay_s, self._bytes_per_s = port, delay_s, bytes_per_s
        self.open = asyncio.Event()
        self.open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run the proxy; yields its URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port, limit=4096)
        except OSError:
            writer.transport.abort()
            return
        for source, target, pace in ((reader, to_writer, 0.0), (to_reader, writer, self._bytes_per_s)):
            task = asyncio.ensure_future(self._pass_on(source, target, pace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, bytes_per_s: float
    ) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def write() -> None:
            while True:
                due_s, data = await late.get()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                await self.open.wait()
                target.write(data)
                if not data:
                    target.close()
                    return
                await target.drain()

        writing = asyncio.ensure_future(write())
        try:
            data = b"."
            while data:
                data = await source.read(4096)
                await late.put((time.monotonic() + self._delay_s, data))
                await asyncio.sleep(len(data) / bytes_per_s if bytes_per_s else 0.0)
            await writing
        except OSError:
            target.transport.abort()
        finally:
            writing.cancel()


@dataclass
class Scene:
    """The target of a fault: a service, and the calls on it. ``facts`` are further results to report."""

    service: Service
    http: aiohttp.ClientSession
    talkers: list[Talker]
    folder: Path
    proxy: Proxy | None = None
    facts: list[str] = field(default_factory=list)

    def signal(self, role: str, number: signal.Signals) -> None:
        """Signal the first process of a role."""
        os.kill(self.service.of_role(role)[0].pid, number)

    async def stop_for(self, role: str, seconds: float) -> None:
        """Stop the first process of a role with SIGSTOP, and resume it with SIGCONT after ``seconds`` if it
        still exists."""
        process = self.service.of_role(role)[0]
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)

    def limit(self, role: str, resource: int, soft: int) -> None:
        """Set a resource limit of all processes of a role while they run."""
        for process in self.service.of_role(role):
            process.rlimit(resource, (soft, process.rlimit(resource)[1]))


async def newcomer_ms(url: str, until_s: float) -> float | None:
    """Measure how long a new caller waits for the first reply, with retries, in ms; None if it gets none."""
    begun_s = time.monotonic()
    frame = moshi.encode(moshi.Audio(np.zeros(FRAME_SAMPLES, "<f4").tobytes()))
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < until_s:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(NEWCOMER_S), http.ws_connect(f"{url}/api/chat?{QUERY}") as ws:
                    async for message in ws:
                        said_ = (
                            moshi.decode(message.data) if message.type is aiohttp.WSMsgType.BINARY else None
                        )
                        if isinstance(said_, moshi.Event) and said_.type == "ready":
                            await ws.send_bytes(frame)
                        elif isinstance(said_, moshi.StampedAudio):
                            await ws.send_bytes(moshi.encode(events.bye()))
                            return 1000 * (time.monotonic() - begun_s)
            await asyncio.sleep(TRY_S)
    return None


def reset_socket(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of a close."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, RESET)
    writer.transport.abort()
