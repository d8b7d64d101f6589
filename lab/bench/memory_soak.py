"""Checks that the server's memory stays constant while callers come and go for ten minutes.

Its size is sampled once a second.

    python -m lab.bench.memory_soak                     16 callers, ten minutes, the default model
    python -m lab.bench.memory_soak --quick             seconds, to see that it works
    python -m lab.bench.memory_soak -- --backend null   options after -- go to `antiphon serve`

Each of the callers speaks for a random time, disconnects (one in five without a close) and calls again at
once, in alternating formats. Ctrl-C ends the run early and still writes the measurements.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
import numpy as np

from antiphon.protocol.chat import AudioFormat
from antiphon_client.address import ServerAddress
from antiphon_client.clip import EncodedClip, encode_clip, fit_clip, load_clip
from antiphon_client.encoding import FRAME_SAMPLES
from antiphon_client.facts import ask_facts
from antiphon_client.interrupts import on_interrupt
from antiphon_client.load import Stop
from antiphon_client.measures import Distribution
from antiphon_client.plot import load_matplotlib
from antiphon_client.report import Counts, latencies_ms, report_session
from antiphon_client.session import ProbeSession, SessionPlan
from lab.bench.harness import (
    BenchError,
    Results,
    RunningServer,
    Values,
    machine_line,
    running_server,
    serve_command,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.pages import write_page

FORMATS = (AudioFormat.OPUS, AudioFormat.PCM_S16LE, AudioFormat.OPUS, AudioFormat.OGG)
VANISHING_SHARE = 0.2
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: its length, the number of callers, the lengths of their calls, and the server's
    options."""

    seconds: float = 600.0
    callers: int = 16
    shortest_s: float = 5.0
    longest_s: float = 40.0
    warm_up_s: float = 60.0
    sample_s: float = 1.0
    serve: tuple[str, ...] = ()


QUICK = Settings(seconds=4.0, callers=3, shortest_s=0.4, longest_s=1.2, warm_up_s=1.0, sample_s=0.1)


