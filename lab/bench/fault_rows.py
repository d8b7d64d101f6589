"""The faults of ``lab.bench.fault_matrix``: for each its injection, server options, and further counts.

Faults with a name in LiveKit's simulated scenarios have that name.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from antiphon.backends.null import NullFaults
from lab.bench.fault_scene import Scene
from lab.bench.fault_talker import QUERY
from lab.bench.wall_clock import shift_wall_clock, with_wall_clock

FOLDER: Final = "FOLDER"
"""In options: a separate folder of the row."""

SPLIT: Final = ("--front-ends", "2")
STOPPED_S: Final = 3.0
UPGRADES_A_SECOND: Final = 200
FLOOD_S: Final = 3.0
FLOOD_FILES: Final = 300
FREE_FILES: Final = 24
SHIFT_S: Final = 3600
LITTLE_BYTES: Final = 262_144
"""Bytes, less than the rings of any server: the limit on the size of a file, including shared memory, that a
process writes."""

PLANNED_TICK: Final = 60
"""Tick of the backend's faults, about three seconds into the calls; a call may have several ticks."""

MISSED_S: Final = 0.2
"""Seconds without an answer after which a call counts as hit by the backend's fault."""

START_S: Final = 60.0
"""Seconds for a server that should end when it starts."""


async def _nothing(_: Scene) -> None:
    """The quiet run, with which the others are compared."""


def _kill(role: str) -> Callable[[Scene], Awaitable[None]]:
    async def inject(scene: Scene) -> None:
        scene.signal(role, signal.SIGKILL)

    return inject


def _stop(role: str) -> Callable[[Scene], Awaitable[None]]:
    async def inject(scene: Scene) -> None:
        await scene.stop_for(role, STOPPED_S)

    return inject


async def _reset_all(scene: Scene) -> None:
    for talker in scene.talkers:
        talker.reset()


async def _reset_again(scene: Scene) -> None:
    """Each connection, and the next one as soon as the call continues."""
    await _reset_all(scene)
    async with asyncio.timeout(10.0):
        for talker in scene.talkers:
            await talker.resumed.wait()
    await _reset_all(scene)


async def _reset_while_paused(scene: Scene) -> None:
    """Readers pause for two seconds, then the connections end with RST."""
    for talker in scene.talkers:
        if talker.transport is not None:
            talker.transport.pause_reading()
    await asyncio.sleep(2.0)
    await _reset_all(scene)


async def _leave(scene: Scene) -> None:
    scene.signal("supervisor", signal.SIGTERM)


async def _upgrades(scene: Scene) -> None:
    """This number of WebSockets a second, each of which requests a row and disconnects at once."""
    answers: Counter[str] = Counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one() -> None:
            try:
                async with (
                    asyncio.timeout(5.0),
                    http.ws_connect(f"{scene.service.url}/api/chat?{QUERY}") as ws,
                ):
                    await ws.receive()
                    answers["let in"] += 1
            except aiohttp.WSServerHandshakeError as error:
                answers[f"HTTP {error.status}"] += 1
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                answers[type(error).__name__] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(round(UPGRADES_A_SECOND * FLOOD_S)):
                group.create_task(one())
                await asyncio.sleep(1 / UPGRADES_A_SECOND)
    scene.facts += [f"{number} {what}" for what, number in answers.most_common(4)]


async def _no_open_files(scene: Scene) -> None:
    """Every process may open only a few more files, and hundreds of connections stay open."""
    for process in scene.service.processes():
        soft = process.num_fds() + FREE_FILES
        process.rlimit(resource.RLIMIT_NOFILE, (soft, process.rlimit(resource.RLIMIT_NOFILE)[1]))
    opened: list[asyncio.StreamWriter] = []
    for _ in range(FLOOD_FILES):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                _, writer = await asyncio.open_connection("127.0.0.1", scene.service.port)
            opened.append(writer)
    await asyncio.sleep(STOPPED_S)
    for writer in opened:
        writer.transport.abort()
    scene.facts.append(f"{len(opened)} connections, {len(scene.service.log)} lines of log")


async def _disk_full(scene: Scene) -> None:
    """No file of any process may grow, as on a full disk."""
    for process in scene.service.processes():
        process.rlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))


async def _disk_hangs(scene: Scene) -> None:
    """The file system of the recordings and the usage records accepts no byte for three seconds."""
    await _run("fsfreeze", "--freeze", str(scene.folder))
    try:
        await asyncio.sleep(STOPPED_S)
    finally:
        await _run("fsfreeze", "--unfreeze", str(scene.folder))


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()


async def _recorded(scene: Scene) -> None:
    failed = sum("recording failed" in line for line in scene.service.log)
    scene.facts.append(f"{failed} recordings given up")


async def _planned_tick(scene: Scene) -> None:
    """The backend's fault has occurred: a call has had no answer for a while, or has ended."""
    async with asyncio.timeout(START_S):
        while max(talker.silent_s for talker in scene.talkers) < MISSED_S:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


def _slow_ticks() -> NullFaults:
    return NullFaults(slow_ms=dict.fromkeys(range(PLANNED_TICK, 100000, 40), 150.0))


async def _step_clock(scene: Scene) -> None:
    """The wall clock steps an hour forward, two back, and is right again; the monotonic clock continues."""
    for shift_s in (SHIFT_S, -SHIFT_S, 0):
        shift_wall_clock(scene.folder, shift_s)
        await asyncio.sleep(1.0)


