"""A soak test with callers, cuts and hostile clients at 80 % of the rows: checks for growth and losses.

    python -m lab.bench.resilience_soak [SECONDS] [--slots N] [--out FOLDER]

Callers speak in real time for 5 to 40 s and call again at once; one in three is cut with RST and resumes;
three connections send invalid data all the time, and `/metrics` is read each second. Each second the private
memory, open files and threads of all processes, the p99 of the last ten seconds' latencies, and the number of
lost frames are recorded in resilience-soak.json and .png. The slope of memory is by least squares over means
of ten seconds after the first quarter, with its 95 % confidence interval; that of each quarter is printed
too.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np

from lab.bench.fault_scene import Service
from lab.bench.fault_talker import FRAME_S, Fate, Talker
from lab.bench.harness import tell
from lab.bench.hostile_messages import Raid
from lab.bench.soak import Sample, Watch, write

LOAD: Final = 0.8
SHORTEST_S, LONGEST_S = 5.0, 40.0
CUT_SHARE: Final = 1 / 3
RAIDERS: Final = 3
RAID_PAUSE_S: Final = 0.2
WINDOW_S: Final = 10.0
FOREVER: Final = 10**12


@dataclass
class Tally:
    """The results of the calls so far, and the recent latencies with their times."""

    fates: list[Fate] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now_s: float, latency_ms: float) -> None:
        """Record the latency of a reply."""
        self.recent.append((now_s, latency_ms))

    def p99_ms(self) -> float:
        """Return the p99 latency of the last ten seconds."""
        oldest_s = time.monotonic() - WINDOW_S
        while self.recent and self.recent[0][0] < oldest_s:
            self.recent.popleft()
        latencies = [latency_ms for _, latency_ms in self.recent]
        return float(np.percentile(latencies, 99)) if latencies else 0.0


async def call_again(
    service: Service, http: aiohttp.ClientSession, tally: Tally, seed: int, until_s: float
) -> None:
    """Run one caller's calls, one after the other."""
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


async def soak(seconds: float, slots: int) -> tuple[list[Sample], Tally, Service]:
    """Run the soak; returns the samples, the results of the calls, and the service."""
    options = ("--front-ends", "2", "--slots", str(slots), "--max-sessions-per-address", str(slots))
    service, tally = Service(*options, environment={}), Tally()
    async with (
        service.running(),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http,
    ):
        raid = Raid(http, service.url, FOREVER, RAID_PAUSE_S)
        watch = Watch(
            service.url,
            service.processes,
            lambda: (tally.p99_ms(), sum(fate.lost for fate in tally.fates)),
            lambda: f"{len(tally.fates)} calls, {raid.sent:,} hostile messages",
        )
        until_s = watch.begun_s + seconds
        callers = round(LOAD * slots) - RAIDERS
        calling = [call_again(service, http, tally, seed, until_s) for seed in range(callers)]
        running = asyncio.gather(*calling)
        raiding = asyncio.ensure_future(raid.run(RAIDERS))
        await watch.run(http, until_s)
        await running
        raid.messages = 0
        raiding.cancel()
        await asyncio.gather(raiding, return_exceptions=True)
        tell(f"{raid.sent:,} hostile messages")
    return watch.samples, tally, service


def main(argv: Sequence[str]) -> int:
    """Run, write the plot, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=2700.0, help="[%(default)s]")
    parser.add_argument("--slots", type=int, default=20, help="rows of the server [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    args = parser.parse_args(argv)
    samples, tally, service = asyncio.run(soak(args.seconds, args.slots))
    fates = tally.fates
    lost, late, due, foreign = (
        sum(getattr(fate, name) for fate in fates) for name in ("lost", "late", "due", "foreign")
    )
    cuts, ended = sum(fate.resumed for fate in fates), sum(bool(fate.ended) for fate in fates)
    print(f"{len(fates)} calls, {due:,} frames: {lost} lost, {late} late, {foreign} foreign")
    print(
        f"{cuts} cuts resumed, {ended} calls ended before their time, server started {service.starts} times"
    )
    write(samples, args.out, "resilience-soak", {})
    return int(any(fate.ended for fate in fates) or service.starts > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
