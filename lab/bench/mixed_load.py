"""Two models behind the load balancer, callers coming and going, and what happens to workers meanwhile.

The stack of compose.yaml on loopback. Callers of both models join and leave at random. A quarter of the way a
worker is drained and comes back, half way the load balancer reloads its configuration, and at three quarters
a worker is killed and started again. A few callers speak to a worker directly, beside the others: what the
balancer adds is the difference. Results: mixed-load.json, .md and .png.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import aiohttp
import psutil

from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import EncodedClip, encode_clip, fit_clip, load_clip
from antiphon_client.session import ProbeSession, SessionPlan
from lab.bench.harness import Results, tell, terminable, warn_if_busy
from lab.bench.memory_soak import shortened
from lab.bench.mixed_report import Call, Event, Sample, faults, plot, render, summarise
from lab.bench.pages import write_page
from tests.support.stack.composefile import ROOT
from tests.support.stack.stack import START_S, Stack, Worker, running_stack

TLS = ROOT / "tests" / "serve" / "tls"
MODELS = ("duplex", "echo")
SILENT_FRAMES = {"duplex": 1, "echo": 0}


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of a run; ``values`` are for the variables of compose.yaml.

    A worker that does not say within ``account_s`` how many calls it has is away.
    """

    seconds: float = 600.0
    callers: int = 8
    direct: int = 4
    workers: int = 3
    slots: int = 4
    shortest_s: float = 8.0
    longest_s: float = 60.0
    sample_s: float = 1.0
    account_s: float = 2.0
    backend: str = "auto"

    @property
    def values(self) -> dict[str, str]:
        """What stands in .env."""
        slots = str(self.slots)
        return {"ANTIPHON_BACKEND": self.backend, "DUPLEX_SLOTS": slots, "ECHO_SLOTS": slots}


QUICK = replace(
    Settings(), seconds=16.0, callers=3, direct=1, workers=2, shortest_s=2, longest_s=4, backend="null"
)


@dataclass
class Run:
    """A run under way: ``calls`` that are over, ``events`` done to the stack, ``samples`` of its state."""

    settings: Settings
    stack: Stack
    clip: EncodedClip
    http: aiohttp.ClientSession
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    begun_s: float = field(default_factory=time.monotonic)
    calls: list[Call] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lives: dict[str, list[int]] = field(default_factory=dict)

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun_s

    @property
    def is_over(self) -> bool:
        """Whether nobody should call again."""
        return self.now_s() > self.settings.seconds

    async def hold(self) -> None:
        """Everything at once, until the last caller has left."""
        # Direct callers are spread as the load balancer spreads the others, over workers none of which
        # leaves.
        steady = self.stack.of("echo")
        callers = [self._caller(number, None) for number in range(self.settings.callers)]
        direct = [self._caller(n, steady[n % len(steady)]) for n in range(self.settings.direct)]
        sampling = asyncio.create_task(self._sample())
        disturbing = asyncio.create_task(self._disturb())
        try:
            await asyncio.gather(*callers, *direct)
            await disturbing
        finally:
            sampling.cancel()
            disturbing.cancel()

    async def _caller(self, number: int, worker: Worker | None) -> None:
        """Call, leave, and call again."""
        await asyncio.sleep(self.chance.uniform(0, 2.0))
        while not self.is_over:
            model = "echo" if worker is not None else MODELS[number % len(MODELS)]
            await self._call(model, worker)
            await asyncio.sleep(self.chance.uniform(0.1, 1.0))

    async def _call(self, model: str, worker: Worker | None) -> None:
        settings, begun_s = self.settings, self.now_s()
        # The load's last calls end with the run.
        longest_s = max(settings.shortest_s, min(settings.longest_s, settings.seconds - begun_s))
        seconds = self.chance.uniform(settings.shortest_s, longest_s)
        base = worker.url if worker is not None else self.stack.url
        query = "ext=1&format=pcm_s16le" + ("" if worker is not None else f"&model={model}")
        plan = SessionPlan(
            session=len(self.calls),
            url=f"{base}/api/chat?{query}".replace("http", "ws", 1),
            connect_after_s=0.0,
            phase_s=self.chance.uniform(0, 0.08),
            delay_frames=SILENT_FRAMES[model],
        )
        session = ProbeSession(
            plan, shortened(self.clip, seconds), start_s=time.monotonic(), clock=time.monotonic
        )
        result = await session.run(self.http)
        self.calls.append(Call(model, worker is not None, begun_s, self.now_s(), result.record))

    async def _disturb(self) -> None:
        """A drain, a reload and a kill, each when a quarter more has passed."""
        seconds = self.settings.seconds
        first, *_, last = self.stack.of("duplex")
        await self._at(seconds / 4, "drain", first)
        first.signal(signal.SIGTERM)
        assert first.process is not None
        await first.process.ended(self.settings.longest_s + START_S)
        first.start()
        await self._at(seconds / 2, "reload", None)
        await self.stack.balancer.reload()
        await self._at(3 * seconds / 4, "kill", last)
        last.kill()
        await asyncio.sleep(1.0)
        last.start()

    async def _at(self, at_s: float, what: str, worker: Worker | None) -> None:
        await asyncio.sleep(max(0.0, at_s - self.now_s()))
        asked = self.stack.workers if worker is None else [worker]
        used = sum([await self._used(one) or 0 for one in asked])
        self.events.append(Event(what, self.now_s(), worker.host if worker else "balancer", used))
        tell(f"{self.now_s():6.1f} s: {what} of {self.events[-1].where}, {used} calls there")

    async def _used(self, worker: Worker) -> int | None:
        """The calls at a worker, by its own account; None while it is away."""
        try:
            limit = aiohttp.ClientTimeout(total=self.settings.account_s)
            async with self.http.get(f"{worker.url}/api/build_info", timeout=limit) as response:
                used: int = (await response.json())["slots"]["used"]
                return used
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    async def _sample(self) -> None:
        while True:
            used = {worker.host: await self._used(worker) for worker in self.stack.workers}
            places = {worker.host: worker.process for worker in self.stack.workers}
            memory = {
                self._life(host, process.pid): _resident_bytes(process.pid)
                for host, process in (*places.items(), ("balancer", self.stack.balancer.process))
                if process is not None and psutil.pid_exists(process.pid)
            }
            self.samples.append(Sample(self.now_s(), used, memory))
            await asyncio.sleep(self.settings.sample_s)

    def _life(self, host: str, pid: int) -> str:
        """The name of a process: its host's, with its place in line where it followed another there."""
        lives = self.lives.setdefault(host, [])
        if pid not in lives:
            lives.append(pid)
        place = lives.index(pid)
        return host if place == 0 else f"{host}, {place + 1}"


