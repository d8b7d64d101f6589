"""Comings, goings, cuts and hostile neighbours at 80 % of the rows: does anything grow, is anything lost?

    python -m lab.bench.resilience_soak [SECONDS] [--slots N] [--out FOLDER]

Callers speak in real time for 5 to 40 s and call again at once; one in three is cut with RST and goes on;
three connections send nonsense all the time, and `/metrics` is read each second. Each second private memory,
open files and threads of all processes are noted, the p99 of the last ten seconds' latencies, and the frames
lost so far: resilience-soak.json and .png. The slope of memory is that of least squares over means of ten
seconds after the first quarter, with its interval of 95 %; that of each quarter is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import psutil

from antiphon_client.plot import load_matplotlib
from lab.bench.fault_scene import Service
from lab.bench.fault_talker import FRAME_S, Fate, Talker
from lab.bench.harness import tell
from lab.bench.hostile_messages import Raid

LOAD: Final = 0.8
SHORTEST_S, LONGEST_S = 5.0, 40.0
CUT_SHARE: Final = 1 / 3
RAIDERS: Final = 3
RAID_PAUSE_S: Final = 0.2
WINDOW_S: Final = 10.0
BLOCK_S: Final = 10.0
MIB: Final = 2**20
FOREVER: Final = 10**12
TELL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one second. Memory is what its processes share with none, in MiB."""

    at_s: float
    memory_mib: float
    open_files: int
    threads: int
    p99_ms: float
    lost: int
    scrape_ms: float


@dataclass(frozen=True, slots=True)
class Slope:
    """MiB an hour, and the half width of its interval of 95 %."""

    mib_per_hour: float
    half_width: float


@dataclass
class Tally:
    """What has come of the calls so far."""

    fates: list[Fate] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now_s: float, latency_ms: float) -> None:
        """A reply came."""
        self.recent.append((now_s, latency_ms))

    def p99_ms(self) -> float:
        """Of the last seconds."""
        oldest_s = time.monotonic() - WINDOW_S
        while self.recent and self.recent[0][0] < oldest_s:
            self.recent.popleft()
        latencies = [latency_ms for _, latency_ms in self.recent]
        return float(np.percentile(latencies, 99)) if latencies else 0.0


async def call_again(
    service: Service, http: aiohttp.ClientSession, tally: Tally, seed: int, until_s: float
) -> None:
    """One caller's calls, one after the other."""
    chance = random.Random(seed)
    while time.monotonic() < until_s:
        left_s = max(1.0, until_s - time.monotonic())
        seconds = min(chance.uniform(SHORTEST_S, LONGEST_S), left_s)
        talker = Talker(http, service.url, seed, round(seconds / FRAME_S), on_reply=tally.note)
        running = asyncio.ensure_future(talker.run())
        if chance.random() < CUT_SHARE:
            await asyncio.wait({running}, timeout=seconds * chance.uniform(0.1, 0.9))
            talker.reset()
        tally.fates.append(await running)


async def sample(service: Service, http: aiohttp.ClientSession, tally: Tally, begun_s: float) -> Sample:
    """What there is to see now, a scrape of the metrics included."""
    asked_s = time.monotonic()
    async with http.get(f"{service.url}/metrics") as response:
        await response.read()
    scrape_ms = 1000 * (time.monotonic() - asked_s)
    memory, files, threads = 0, 0, 0
    for process in service.processes():
        try:
            info = process.memory_info()
            memory += info.rss - info.shared
            files += process.num_fds()
            threads += process.num_threads()
        except psutil.NoSuchProcess:
            continue
    lost = sum(fate.lost for fate in tally.fates)
    return Sample(asked_s - begun_s, memory / MIB, files, threads, tally.p99_ms(), lost, scrape_ms)


async def soak(seconds: float, slots: int) -> tuple[list[Sample], Tally, Service]:
    """The whole run."""
    options = ("--front-ends", "2", "--slots", str(slots), "--max-sessions-per-address", str(slots))
    service, tally, samples = Service(*options, environment={}), Tally(), list[Sample]()
    async with (
        service.running(),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http,
    ):
        begun_s = told_s = time.monotonic()
        until_s = begun_s + seconds
        callers = round(LOAD * slots) - RAIDERS
        calling = [call_again(service, http, tally, seed, until_s) for seed in range(callers)]
        running = asyncio.gather(*calling)
        raid = Raid(http, service.url, FOREVER, RAID_PAUSE_S)
        raiding = asyncio.ensure_future(raid.run(RAIDERS))
        while time.monotonic() < until_s:
            samples.append(await sample(service, http, tally, begun_s))
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                tell(f"{samples[-1]}, {len(tally.fates)} calls, {raid.sent:,} hostile messages")
            await asyncio.sleep(max(0.0, begun_s + len(samples) - time.monotonic()))
        await running
        raid.messages = 0
        raiding.cancel()
        await asyncio.gather(raiding, return_exceptions=True)
        tell(f"{raid.sent:,} hostile messages")
    return samples, tally, service


