"""Runs calls one after the other during a rolling restart, and compares audio and words.

    python -m lab.bench.hand_over MODEL [CALLS]

Three workers with ``--fixed-batch`` are behind HAProxy with the configuration of the stack. One call at a
time speaks a question in real time. During the question its worker is drained, and the call moves to another
one; the drained worker restarts. Words and audio have to equal those of a call that was not moved. The exit
code is 1 if a call was lost, lacks an answer, or has other words or audio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp
import numpy as np

from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon_client.clip import fit_clip, load_question
from antiphon_client.measures import Distribution
from lab.bench.speaking_caller import FRAME_S, SpeakingCaller, Spoken
from tests.support.launch import ANTIPHON, free_port
from tests.support.stack.composefile import ROOT
from tests.support.stack.names import name_server
from tests.support.stack.process import Process, find_program
from tests.support.stack.stack import answers

SPOKEN_FRAMES = 40
MOVE_FRAMES = (12, 24)
"""The worker is drained after a random frame between these."""

HOSTS = {"a": "127.0.9.1", "b": "127.0.9.2", "c": "127.0.9.3"}
SEEDS = "text_seed=5&audio_seed=7"
QUERY = f"ext=1&format=pcm_f32le&resume=1&{SEEDS}"


class RollingWorkers(Protocol):
    """Workers of one model behind a load balancer, which restart one at a time."""

    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """The load balancer's URL."""
        ...

    async def drain(self, name: str) -> None:
        """Make a worker hand over its calls and shut down; it restarts at once."""
        ...

    async def wait_for_two(self) -> None:
        """Wait until at most one worker is restarting."""
        ...

    async def wait_for_all(self) -> None:
        """Wait until no worker is restarting."""
        ...


@dataclass
class Roll:
    """Three workers in separate processes, behind a load balancer."""

    folder: Path
    model: str
    port: int
    free_rows_port: int
    balancer_port: int
    http: aiohttp.ClientSession
    workers: dict[str, Process] = field(default_factory=dict)
    coming_back: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The load balancer's URL."""
        return f"http://127.0.0.1:{self.balancer_port}"

    def url_of(self, name: str) -> str:
        """Return the direct URL of a worker."""
        return f"http://{HOSTS[name]}:{self.port}"

    async def start(self, name: str) -> None:
        """Start a worker, or restart it."""
        options = (
            *("--model", self.model, "--host", HOSTS[name], "--port", str(self.port), "--slots", "2"),
            *("--free-rows-port", str(self.free_rows_port), "--fixed-batch", "--worker", name),
            *("--hand-over-secret", str(self.folder / "secret"), "--trusted-proxy", "127.0.0.0/8"),
            *("--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=10000"),
        )
        log = self.folder / f"{name}.log"
        self.workers[name] = Process([*ANTIPHON, "serve", *options], {}, log)
        await answers(self.http, f"{self.url_of(name)}/healthz", self.workers[name])

    async def drain(self, name: str) -> None:
        """Make a worker hand over its calls and shut down; it restarts at once."""
        target = next(other for other in HOSTS if other != name and self._is_up(other))
        secret = SharedSecret.read(self.folder / "secret")
        leaving = OtherWorker(self.url_of(name), secret, timeout_s=5.0)
        await asyncio.to_thread(leaving.drain, self.url_of(target))
        self.coming_back[name] = asyncio.ensure_future(self._come_back(name))

    async def wait_for_two(self) -> None:
        """Wait until at most one worker is restarting."""
        while len(away := [task for task in self.coming_back.values() if not task.done()]) > 1:
            await asyncio.wait(away, return_when=asyncio.FIRST_COMPLETED)

    async def wait_for_all(self) -> None:
        """Wait until no worker is restarting."""
        await asyncio.gather(*self.coming_back.values())

    def _is_up(self, name: str) -> bool:
        return name not in self.coming_back or self.coming_back[name].done()

    async def _come_back(self, name: str) -> None:
        await self.workers[name].ended(60.0)
        await self.start(name)


@contextlib.asynccontextmanager
async def rolling(model: str, folder: Path) -> AsyncIterator[Roll]:
    """Run three workers, a name server and HAProxy."""
    (folder / "secret").write_text(os.urandom(16).hex())
    (folder / "workers.map").write_text("".join(f"{name} worker-{name}\n" for name in HOSTS))
    tls = ROOT / "tests" / "serve" / "tls"
    (folder / "tls.pem").write_text((tls / "test-cert.pem").read_text() + (tls / "test-key.pem").read_text())
    table = {f"worker-{name}": [host] for name, host in HOSTS.items()}
    table["duplex"] = list(HOSTS.values())
    async with name_server(table) as dns_port, aiohttp.ClientSession() as http:
        roll = Roll(folder, model, free_port(), free_port(), free_port(), http)
        environment = {
            "DNS_ADDRESS": f"127.0.0.1:{dns_port}",
            "FREE_ROWS_PORT": str(roll.free_rows_port),
            "WORKER_PORT": str(roll.port),
            "WORKERS_MAP": str(folder / "workers.map"),
            "TLS_FILE": str(folder / "tls.pem"),
            "HTTP_ADDRESS": f"127.0.0.1:{roll.balancer_port}",
            "HTTPS_ADDRESS": f"127.0.0.1:{free_port()}",
            "WATCH_ADDRESS": f"127.0.0.1:{free_port()}",
            **{f"{name}_ADDRESS": f"{name.lower()}:{roll.port}" for name in ("DUPLEX", "ECHO", "STT", "TTS")},
        }
        config = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
        balancer: Process | None = None
        try:
            await asyncio.gather(*(roll.start(name) for name in HOSTS))
            balancer = Process(
                [find_program("haproxy"), "-db", "-f", str(config)], environment, folder / "balancer.log"
            )
            await until_admitted(http, f"{roll.url}/readyz", balancer)
            yield roll
        finally:
            for process in (*roll.workers.values(), *([balancer] if balancer else [])):
                process.kill()