def _resident_bytes(pid: int) -> int:
    """Of a process and what it has forked; 0 when it is gone."""
    try:
        process = psutil.Process(pid)
        return sum(it.memory_info().rss for it in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


async def run(settings: Settings, folder: Path) -> Run:
    """Start the stack, hold the load, and return what there is to tell."""
    certificate = folder / "tls.pem"
    certificate.write_text((TLS / "test-cert.pem").read_text() + (TLS / "test-key.pem").read_text())
    clip = encode_clip(fit_clip(load_clip(None), settings.longest_s), AudioFormat.PCM_S16LE)
    counts = {"duplex": settings.workers, "echo": settings.workers}
    async with (
        running_stack(folder, counts, settings.values, certificate) as stack,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        for model in MODELS:
            await stack.sees(model, {worker.host: settings.slots for worker in stack.of(model)})
        load = Run(settings, stack, clip, http)
        await load.hold()
        return load


def main(argv: Sequence[str] | None = None) -> int:
    """Run, then write JSON, figure and text; 1 when a call suffered that should not have."""
    options = _parse(argv)
    results = Results(options.out / "mixed-load.json", settings=asdict(options.settings), resume=False)
    warn_if_busy()
    with terminable("lab.bench.mixed_load"), tempfile.TemporaryDirectory() as scratch:
        load = asyncio.run(run(options.settings, Path(scratch)))
    results.values |= summarise(load.calls, load.events, load.samples, seconds=options.settings.seconds)
    results.save()
    write_page(options.out / "mixed-load.md", render(results.values))
    plot(results.values, options.out / "mixed-load.png")
    tell(f"{results.values['frames']}, {results.values['balancer']}; written: {options.out}/mixed-load.*")
    wrong = faults(results.values)
    for words in wrong:
        tell(words)
    return 1 if wrong else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.mixed_load", description=summary)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="three callers for sixteen seconds, no model")
    parser.add_argument("--seconds", type=float, help=f"[{Settings().seconds:g}]")
    parser.add_argument(
        "--callers", type=int, help=f"through the load balancer, at once [{Settings().callers}]"
    )
    parser.add_argument("--workers", type=int, help=f"of each model [{Settings().workers}]")
    parser.add_argument("--backend", help=f"of the workers; null is none [{Settings().backend}]")
    options = parser.parse_args(argv)
    given = {
        name: getattr(options, name)
        for name in ("seconds", "callers", "workers", "backend")
        if getattr(options, name) is not None
    }
    options.settings = replace(QUICK if options.quick else Settings(), **given)
    return options


if __name__ == "__main__":
    sys.exit(main())
