"""``antiphon serve`` in a separate process, with the null backend and planted faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from antiphon.backends.null import NullFaults
from tests.serve.harness import PATIENCE_S, Client
from tests.support.calm import CALM_OPTIONS

REPOSITORY = Path(__file__).parents[2]
ROOM = ("--tune", "input_frames=400", "--tune", "output_frames=400")
"""However long a process waits for the machine, the frames of half a minute have room and none is lost."""
START_S = 120.0
"""Importing and starting takes about a second; a busy machine may need more."""

SCRIPT = """
import os, resource, signal, sys, time

role, *arguments = sys.argv[1:]
if role != "serve" or {is_alone}:  # a supervisor has no model, and half a second of imports less
    import antiphon.serve.hosting.model_names as model_names
    from antiphon.backends.null import NullFaults
    from tests.support.null_backend import NullBackend
    from tests.support.null_models import {spec} as SPEC, null_checkpoint

    model_names.load_checkpoint = lambda ref, **_: null_checkpoint(SPEC)

def make_backend(*_, slots, device=None, **__):
    # Not print: the signal comes at once, and must not find this thread holding the lock of stdout.
    os.write(1, b"making the backend\\n")
    time.sleep({make_s})
    return NullBackend(SPEC, slots, device=device or "cpu", step_ms=2, faults={faults!r})

if role == "engine" or (role == "serve" and {is_alone}):
    import antiphon.serve.hosting.engines as engines
    engines.make_backend = make_backend
if role == "serve":
    if {is_calm}:
        import antiphon.supervisor.children as children
        import antiphon.supervisor.supervisor as supervisor

        # A process that waits for the machine gets its share of callers, is in every answer, and stays.
        children.RESPONSIVE_S = supervisor.START_S = {patience_s}
        children.ANSWER_S, supervisor.SILENT_S = 2.0, 10.0
    # It is ignored when a shell has begun us in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from antiphon import cli
    import antiphon.serve.hosting.processes as processes
    processes.ENGINE, processes.FRONT_END = (
        (sys.executable, "-c", sys.orig_argv[2], child) for child in ("engine", "front-end")
    )
    if {open_files}:
        resource.setrlimit(resource.RLIMIT_NOFILE, {open_files})
    options = ["--port", "0", "--backend", "null", "--slots", "1", *{calm}]
    sys.exit(cli.run(["serve", *options, *arguments]))
elif role == "engine":
    from antiphon.serve.hosting.engine_process import run_engines as work
else:
    if {is_calm}:
        import antiphon.serve.access.supervisor_client as supervisor_client

        supervisor_client.ASK_S = 10.0  # no call is refused while the supervisor waits for the machine
    from antiphon.serve.hosting.front_end import run_front_end as work

from antiphon.supervisor.child import run_child
sys.exit(run_child(arguments, work))
"""


class ServerProcess:
    """A running ``antiphon serve``."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, http: aiohttp.ClientSession) -> None:
        self.process = process
        self.url = url
        self.http = http

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def log(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def status(self, path: str) -> int:
        async with self.http.get(self.url + path) as response:
            return response.status

    async def reaches(self, path: str, status: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.status(path) != status:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def call(self, query: str) -> AsyncIterator[Client]:
        async with self.http.ws_connect(f"{self.url}/api/chat?{query}") as ws:
            yield Client(ws)


async def start_process(
    *options: str,
    lose_device_at: int | None = None,
    make_s: float = 0.0,
    open_files: tuple[int, int] | None = None,
    spec: str = "CODEC",
    faults: NullFaults | None = None,
    environment: Mapping[str, str] | None = None,
    is_calm: bool = True,
) -> asyncio.subprocess.Process:
    """Start a server; making its backend takes ``make_s``, ``open_files`` are its soft and hard limit.

    ``spec`` is the name of a model in ``tests/support/null_models.py``; ``faults`` are those of its backend,
    where it is not only to lose its device. ``environment`` is what is added to ours. A measurement is not
    ``is_calm``: it takes the product's own bounds of time and room.
    """
    facts = {"faults": faults or NullFaults(lose_device_at=lose_device_at), "make_s": make_s}
    front_ends = dict(itertools.pairwise(options)).get("--front-ends", "0")
    facts["is_alone"] = front_ends == "0"
    facts |= {"calm": (*CALM_OPTIONS, *ROOM) if is_calm else (), "patience_s": PATIENCE_S, "is_calm": is_calm}
    script = SCRIPT.format(**facts, open_files=open_files, spec=spec)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, "serve", *options),
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def serve_process(
    *options: str,
    lose_device_at: int | None = None,
    open_files: tuple[int, int] | None = None,
    spec: str = "CODEC",
) -> AsyncIterator[ServerProcess]:
    """A server on a free port; killed at the end if it is still there."""
    process = await start_process(*options, lose_device_at=lose_device_at, open_files=open_files, spec=spec)
    try:
        match = await asyncio.wait_for(said(process, r"https?://\S+"), START_S)
        async with aiohttp.ClientSession() as http:
            yield ServerProcess(process, match[0], http)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        assert process.stdout is not None
        assert process.stderr is not None
        # Its children have the other ends of its pipes too, and end with it.
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(process.stdout.read(), process.stderr.read())


async def said(process: asyncio.subprocess.Process, pattern: str) -> re.Match[str]:
    """Wait until a line of its output has the pattern."""
    assert process.stdout is not None
    assert process.stderr is not None
    while line := (await process.stdout.readline()).decode():
        if match := re.search(pattern, line):
            return match
    raise AssertionError((await process.stderr.read()).decode())


def children_of(pid: int) -> dict[int, str]:
    """The processes that ``pid`` has started, and the words they were started with."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    found: dict[int, str] = {}
    for child in map(int, listed.read_text().split() if listed.exists() else []):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def children(pid: int) -> dict[str, int]:
    """The engine's process, and front ends in the order they were started."""
    found: dict[str, int] = {}
    for child, words in children_of(pid).items():
        role = next((word for word in words.split() if word in ("engine", "front-end")), None)
        if role is not None:
            found[role if role == "engine" else f"front-end-{child}"] = child
    return found


def front_ends(server: ServerProcess) -> list[int]:
    return [pid for role, pid in children(server.process.pid).items() if role != "engine"]


async def run(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *words,
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