def slope_of(samples: Sequence[Sample], begin: float = 0.25, end: float = 1.0) -> Slope:
    """How memory goes on between two parts of the run, as a rule after the first quarter."""
    first_s, last_s = begin * samples[-1].at_s, end * samples[-1].at_s
    blocks: dict[int, list[float]] = {}
    for each in samples:
        if first_s <= each.at_s <= last_s:
            blocks.setdefault(int(each.at_s // BLOCK_S), []).append(each.memory_mib)
    at_h = [(number + 0.5) * BLOCK_S / 3600 for number in blocks]
    return Slope(*line_through(at_h, [float(np.mean(block)) for block in blocks.values()]))


def line_through(at: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The slope of least squares, and the half width of its interval of 95 %; NaN below three values."""
    x, y = np.array(at, np.float64), np.array(values, np.float64)
    if x.size < 3:
        return math.nan, math.nan
    slope, start = np.polyfit(x, y, 1)
    residual = y - (slope * x + start)
    error = math.sqrt(float(residual @ residual) / (x.size - 2) / float(((x - x.mean()) ** 2).sum()))
    return float(slope), 1.96 * error


def plot(samples: Sequence[Sample], slope: Slope, path: Path) -> None:
    """Five quantities over time."""
    figure = load_matplotlib().Figure(figsize=(9, 10), layout="constrained")
    panels = (
        ("memory_mib", "private memory [MiB]"),
        ("open_files", "open files"),
        ("threads", "threads"),
        ("p99_ms", "p99 latency, 10 s [ms]"),
        ("lost", "lost frames so far"),
    )
    minutes = [each.at_s / 60 for each in samples]
    for axes, (name, words) in zip(figure.subplots(len(panels), 1, sharex=True), panels, strict=True):
        values = [getattr(each, name) for each in samples]
        axes.plot(minutes, values, linewidth=0.9)
        axes.set(ylabel=words, ylim=(0, 1.1 * max(1, *values)))
        axes.grid(alpha=0.3)
    axes.set(xlabel="minutes")
    figure.suptitle(f"memory {slope.mib_per_hour:+.2f} ± {slope.half_width:.2f} MiB an hour", fontsize=11)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str]) -> int:
    """Run, write the plot, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=2700.0, help="[%(default)s]")
    parser.add_argument("--slots", type=int, default=20, help="rows of the server [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    args = parser.parse_args(argv)
    samples, tally, service = asyncio.run(soak(args.seconds, args.slots))
    slope = slope_of(samples)
    quarters = [slope_of(samples, part / 4, (part + 1) / 4) for part in range(4)]
    args.out.mkdir(parents=True, exist_ok=True)
    slopes = {"slope": asdict(slope), "quarters": list(map(asdict, quarters))}
    values = {**slopes, "samples": [asdict(each) for each in samples]}
    (args.out / "resilience-soak.json").write_text(json.dumps(values), encoding="utf-8")
    plot(samples, slope, args.out / "resilience-soak.png")
    fates = tally.fates
    lost, late, due, foreign = (
        sum(getattr(fate, name) for fate in fates) for name in ("lost", "late", "due", "foreign")
    )
    cuts, ended = sum(fate.resumed for fate in fates), sum(bool(fate.ended) for fate in fates)
    print(f"{len(fates)} calls, {due:,} frames: {lost} lost, {late} late, {foreign} foreign")
    print(
        f"{cuts} cuts resumed, {ended} calls ended before their time, server started {service.starts} times"
    )
    print(f"memory {slope.mib_per_hour:+.2f} ± {slope.half_width:.2f} MiB an hour")
    print("by quarter " + ", ".join(f"{it.mib_per_hour:+.1f} ± {it.half_width:.1f}" for it in quarters))
    for name in ("memory_mib", "open_files", "threads"):
        found = [getattr(each, name) for each in samples]
        print(f"{name}: {found[len(found) // 4]:.1f} after a quarter, {found[-1]:.1f} at the end")
    return int(any(fate.ended for fate in fates) or service.starts > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
