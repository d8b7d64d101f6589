"""Measures the cost and the capacity of several versions of the server under the same load, alternately.

    python -m lab.bench.by_turns old=/elsewhere/.venv/bin/antiphon new=.venv/bin/antiphon
    python -m lab.bench.by_turns old=... new=... --sessions 32 --rounds 9     latency at one load
    python -m lab.bench.by_turns old=... new=... --most --format pcm_s16le    the most sessions of each
    python -m lab.bench.by_turns old=... new=... --serve '--model tiny --slots 48' --sessions 16

Each version is the `antiphon` command of a separate environment, with its own options, if any
('new=.venv/bin/antiphon --front-ends 2'); the load is this version's probe. Every run has a fresh server.
Without `--serve` it uses the null backend with steps of 5 ms. Results go to `out/bench/by-turns.json`, and
the summary is printed.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import MESSAGE_MS
from antiphon_client.load import RAMP_S_PER_SESSION
from lab.bench.capacity_search import faults, search_largest
from lab.bench.front_ends import switches
from lab.bench.harness import Results, Values, probe, running_server, tell, terminable, warn_if_busy
from lab.bench.neighbours import MOST_CORES

FRAMES_PER_S: Final = 12.5
SERVE: Final = "--backend null --null-step-ms 5 --slots 1024"


@dataclass(frozen=True, slots=True)
class Load:
    """The load that every version serves, and the limits of the search."""

    serve: tuple[str, ...]
    audio_format: str
    sessions: int
    seconds: float
    limit: int
    may_lose: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the results of each version."""
    parser = argparse.ArgumentParser(prog="lab.bench.by_turns", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="+", metavar="NAME=COMMAND", help="the antiphon command of each")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--serve", default=SERVE, help="options of antiphon serve [%(default)s]")
    parser.add_argument("--format", default="opus", choices=list(map(str, AudioFormat)), help="[%(default)s]")
    parser.add_argument("--sessions", type=int, default=64, help="at once, or where a search starts [64]")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run [%(default)g]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each version [%(default)s]")
    parser.add_argument("--most", action="store_true", help="search for the most sessions that each holds")
    parser.add_argument("--limit", type=int, default=1024, help="where that search ends [%(default)s]")
    parser.add_argument(
        "--may-lose",
        type=int,
        default=0,
        metavar="FRAMES",
        help="of a session, as where a version does not answer the last one before a close [0]",
    )
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("--quick", action="store_true", help="one round of two sessions, for seconds")
    options = parser.parse_args(argv)
    if options.quick:
        options.sessions, options.seconds, options.rounds, options.limit = 2, 2.0, 1, 2
    commands = dict(version.split("=", 1) for version in options.versions)
    load = Load(
        tuple(shlex.split(options.serve)),
        *(options.format, options.sessions, options.seconds, options.limit, options.may_lose),
    )
    settings = {"commands": commands, "most": options.most, "rounds": options.rounds, **asdict(load)}
    results = Results(
        options.out / "by-turns.json",
        settings=settings,
        resume=options.resume,
        most_others_cores=MOST_CORES,
    )
    measure = partial(most, results) if options.most else partial(at_once, results)
    with terminable("lab.bench.by_turns"):
        warn_if_busy()
        found = {name: list[Values]() for name in commands}
        for number in range(options.rounds):
            for name, command in commands.items():
                found[name].append(measure(f"{name}/{number}", command, load))
                tell(f"{name}: {line(found[name][-1])}")
    for name, values in found.items():
        print(f"{name}: {summary(values)}")
    return 0


def at_once(results: Results, key: str, command: str, load: Load) -> Values:
    """Run one load on a fresh server, and return its cost."""
    return results.attempt(f"{key}/{load.sessions}", lambda: run(command, load, load.sessions))


def most(results: Results, key: str, command: str, load: Load) -> Values:
    """Search the largest load that a version holds, and return its result; a load that fails is run twice, in
    case the machine was disturbed."""
    held: dict[int, Values] = {}

    def holds(sessions: int) -> bool:
        for trial in range(2):
            found = results.attempt(f"{key}/{sessions}/{trial}", lambda: run(command, load, sessions))
            tell(f"{key}, {sessions} sessions: {line(found)}")
            if not found["faults"]:
                held[sessions] = found
                return True
        return False

    largest = search_largest(holds, start=load.sessions, limit=load.limit)
    return held.get(largest) or {
        "sessions": 0,
        "cpu_ms": 0.0,
        "p99_ms": None,
        "late": 0,
        "busy": 0.0,
        "faults": ["no load was held"],
    }


def run(command: str, load: Load, sessions: int) -> Values:
    """Run a load on a fresh server; returns its cost on the server and the probe, and the reason if it was
    not held."""
    seconds = load.seconds + sessions * RAMP_S_PER_SESSION
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(_serve(command, load.serve), Path(scratch) / "server.log") as server,
    ):
        begun_s, begun_switches = server.cpu_s(), switches(server)
        options = ("--sessions", str(sessions), "--seconds", f"{seconds:g}", "--format", load.audio_format)
        report = probe(server.url, *options)["report"]
        cpu_s, switched = server.cpu_s() - begun_s, switches(server) - begun_switches
    latency, generator = report["times"]["latency"], report["generator"]
    machine_s = report["duration_s"] * generator["cores"]
    message_ms = MESSAGE_MS[AudioFormat(load.audio_format)]
    found = faults(report, full_load_s=min(5.0, load.seconds / 2), message_ms=message_ms)
    if (lost := report["counts"]["lost"]) <= load.may_lose * sessions:
        found = [fault for fault in found if fault != f"{lost} frames lost"]
    return {
        "sessions": sessions,
        "cpu_ms": 1000 * cpu_s / (sessions * seconds * FRAMES_PER_S),
        "p99_ms": latency and latency["p99"],
        "late": report["counts"]["late"],
        "switches_per_s": switched / report["duration_s"],
        "busy": cpu_s / machine_s + generator["cpu_share"],
        "generator": generator,
        "lost": lost,
        "faults": found,
    }


def _serve(command: str, options: Sequence[str]) -> Callable[[int], list[str]]:
    program, *more = shlex.split(command)
    return lambda port: [program, "serve", "--port", str(port), "--log-level", "warning", *options, *more]


def line(found: Values) -> str:
    """Return the results of one run as a line of text."""
    state = "; ".join(found["faults"]) or "held"
    p99 = "unknown" if found["p99_ms"] is None else f"{found['p99_ms']:.1f} ms"
    return (
        f"{found['sessions']} sessions, {found['cpu_ms']:.3f} ms CPU a session and frame, p99 {p99}, "
        f"{found['late']} late, server and generator {found['busy']:.0%} of the machine; {state}"
    )


def summary(runs: Sequence[Values]) -> str:
    """Return the medians over the runs of one version, and the values of every run, as text."""
    p99_ms = [found["p99_ms"] for found in runs if found["p99_ms"] is not None]
    columns = (
        ("sessions", "{:g}", [found["sessions"] for found in runs]),
        ("ms CPU a session and frame", "{:.3f}", [found["cpu_ms"] for found in runs]),
        ("ms p99", "{:.1f}", p99_ms),
    )
    held = sum(not found["faults"] for found in runs)
    medians = "; ".join(
        f"{form.format(median(values))} {name} ({', '.join(map(form.format, values))})"
        for name, form, values in columns
        if values
    )
    return f"{medians}; {held} of {len(runs)} runs held"


if __name__ == "__main__":
    raise SystemExit(main())
