"""Compares the calls that ``--slots auto`` promises with the calls that a machine holds.

    python -m lab.bench.slots_held                     eight configurations, about 20 minutes
    python -m lab.bench.slots_held --only 2            those whose name contains "2"
    python -m lab.bench.slots_held --quick             seconds, to see that it works

Each configuration gets a server with ``--slots auto``, and that many calls of each of its models at once, in
Opus where the model replies with audio, from generators on the same machine. The promise holds if none of
them misses the definition of capacity. Another server gets a quarter more calls, and one twice as many, until
they do not hold: the promise should be at least 0.8 of the most calls.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from antiphon_client.load import RAMP_S_PER_SESSION
from lab.bench.capacity_search import faults
from lab.bench.harness import (
    Results,
    Values,
    machine_line,
    probe,
    running_server,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.neighbours import MOST_CORES
from lab.bench.pages import write_page
from tests.support.launch import ANTIPHON

OPUS: Final = ("--format", "opus", "--message-ms", "20")
PROTOCOLS: Final = {"codec": OPUS, "duplex": OPUS, "stt": ("--protocol", "stt", "--message-ms", "80")}
MORE: Final = (1.25, 2.0)
"""Multiples of the promise that are tried: the first is to be missed."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to serve: the threads of a tick, the front ends, and the models."""

    threads: int
    front_ends: int
    models: tuple[str, ...]

    def __str__(self) -> str:
        """Its name."""
        return f"{'+'.join(self.models)} {self.threads} threads {self.front_ends} front ends"

    def command(self, program: Sequence[str], port: int, slots: str) -> list[str]:
        """Return the command ``antiphon serve`` on a port."""
        models = itertools.chain.from_iterable(("--model", model) for model in self.models)
        threads = ("--backend-option", f"threads={self.threads}")
        more = ("--port", str(port), "--front-ends", str(self.front_ends), "--slots", slots)
        return [*program, "serve", "--log-level", "warning", *models, *threads, *more]


CONFIGURATIONS: Final = tuple(
    Configuration(threads, front_ends, models)
    for models in (("tiny",), ("echo", "tiny", "tiny-stt"))
    for threads in (1, 2)
    for front_ends in (0, 2)
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON and a table."""
    options = _parse(argv)
    chosen = [it for it in CONFIGURATIONS if options.only in str(it)]
    settings = {"seconds": options.seconds, "runs": options.runs}
    results = Results(
        options.out / "slots-held.json",
        settings=settings,
        resume=options.resume,
        most_others_cores=MOST_CORES,
    )
    with terminable("lab.bench.slots_held"):
        warn_if_busy()
        for it in chosen[:1] if options.quick else chosen:
            measure(results, it, shlex.split(options.antiphon), options.seconds, options.runs)
    print(write_page(options.out / "slots-held.md", render(results.values)), end="")
    return 0


def measure(results: Results, it: Configuration, program: Sequence[str], seconds: float, runs: int) -> None:
    """Measure the calls that ``auto`` promises, whether they hold, and multiples of them until they do not
    hold."""
    for number in range(runs):
        found = results.attempt(f"{it}/auto/{number}", partial(run, it, program, seconds))
        tell(f"{it}: {line(found)}")
    promised = found["promised"]
    for more in MORE:
        wanted = {name: round(more * slots) for name, slots in promised.items()}
        found = results.attempt(f"{it}/{more}", partial(run, it, program, seconds, wanted))
        tell(f"{it}, {more} times: {line(found)}")
        if found["faults"]:
            return


def run(it: Configuration, program: Sequence[str], seconds: float, wanted: Values | None = None) -> Values:
    """Run calls of all models at once: ``wanted``, or as many as a server with ``auto`` promises."""
    slots = "auto" if wanted is None else str(max(wanted.values()))
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(lambda port: it.command(program, port, slots), Path(scratch) / "server.log") as server,
        ThreadPoolExecutor(len(it.models)) as pool,
    ):
        with urllib.request.urlopen(f"{server.url}/api/models") as answer:
            models = json.load(answer)["models"]
        promised = {model["name"]: model["slots"]["total"] for model in models}
        kinds = {model["name"]: model["kind"] for model in models}
        calls = wanted or promised
        length_s = seconds + sum(calls.values()) * RAMP_S_PER_SESSION
        begun_s = server.cpu_s()
        reports = list(
            pool.map(
                lambda name: probe(
                    server.url,
                    *("--model", name, "--sessions", str(calls[name]), "--seconds", f"{length_s:g}"),
                    *PROTOCOLS[kinds[name]],
                )["report"],
                calls,
            )
        )
        cpu_s = server.cpu_s() - begun_s
    found = {
        name: faults(report, full_load_s=seconds / 2, message_ms=80)
        for name, report in zip(calls, reports, strict=True)
    }
    return {
        "promised": promised,
        "calls": calls,
        "p99_ms": {
            name: (it["times"]["latency"] or {}).get("p99") for name, it in zip(calls, reports, strict=True)
        },
        "late": sum(report["counts"]["late"] for report in reports),
        "cores": cpu_s / length_s,
        "faults": [f"{name}: {fault}" for name, all_of_it in found.items() for fault in all_of_it],
    }


def line(found: Values) -> str:
    """Return one run as text."""
    calls = ", ".join(f"{name} {count}" for name, count in found["calls"].items())
    p99 = max(value or 0.0 for value in found["p99_ms"].values())
    return f"{calls}: p99 {p99:.0f} ms, {found['late']} late; {'; '.join(found['faults']) or 'held'}"


def render(values: Values) -> str:
    """Return the results in Markdown."""
    lines = [
        "# Promised and held calls",
        "",
        f"`{values['command']}`, {values['started_at']}, on {machine_line(values)}.",
        "",
        "| configuration | promised | held | p99, ms | of 1.25 times | of 2 times |",
        "|---|---|---|---|---|---|",
    ]
    attempts = values["attempts"]
    for it in CONFIGURATIONS:
        tries = [found for key, found in attempts.items() if key.startswith(f"{it}/auto/")]
        if tries:
            held = sum(not found["faults"] for found in tries)
            p99 = ", ".join(f"{max(v or 0.0 for v in found['p99_ms'].values()):.0f}" for found in tries)
            more = [_verdict(attempts.get(f"{it}/{factor}")) for factor in MORE]
            calls = "; ".join(dict.fromkeys(", ".join(map(str, f["promised"].values())) for f in tries))
            lines.append(f"| {it} | {calls} | {held} of {len(tries)} | {p99} | {' | '.join(more)} |")
    return "\n".join(lines) + "\n"


def _verdict(found: Values | None) -> str:
    if found is None:
        return ""
    return "missed" if found["faults"] else "held"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lab.bench.slots_held", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument(
        "--antiphon", default=shlex.join(ANTIPHON), metavar="COMMAND", help="the server's program"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="configurations with this in their name")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run [%(default)g]")
    parser.add_argument("--runs", type=int, default=1, help="of the promise [%(default)s]")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("--quick", action="store_true", help="one configuration, for seconds")
    options = parser.parse_args(argv)
    if options.quick:
        options.seconds = 2.0
    return options


if __name__ == "__main__":
    sys.exit(main())
