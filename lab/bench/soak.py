"""Observes a server over a long time; records memory, files, threads, rows, latency and losses once a
second."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import psutil

from antiphon_client.plot import load_matplotlib
from lab.bench.harness import Values, tell

BLOCK_S: Final = 10.0
MIB: Final = 2**20
TELL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the server in one second. Memory is the memory that its processes share with no other
    process, in MiB; ``rows`` is the number of rows in use."""

    at_s: float
    memory_mib: float
    open_files: int
    threads: int
    p99_ms: float
    lost: int
    scrape_ms: float
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of memory in MiB an hour, and the half width of its 95 % confidence interval."""

    mib_per_hour: float
    half_width: float


@dataclass
class Watch:
    """Samples of the server at ``url``. ``calls`` is the p99 of recent latencies in ms and the frames lost;
    ``progress`` is printed every half minute."""

    url: str
    processes: Callable[[], Sequence[psutil.Process]]
    calls: Callable[[], tuple[float, int]]
    progress: Callable[[], str]
    begun_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    async def run(self, http: aiohttp.ClientSession, until_s: float) -> None:
        """Take a sample each second until ``until_s``."""
        next_s = shown_s = time.monotonic()
        while time.monotonic() < until_s:
            self.samples.append(await self.sample(http))
            if time.monotonic() - shown_s > TELL_S:
                shown_s = time.monotonic()
                tell(f"{self.samples[-1]}, {self.progress()}")
            next_s += 1.0
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    async def sample(self, http: aiohttp.ClientSession) -> Sample:
        """Return a sample of the current state, including a scrape of the metrics."""
        asked_s = time.monotonic()
        async with http.get(f"{self.url}/metrics") as response:
            metrics = await response.text()
        scrape_ms = 1000 * (time.monotonic() - asked_s)
        rows = sum(float(it) for it in re.findall(r"^antiphon_active_sessions\S* (\S+)", metrics, re.M))
        memory, files, threads = 0, 0, 0
        for process in self.processes():
            try:
                info = process.memory_info()
                memory += info.rss - info.shared
                files += process.num_fds()
                threads += process.num_threads()
            except psutil.NoSuchProcess:
                continue
        at_s, calls = asked_s - self.begun_s, self.calls()
        return Sample(at_s, memory / MIB, files, threads, *calls, scrape_ms, round(rows))


def slope_of(samples: Sequence[Sample], begin: float = 0.25, end: float = 1.0) -> Slope:
    """Return the slope of memory between two fractions of the run, by default after the first quarter."""
    first_s, last_s = begin * samples[-1].at_s, end * samples[-1].at_s
    blocks: dict[int, list[float]] = {}
    for each in samples:
        if first_s <= each.at_s <= last_s:
            blocks.setdefault(int(each.at_s // BLOCK_S), []).append(each.memory_mib)
    at_h = [(number + 0.5) * BLOCK_S / 3600 for number in blocks]
    return Slope(*line_through(at_h, [float(np.mean(block)) for block in blocks.values()]))


def line_through(at: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the least-squares slope, and the half width of its 95 % confidence interval; NaN for fewer
    than three values."""
    x, y = np.array(at, np.float64), np.array(values, np.float64)
    if x.size < 3:
        return math.nan, math.nan
    slope, start = np.polyfit(x, y, 1)
    residual = y - (slope * x + start)
    error = math.sqrt(float(residual @ residual) / (x.size - 2) / float(((x - x.mean()) ** 2).sum()))
    return float(slope), 1.96 * error


def plot(samples: Sequence[Sample], slope: Slope, path: Path) -> None:
    """Plot five quantities of the samples over time, and write the figure to ``path``."""
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


def write(samples: Sequence[Sample], out: Path, name: str, values: Values) -> None:
    """Print the results for memory, files, threads and rows, and write them with ``values`` as JSON and as a
    plot."""
    slope = slope_of(samples)
    quarters = [slope_of(samples, part / 4, (part + 1) / 4) for part in range(4)]
    out.mkdir(parents=True, exist_ok=True)
    slopes = {"slope": asdict(slope), "quarters": list(map(asdict, quarters))}
    kept = {**values, **slopes, "samples": [asdict(each) for each in samples]}
    (out / f"{name}.json").write_text(json.dumps(kept), encoding="utf-8")
    plot(samples, slope, out / f"{name}.png")
    print(f"memory {slope.mib_per_hour:+.2f} ± {slope.half_width:.2f} MiB an hour")
    print("by quarter " + ", ".join(f"{it.mib_per_hour:+.1f} ± {it.half_width:.1f}" for it in quarters))
    for key in ("memory_mib", "open_files", "threads", "rows"):
        found = [getattr(each, key) for each in samples]
        quarter = found[len(found) // 4]
        print(f"{key}: {found[0]:.1f} at first, {quarter:.1f} after a quarter, {found[-1]:.1f} at the end")