async def _no_ring_memory(scene: Scene) -> None:
    """The engine's process ends, and the next one has no memory for its rings; the one after that does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE_BYTES, old[1]))  # of processes started from now on
    try:
        scene.signal("engine", signal.SIGKILL)
        async with asyncio.timeout(START_S):
            while len(scene.service.exits) < 2:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    said = [line for line in scene.service.log if "for the rings of" in line]
    scene.facts += [f"exit {scene.service.exits[1]} at the second start", *said[:1]]


async def _stalls(scene: Scene) -> None:
    """Packets are lost: nothing passes for 200 ms, five times, like TCP's wait for a retransmission."""
    assert scene.proxy is not None
    for _ in range(5):
        scene.proxy.open.clear()
        await asyncio.sleep(0.2)
        scene.proxy.open.set()
        await asyncio.sleep(0.8)


async def _slow_readers(scene: Scene) -> None:
    """Every second caller reads a tenth of the data that it is sent."""
    await asyncio.gather(*(_sip(talker.transport) for talker in scene.talkers[::2]))


async def _sip(transport: Any) -> None:
    for _ in range(40):
        with contextlib.suppress(RuntimeError):
            transport.pause_reading()
            await asyncio.sleep(0.18)
            transport.resume_reading()
            await asyncio.sleep(0.02)


async def _slow_writers(scene: Scene) -> None:
    """During the calls, 64 connections send a header at a byte a second."""
    writers = []
    for _ in range(64):
        _, writer = await asyncio.open_connection("127.0.0.1", scene.service.port)
        writers.append(writer)
    for byte in b"GET /":
        for writer in writers:
            with contextlib.suppress(OSError):
                writer.write(bytes((byte,)))
        await asyncio.sleep(1.0)
    for writer in writers:
        writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the matrix; ``inject`` runs three seconds into the calls of a server with ``options``.

    ``comes`` waits for a fault that occurs automatically, and ``after`` checks the server when the calls are
    over. ``delay_s`` puts a proxy in front of it.
    """

    name: str
    words: str
    inject: Callable[[Scene], Awaitable[None]] = _nothing
    options: tuple[str, ...] = SPLIT
    faults: NullFaults | None = None
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}
    after: Callable[[Scene], Awaitable[None]] = _nothing
    delay_s: float | None = None
    comes: Callable[[Scene], Awaitable[None]] = _nothing
    needs: str = ""
    query: str = field(default=QUERY + "&resume=1")


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("quiet", "nothing"),
        Fault("front_end_killed", "kill -9 of one of two front ends", _kill("front-end")),
        Fault("node_failure", "kill -9 of the engine's process", _kill("engine")),
        Fault("supervisor_killed", "kill -9 of the supervisor", _kill("supervisor")),
        Fault("front_end_stopped", "SIGSTOP of a front end for 3 s", _stop("front-end")),
        Fault("engine_stopped", "SIGSTOP of the engine's process for 3 s", _stop("engine")),
        Fault("supervisor_stopped", "SIGSTOP of the supervisor for 3 s", _stop("supervisor")),
        Fault("server_leave", "SIGTERM, 2 s to drain", _leave, (*SPLIT, "--drain-timeout-s", "2")),
        Fault("signal_reconnect", "RST of every connection", _reset_all),
        Fault("disconnect_on_resume", "RST, and RST again when the call continues", _reset_again),
        Fault("reset_while_paused", "no caller reads for 2 s, then RST", _reset_while_paused),
        Fault("no_open_files", "24 files left, 300 connections stay open for 3 s", _no_open_files),
        Fault("upgrades", "200 WebSockets a second for 3 s", _upgrades),
        Fault("subscriber_bandwidth", "every second caller reads a tenth of its audio", _slow_readers),
        Fault("slow_writers", "64 headers at a byte a second", _slow_writers),
        Fault("network_delay", "150 ms each way", _nothing, delay_s=0.15),
        Fault("packet_loss", "nothing passes for 200 ms, five times in 5 s", _stalls, delay_s=0.0),
        Fault(
            "clock_step",
            "the wall clock by +1 h, -1 h, 0",
            _step_clock,
            environment=with_wall_clock,
            needs="a C compiler",
        ),
        Fault(
            "no_ring_memory",
            "kill -9 of the engine's process, and no memory for rings at the next start",
            _no_ring_memory,
        ),
        Fault(
            "disk_full",
            "no file may grow beyond 64 KiB, calls are recorded",
            _disk_full,
            (*SPLIT, "--record", FOLDER),
            after=_recorded,
            query=QUERY + "&resume=1&consent=record",
        ),
        Fault(
            "disk_hangs",
            "the disk of recordings and usage accepts no data for 3 s",
            _disk_hangs,
            (*SPLIT, "--record", FOLDER, "--usage", f"{FOLDER}/usage"),
            after=_recorded,
            query=QUERY + "&resume=1&consent=record",
            needs="a file system to freeze",
        ),
        Fault(
            "device_lost",
            "the backend's device is lost",
            faults=NullFaults(lose_device_at=PLANNED_TICK),
            comes=_planned_tick,
        ),
        Fault(
            "backend_nan",
            "one row of one step of the backend is NaN",
            faults=NullFaults(nan_at=frozenset({PLANNED_TICK})),
            comes=_planned_tick,
        ),
        Fault(
            "backend_hangs",
            "one step takes 3 s",
            faults=NullFaults(slow_ms={PLANNED_TICK: 3000.0}),
            comes=_planned_tick,
        ),
        Fault("backend_slow", "every 40th step takes 150 ms", faults=_slow_ticks()),
    )
}
"""The faults by name, in the order of the table."""
