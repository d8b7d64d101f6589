"""Calls one after the other through a roll: what is heard of it, and whether the words stay.

    python -m lab.bench.hand_over MODEL [CALLS]

Three workers behind HAProxy with the configuration of the stack, with ``--fixed-batch``. One call at a time
speaks a question at the pace of speech. While it speaks the worker that has it is drained, and the call goes
to another one; the drained worker starts again meanwhile. The words have to be those of a call
that was not moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.protocol import moshi
from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon_client.clip import fit_clip, load_question
from antiphon_client.measures import Distribution
from antiphon_client.thread import CallThread
from tests.serve.harness import FRAME_SAMPLES
from tests.support.launch import ANTIPHON, free_port
from tests.support.stack.composefile import ROOT
from tests.support.stack.names import name_server
from tests.support.stack.process import Process, find_program
from tests.support.stack.stack import answers

FRAME_S = 0.08
IN_FLIGHT_FRAMES = 10
"""Sent and not answered: on a machine that is busy otherwise the caller waits, and loses nothing."""

SPOKEN_FRAMES = 40
MOVE_FRAMES = (12, 24)
"""The worker is drained after a random frame between these."""

HOSTS = {"a": "127.0.9.1", "b": "127.0.9.2", "c": "127.0.9.3"}
SEEDS = "text_seed=5&audio_seed=7"
QUERY = f"ext=1&format=pcm_f32le&resume=1&{SEEDS}"


@dataclass
class Roll:
    """Workers behind a load balancer."""

    folder: Path
    model: str
    port: int
    agent_port: int
    balancer_port: int
    http: aiohttp.ClientSession
    workers: dict[str, Process] = field(default_factory=dict)
    coming_back: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    def url(self, name: str) -> str:
        """Where a worker can be asked directly."""
        return f"http://{HOSTS[name]}:{self.port}"

    async def start(self, name: str) -> None:
        """Start a worker, or start it again."""
        options = (
            *("--model", self.model, "--host", HOSTS[name], "--port", str(self.port), "--slots", "2"),
            *("--agent-port", str(self.agent_port), "--fixed-batch", "--worker", name),
            *("--hand-over-secret", str(self.folder / "secret"), "--trusted-proxy", "127.0.0.0/8"),
            *("--late-refuse-fraction", "1", "--host-lag-ms", "10000"),
        )
        log = self.folder / f"{name}.log"
        self.workers[name] = Process([*ANTIPHON, "serve", *options], {}, log)
        await answers(self.http, f"{self.url(name)}/healthz", self.workers[name])

    async def drain(self, name: str) -> None:
        """Have a worker hand over its calls and leave; it starts again as soon as it has left."""
        target = next(other for other in HOSTS if other != name and self._is_up(other))
        secret = SharedSecret.read(self.folder / "secret")
        leaving = OtherWorker(self.url(name), secret, timeout_s=5.0)
        await asyncio.to_thread(leaving.drain, self.url(target))
        self.coming_back[name] = asyncio.ensure_future(self._come_back(name))

    async def are_two_there(self) -> None:
        """Wait until no more than one worker is on its way back."""
        while len(away := [task for task in self.coming_back.values() if not task.done()]) > 1:
            await asyncio.wait(away, return_when=asyncio.FIRST_COMPLETED)

    def _is_up(self, name: str) -> bool:
        return name not in self.coming_back or self.coming_back[name].done()

    async def _come_back(self, name: str) -> None:
        await self.workers[name].ended(60.0)
        await self.start(name)


@dataclass
class Spoken:
    """One call as its caller hears it."""

    text: list[str] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)
    resumed_ms: float | None = None
    missed: int = 0
    thread: CallThread = field(default_factory=CallThread)
    moved_s: float | None = None

    @property
    def gap_ms(self) -> float:
        """The longest time in which nothing was heard, beyond a frame."""
        pauses = np.diff(np.array(self.heard_s))
        return 1000 * max(0.0, float(pauses.max()) - FRAME_S)


class SpeakingCaller:
    """Speaks at the pace of speech, holds what it has said, and goes wherever its call goes."""

    def __init__(self, http: aiohttp.ClientSession, url: str, pcm: FloatArray, delay_frames: int) -> None:
        """Prepare to speak whole frames."""
        self._http, self._url = http, url
        self._frames = pcm.reshape(-1, FRAME_SAMPLES)
        self._last = len(self._frames) - 1 - delay_frames
        self.spoken, self.reached = Spoken(), asyncio.Event()
        self.alarm_frame = -1
        self._next = 0
        self._began_s = 0.0

    async def run(self) -> None:
        """Until the last frame is answered."""
        url, claim = self._url, b""
        thread = self.spoken.thread
        while True:
            try:
                async with self._http.ws_connect(url, max_msg_size=0) as socket:
                    if claim:
                        await socket.send_bytes(claim)
                    if await self._hold(socket):
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
            if thread.reason:
                return
            if not thread.is_resumable:  # the load balancer had no worker at this moment
                continue
            url, claim = thread.resuming_url(self._url), thread.claim(0)

    async def _hold(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        speaking: asyncio.Task[None] | None = None
        try:
            async for message in socket:
                resumptions = self.spoken.thread.resumptions
                if message.type is aiohttp.WSMsgType.BINARY and self._heed(message.data):
                    return True
                is_let_in = self.spoken.thread.resumptions > resumptions
                if speaking is None and self.spoken.thread.is_resumable and (is_let_in or not resumptions):
                    speaking = asyncio.ensure_future(self._speak(socket))
        finally:
            if speaking is not None:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)
        return False

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        self._began_s = self._began_s or loop.time()
        while self._next < len(self._frames):
            await asyncio.sleep(max(0.0, self._began_s + (self._next + 1) * FRAME_S - loop.time()))
            while self._next - len(self.spoken.frames) > IN_FLIGHT_FRAMES:  # noqa: ASYNC110 (one caller)
                await asyncio.sleep(FRAME_S / 8)
            data = np.asarray(self._frames[self._next], "<f4").tobytes()
            self._next += 1
            await socket.send_bytes(moshi.encode(moshi.Audio(data)))

    def _heed(self, data: bytes) -> bool:
        """A message; whether the last frame is answered."""
        spoken, now_s = self.spoken, time.monotonic()
        thread = spoken.thread
        resumptions, moves = thread.resumptions, thread.moves
        inner = thread.heed(data)
        if thread.moves > moves:
            spoken.moved_s = now_s
        if thread.resumptions > resumptions:
            self._next, spoken.missed = thread.input_frame, thread.missed_frames
            if spoken.moved_s is not None:
                spoken.resumed_ms = 1000 * (now_s - spoken.moved_s)
        message = None if inner is None else moshi.decode(inner)
        if isinstance(message, moshi.Text):
            spoken.text.append(message.text)
        elif isinstance(message, moshi.StampedAudio):
            if message.frame not in spoken.frames:
                spoken.frames.append(message.frame)
                spoken.heard_s.append(now_s)
            if message.frame >= self.alarm_frame >= 0:
                self.reached.set()
            return message.frame >= self._last
        return False


@contextlib.asynccontextmanager
async def rolling(model: str, folder: Path) -> AsyncIterator[Roll]:
    """Three workers, a name server and HAProxy."""
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
            "AGENT_PORT": str(roll.agent_port),
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
            await until_admitted(http, f"http://127.0.0.1:{roll.balancer_port}/readyz", balancer)
            yield roll
        finally:
            for process in (*roll.workers.values(), *([balancer] if balancer else [])):
                process.kill()


async def until_admitted(http: aiohttp.ClientSession, url: str, balancer: Process) -> None:
    """Wait until the load balancer has found a worker."""
    await answers(http, url, balancer)


async def one_call(roll: Roll, number: int, delay_frames: int, *, is_moved: bool) -> Spoken:
    """Speak once; where ``is_moved`` the worker that has the call is drained meanwhile."""
    await roll.are_two_there()
    chance = np.random.default_rng(number)
    pcm = fit_clip(load_question(), SPOKEN_FRAMES * FRAME_S)
    url = f"ws://127.0.0.1:{roll.balancer_port}/api/chat?{QUERY}"
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


async def measure(model: str, calls: int, folder: Path) -> tuple[Spoken, list[Spoken]]:
    """A call that stays, and those that go."""
    delay_frames = {"tiny": 1}.get(model, 0)
    async with rolling(model, folder) as roll:
        whole = await one_call(roll, 0, delay_frames, is_moved=False)
        found: list[Spoken] = []
        for number in range(calls):
            found.append(await one_call(roll, number, delay_frames, is_moved=True))
            if (number + 1) % 20 == 0:
                print(report(model, whole, found), file=sys.stderr, flush=True)
        await asyncio.gather(*roll.coming_back.values())
    return whole, found


def shown(name: str, values: list[float]) -> str:
    """One line of a distribution."""
    found = Distribution.of(values)
    if found is None:
        return f"{name:<24} none"
    return f"{name:<24} p50 {found.p50:.0f} ms, p99 {found.p99:.0f} ms, most {found.max:.0f} ms"


def report(model: str, whole: Spoken, found: list[Spoken]) -> str:
    """What came of the calls so far."""
    calls = len(found)
    alive = sum(bool(it.thread.moves and it.thread.resumptions and not it.thread.reason) for it in found)
    same = sum("".join(it.text) == "".join(whole.text) for it in found)
    lost = sum(len(set(whole.frames) - set(it.frames)) for it in found)
    lines = (
        f"{model}: {calls} calls, each handed over while it spoke; load {os.getloadavg()[0]:.1f}",
        f"{'alive':<24} {alive} of {calls}",
        f"{'words as unmoved':<24} {same} of {calls}, {len(''.join(whole.text))} bytes each",
        f"{'frames not answered':<24} {lost} of {calls * len(whole.frames)}",
        shown("told to resumed", [it.resumed_ms for it in found if it.resumed_ms is not None]),
        shown("gap in the audio", [it.gap_ms for it in found]),
        shown("the same, unmoved", [whole.gap_ms]),
    )
    return "\n".join(lines)


def main() -> None:
    """Print what came of it."""
    model, calls = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
    with tempfile.TemporaryDirectory(prefix="hand-over-") as folder:
        whole, found = asyncio.run(measure(model, calls, Path(folder)))
    print(report(model, whole, found))


if __name__ == "__main__":
    main()