async def until_admitted(http: aiohttp.ClientSession, url: str, balancer: Process) -> None:
    """Wait until the load balancer admits calls, which needs a worker."""
    await answers(http, url, balancer)


async def one_call(
    roll: RollingWorkers, number: int, delay_frames: int, *, is_moved: bool, frames: int = SPOKEN_FRAMES
) -> Spoken:
    """Ask one question in a call; with ``is_moved`` the call's worker is drained meanwhile. Returns the
    call's result."""
    await roll.wait_for_two()
    chance = np.random.default_rng(number)
    pcm = fit_clip(load_question(), frames * FRAME_S)
    url = f"{roll.url.replace('http', 'ws', 1)}/api/chat?{QUERY}"
    caller = SpeakingCaller(roll.http, url, pcm, delay_frames)
    caller.alarm_frame = int(chance.integers(*MOVE_FRAMES)) if is_moved else -1
    async with asyncio.timeout(120.0):
        running = asyncio.ensure_future(caller.run())
        if is_moved:
            await caller.reached.wait()
            await asyncio.sleep(FRAME_S * chance.random())
            leaving = caller.spoken.thread.worker
            await roll.drain(leaving)
        await running
    return caller.spoken


async def measure(roll: RollingWorkers, model: str, calls: int) -> tuple[Spoken, list[Spoken]]:
    """Run one call that stays on its worker and ``calls`` calls that move to another worker; returns both
    results.
    """
    delay_frames = {"tiny": 1}.get(model, 0)
    whole = await one_call(roll, 0, delay_frames, is_moved=False)
    found: list[Spoken] = []
    for number in range(calls):
        found.append(await one_call(roll, number, delay_frames, is_moved=True))
        if (number + 1) % 20 == 0:
            print(report(model, whole, found), file=sys.stderr, flush=True)
    await roll.wait_for_all()
    return whole, found


async def measure_processes(model: str, calls: int, folder: Path) -> tuple[Spoken, list[Spoken]]:
    """Run the calls of :func:`measure` on workers in separate processes."""
    async with rolling(model, folder) as roll:
        return await measure(roll, model, calls)


def shown(name: str, values: list[float]) -> str:
    """Return one line about the distribution of values."""
    found = Distribution.of(values)
    if found is None:
        return f"{name:<24} none"
    return f"{name:<24} p50 {found.p50:.0f} ms, p99 {found.p99:.0f} ms, most {found.max:.0f} ms"


def went_on(spoken: Spoken) -> bool:
    """Return whether a call moved and was resumed at its new worker."""
    thread = spoken.thread
    return thread.moves > 0 and thread.resumptions > 0 and not thread.reason


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of moved calls: those that continued, those with the words of the unmoved call, and their
    missing and different frames."""

    calls: int
    alive: int
    same: int
    lost: int
    different: int

    @classmethod
    def of(cls, whole: Spoken, found: list[Spoken]) -> Tally:
        """Compare the moved calls ``found`` with ``whole``, the call that stayed, and count the results."""
        return cls(
            calls=len(found),
            alive=sum(went_on(it) for it in found),
            same=sum("".join(it.text) == "".join(whole.text) for it in found),
            lost=sum(len(whole.frames.keys() - it.frames.keys()) for it in found),
            different=sum(it.frames[at] != whole.frames.get(at) for it in found for at in it.frames),
        )

    @property
    def is_whole(self) -> bool:
        """Whether every call continued as if it had not moved."""
        return self.calls == self.alive == self.same > 0 and self.lost == self.different == 0


def report(model: str, whole: Spoken, found: list[Spoken]) -> str:
    """Return the results of the calls so far as text."""
    tally = Tally.of(whole, found)
    calls = tally.calls
    lines = (
        f"{model}: {calls} calls, each handed over while it spoke; load {os.getloadavg()[0]:.1f}",
        f"{'alive':<24} {tally.alive} of {calls}",
        f"{'words as unmoved':<24} {tally.same} of {calls}, {len(''.join(whole.text))} bytes each",
        f"{'frames not answered':<24} {tally.lost} of {calls * len(whole.frames)}",
        f"{'frames that differ':<24} {tally.different}",
        shown("moved to resumed", [it.resumed_ms for it in found if it.resumed_ms is not None]),
        shown("gap in the audio", [it.gap_ms for it in found]),
        shown("the same, unmoved", [whole.gap_ms]),
    )
    return "\n".join(lines)


def main() -> int:
    """Run the command line and print the results; returns 0 if every call continued as if it had not
    moved."""
    model, calls = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
    with tempfile.TemporaryDirectory(prefix="hand-over-") as folder:
        whole, found = asyncio.run(measure_processes(model, calls, Path(folder)))
    print(report(model, whole, found))
    return 0 if Tally.of(whole, found).is_whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