@dataclass(slots=True)
class Tally:
    """The callers' results, and the server's size over time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)
    latency_ms: list[float] = field(default_factory=list)
    vanished: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)


class Soak:
    """Callers who call repeatedly until they are stopped or the time is over."""

    def __init__(self, settings: Settings, url: str, stop: Stop) -> None:
        """Prepare the callers' speech, without calling."""
        self._settings = settings
        self._address = ServerAddress.parse(url)
        self._stop = stop
        self._begun_s = time.monotonic()
        speech = fit_clip(load_clip(None), settings.longest_s)
        self._delay_frames = 0
        self._clips = {form: encode_clip(speech, form) for form in FORMATS}
        self.tally = Tally()

    @property
    def is_over(self) -> bool:
        """Whether the callers should stop."""
        return self._stop.is_set or self._elapsed_s() > self._settings.seconds

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    async def learn(self) -> None:
        """Request the facts about the server's model that callers need."""
        facts = await ask_facts(self._address)
        self._delay_frames = facts.delay_frames or 0

    async def run(self, server: RunningServer) -> None:
        """Run all calls, and sample the server's memory."""
        await self.learn()
        self._begun_s = time.monotonic()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            callers = [asyncio.ensure_future(self.call_again(http, k)) for k in range(self._settings.callers)]
            reported_s = 0.0
            while not self.is_over:
                await asyncio.sleep(self._settings.sample_s)
                self.tally.samples.append((self._elapsed_s(), server.rss_bytes()))
                if self._elapsed_s() - reported_s > 30:
                    reported_s = self._elapsed_s()
                    size_mib, calls = server.rss_bytes() / MIB, self.tally.outcomes.total()
                    tell(f"{reported_s:5.0f} s: {size_mib:.1f} MiB, {calls} calls")
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    async def call_again(self, http: aiohttp.ClientSession, caller: int) -> None:
        """Run one caller's calls, one after the other."""
        chance = random.Random(caller)
        number = caller
        while True:
            form = FORMATS[number % len(FORMATS)]
            number += 1
            seconds = chance.uniform(self._settings.shortest_s, self._settings.longest_s)
            plan = SessionPlan(
                session=number,
                url=self._address.chat({"ext": "1", "format": form.value, "wait": "10"}),
                connect_after_s=0.0,
                phase_s=chance.uniform(0, 0.08),
                delay_frames=self._delay_frames,
            )
            clip = shortened(self._clips[form], seconds)
            session = ProbeSession(plan, clip, start_s=time.monotonic(), clock=time.monotonic)
            vanishes = chance.random() < VANISHING_SHARE
            await self.hold(session, http, vanish_after_s=seconds / 2 if vanishes else None)

    async def hold(
        self, session: ProbeSession, http: aiohttp.ClientSession, *, vanish_after_s: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        vanishing = (
            None if vanish_after_s is None else loop.call_later(vanish_after_s, session.cut_connection)
        )
        try:
            result = await session.run(http)
        finally:
            if vanishing is not None:
                vanishing.cancel()
        if session.has_vanished:
            self.tally.vanished += 1
            return
        report = report_session(result.record)
        self.tally.outcomes[report.outcome.value] += 1
        self.tally.counts = Counts.total([self.tally.counts, report.counts])
        self.tally.latency_ms += latencies_ms(result.record).tolist()


def shortened(clip: EncodedClip, seconds: float) -> EncodedClip:
    """Return the start of a clip, in whole frames."""
    frames = max(1, min(clip.frames, round(seconds * 12.5)))
    messages = clip.messages[: frames * FRAME_SAMPLES // clip.message_samples]
    return EncodedClip(clip.format, messages, clip.message_samples, frames)


def summarise(samples: Sequence[tuple[float, int]], *, warm_up_s: float) -> Values:
    """Summarise memory after the warm-up: medians of the first and last tenth, least-squares slope, and
    maximum.

    ``samples`` are (seconds, bytes). In a run that was cut short, at most a quarter is warm-up.

    Raises:
        BenchError: too few samples after the warm-up.
    """
    warm_up_s = min(warm_up_s, samples[-1][0] / 4) if samples else 0.0
    after = [(at_s, size) for at_s, size in samples if at_s >= warm_up_s]
    if len(after) < 10:
        raise BenchError(f"{len(after)} samples after {warm_up_s:g} s of warm-up, at least 10 are needed")
    at_s, size_mib = np.array([at for at, _ in after]), np.array([size / MIB for _, size in after])
    tenth = max(1, len(after) // 10)
    slope_mib_s = float(np.polyfit(at_s, size_mib, 1)[0])
    return {
        "first_mib": round(float(np.median(size_mib[:tenth])), 2),
        "last_mib": round(float(np.median(size_mib[-tenth:])), 2),
        "max_mib": round(float(size_mib.max()), 2),
        "slope_mib_per_minute": round(slope_mib_s * 60, 4),
        "seconds": round(float(at_s[-1] - at_s[0]), 1),
        "warm_up_s": round(warm_up_s, 1),
    }


def render(values: Values) -> str:
    """Return the report in Markdown."""
    memory, calls, settings = values["memory"], values["calls"], values["settings"]
    latency = calls["latency_ms"]
    p99 = f"{latency['p99']:.1f} ms" if latency else "not measured"
    return (
        "# Memory over a long run of comings and goings\n\n"
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}.\n\n"
        f"{settings['callers']} callers at once for {values['samples'][-1][0]:.0f} s: "
        f"{calls['answered']} calls that ended normally, {calls['vanished']} cut off without a goodbye, "
        f"{calls['rejected']} rejected, {calls['failed']} failed; {calls['lost']} frames lost, "
        f"p99 frame latency {p99}.\n\n"
        f"Resident memory of the server after {memory['warm_up_s']:g} s: {memory['first_mib']:.1f} MiB "
        f"at first, {memory['last_mib']:.1f} MiB at last, {memory['max_mib']:.1f} MiB at most, slope "
        f"{memory['slope_mib_per_minute']:+.3f} MiB a minute.\n\n"
        "![resident memory over time](memory-soak.png)\n"
    )


def plot(values: Values, path: Path) -> None:
    """Plot resident memory over time, and write the figure to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    at_s, size_bytes = zip(*values["samples"], strict=True)
    axes.plot(np.array(at_s) / 60, np.array(size_bytes) / MIB)
    top_mib = 1.2 * max(size_bytes) / MIB
    axes.set(xlabel="minutes", ylabel="resident memory of the server [MiB]", ylim=(0, top_mib))
    axes.set_title(
        f"{values['settings']['callers']} callers coming and going: "
        f"{values['memory']['slope_mib_per_minute']:+.3f} MiB a minute",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak, and write JSON, figure and text."""
    options = _parse(argv)
    settings: Settings = options.settings
    results = Results(options.out / "memory-soak.json", settings=asdict(settings), resume=False)
    warn_if_busy()
    stop = Stop()
    command = serve_command("--slots", str(settings.callers), *settings.serve)
    with terminable("lab.bench.memory_soak"), tempfile.TemporaryDirectory() as scratch:
        with (
            running_server(command, Path(scratch) / "server.log") as server,
            on_interrupt(stop.set),
        ):
            soak = Soak(settings, server.url, stop)
            asyncio.run(soak.run(server))
        results.values["memory"] = summarise(soak.tally.samples, warm_up_s=settings.warm_up_s)
    results.values["calls"] = _calls(soak.tally)
    results.values["samples"] = soak.tally.samples
    results.save()
    write_page(options.out / "memory-soak.md", render(results.values))
    plot(results.values, options.out / "memory-soak.png")
    tell(f"{results.values['memory']}; written: {options.out}/memory-soak.json, .md and .png")
    return 0


def _calls(tally: Tally) -> Values:
    latency = Distribution.of(tally.latency_ms)
    return {
        **{outcome: tally.outcomes[outcome] for outcome in ("answered", "rejected", "failed")},
        "vanished": tally.vanished,
        "lost": tally.counts.lost,
        "late": tally.counts.late,
        "latency_ms": asdict(latency) if latency else None,
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.memory_soak", description=summary)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="three callers for four seconds")
    parser.add_argument("--seconds", type=float, help=f"[{Settings().seconds:g}]")
    parser.add_argument("--callers", type=int, help=f"[{Settings().callers}]")
    parser.add_argument("serve", nargs="*", metavar="-- OPTION", help="options of `antiphon serve`")
    options = parser.parse_args(argv)
    base = QUICK if options.quick else Settings()
    options.settings = Settings(
        seconds=options.seconds or base.seconds,
        callers=options.callers or base.callers,
        shortest_s=base.shortest_s,
        longest_s=base.longest_s,
        warm_up_s=base.warm_up_s,
        sample_s=base.sample_s,
        serve=tuple(options.serve),
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
