"""Measures the effect of front ends: p99 by sessions, a burst of connections, a temporary overload, CPU time,
and larger numbers of rows.

    python -m lab.bench.front_ends                      about forty minutes on two quiet cores
    python -m lab.bench.front_ends --quick              a minute, to see that it works
    python -m lab.bench.front_ends --parts burst        one part; the others keep what an earlier run found
    python -m lab.bench.front_ends --resume             continue an interrupted run

Every run has a fresh `antiphon serve --backend null`, and its load comes from separate processes on the same
machine. Results go to `out/bench/front-ends.json`, `.md` and `.png`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from lab.bench.front_end_load import burst, overload
from lab.bench.front_end_report import plot, render
from lab.bench.front_end_rings import measure_rings
from lab.bench.harness import (
    Results,
    RunningServer,
    Values,
    cpu_s_of,
    probe,
    running_server,
    serve_command,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.neighbours import MOST_CORES
from lab.bench.pages import write_page


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings and the length of a run; a resumed run must have the same."""

    front_ends: tuple[int, ...] = (0, 1, 2)
    opus: tuple[int, ...] = (16, 32, 64, 96, 112, 128, 144, 160, 192, 224)
    pcm: tuple[int, ...] = (64, 128, 256, 320, 384, 448, 512, 640)
    sweep_s: float = 20.0
    talkers: int = 32
    burst: int = 200
    surge: int = 400
    surge_s: float = 15.0
    after_s: float = 15.0
    stt_sessions: int = 8
    stt_s: float = 20.0
    rows: int = 2000
    generators: int = 2
    rows_s: float = 20.0
    runs: int = 3


FULL: Final = Settings()
QUICK: Final = Settings(
    front_ends=(1,),
    opus=(2,),
    pcm=(2,),
    sweep_s=2.0,
    talkers=2,
    burst=8,
    surge=8,
    surge_s=1.0,
    after_s=2.0,
    stt_sessions=2,
    stt_s=2.0,
    rows=8,
    generators=2,
    rows_s=2.0,
    runs=1,
)

NULL: Final = ("--backend", "null", "--null-step-ms", "5", "--slots", "1024")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON, figure and text."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.front_ends", description="Measure the effect of front ends."
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="small loads, for seconds")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="[all]")
    options = parser.parse_args(argv)
    settings = QUICK if options.quick else FULL
    file = options.out / "front-ends.json"
    is_kept = options.resume or (set(options.parts) < set(PARTS) and file.exists())
    results = Results(file, settings=asdict(settings), resume=is_kept, most_others_cores=MOST_CORES)
    with terminable("lab.bench.front_ends"):
        warn_if_busy()
        for part in options.parts:
            PARTS[part](results, settings)
    write_page(options.out / "front-ends.md", render(results.values))
    plot(results.values, options.out / "front-ends.png")
    tell(f"written: {options.out}/front-ends.json, .md and .png")
    return 0


@contextmanager
def serving(front_ends: int, *options: str) -> Iterator[RunningServer]:
    """Run a fresh server whose limits let one address open any number of connections."""
    command = serve_command(
        "--front-ends", str(front_ends), "--tune", "max_new_connections_per_s=1000", *options
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(command, Path(scratch) / "server.log") as server,
    ):
        yield server


def roles(server: RunningServer) -> dict[str, list[psutil.Process]]:
    """Return the server's processes by role: ``engine`` and ``front end``, or one role that is both."""
    found: dict[str, list[psutil.Process]] = {}
    for process in server.process.children():
        words = " ".join(process.cmdline())
        for role, module in (("engine", "hosting.engine_process"), ("front end", "hosting.front_end")):
            if module in words:
                found.setdefault(role, []).append(process)
    return found or {"both": [server.process]}


def cpu_of(server: RunningServer) -> dict[str, float]:
    """Return the CPU seconds of the server's processes, by role."""
    return {role: sum(map(cpu_s_of, processes)) for role, processes in roles(server).items()}


def switches(server: RunningServer) -> int:
    """Return the number of context switches of all the server's processes so far."""
    counts = [it.num_ctx_switches() for it in (server.process, *server.process.children())]
    return sum(count.voluntary + count.involuntary for count in counts)


def load(server: RunningServer, sessions: int, seconds: float, *options: str) -> Values:
    """Run one load of `antiphon probe`; returns its report and the CPU time that the server's processes use
    for it."""
    begun, begun_switches = cpu_of(server), switches(server)
    values = probe(server.url, "--sessions", str(sessions), "--seconds", f"{seconds:g}", *options)
    report = values["report"]
    frames = sessions * seconds * 12.5
    cpu = {role: 1000 * (now - begun[role]) / frames for role, now in cpu_of(server).items()}
    return {
        "sessions": sessions,
        "latency_ms": report["times"]["latency"],
        "lost": report["counts"]["lost"],
        "late": report["counts"]["late"],
        "refused": report["counts"].get("rejected", 0),
        "cpu_ms": cpu,
        "switches_per_s": (switches(server) - begun_switches) / report["duration_s"],
        "generator": report["generator"],
        "load_average": os.getloadavg()[0],
    }


def sweep(results: Results, settings: Settings) -> None:
    """Measure p99 and CPU by sessions, beyond capacity; refusals are counted, and are no fault."""
    for audio_format, loads in (("opus", settings.opus), ("pcm_s16le", settings.pcm)):
        for sessions in loads:
            for front_ends in settings.front_ends:
                key = f"sweep/{audio_format}/{front_ends}/{sessions}"
                results.attempt(key, partial(_swept, settings, audio_format, sessions, front_ends))


def _swept(settings: Settings, audio_format: str, sessions: int, front_ends: int) -> Values:
    with serving(front_ends, *NULL) as server:
        found = load(server, sessions, settings.sweep_s, "--format", audio_format)
    p99 = f"{found['latency_ms']['p99']:.1f} ms" if found["latency_ms"] else "unknown"
    cpu = sum(found["cpu_ms"].values())
    tell(
        f"{audio_format} {sessions} sessions, {front_ends} front ends: p99 {p99}, {found['late']} late, "
        f"{found['refused']} refused, {cpu:.2f} ms CPU a session and frame"
    )
    return found


def bursts(results: Results, settings: Settings) -> None:
    """Measure the effect of many new connections within one second on talkers."""
    _repeat(results, settings, "burst", lambda url: burst(url, settings.talkers, settings.burst))


def overloads(results: Results, settings: Settings) -> None:
    """Measure the effect of more callers than can be served, and the time to normal latency after they have
    left."""
    _repeat(
        results,
        settings,
        "overload",
        lambda url: overload(
            url,
            settings.talkers,
            settings.surge,
            surge_s=settings.surge_s,
            after_s=settings.after_s,
        ),
    )


def _repeat(results: Results, settings: Settings, name: str, run: Callable[[str], Values]) -> None:
    for front_ends in settings.front_ends:
        for number in range(settings.runs):

            def attempt(front_ends: int = front_ends) -> Values:
                with serving(front_ends, *NULL) as server:
                    return run(server.url)

            found = results.attempt(f"{name}/{front_ends}/{number}", attempt)
            tell(f"{name}, {front_ends} front ends: {found}")


def recognisers(results: Results, settings: Settings) -> None:
    """Measure the CPU time of a front end for a session of Kyutai's STT protocol, in messages of 20 and
    80 ms.

    There are few sessions, since the built-in recogniser runs next to them, in the engine's process.
    """
    for message_ms in (20, 80):

        def attempt(message_ms: int = message_ms) -> Values:
            with serving(1, "--model", "tiny-stt", "--slots", str(settings.stt_sessions)) as server:
                return load(
                    server,
                    settings.stt_sessions,
                    settings.stt_s,
                    *("--protocol", "stt", "--message-ms", str(message_ms)),
                )

        found = results.attempt(f"stt/{message_ms}", attempt)
        tell(f"stt, messages of {message_ms} ms: {found['cpu_ms']} ms CPU a session and frame")


def rings(results: Results, settings: Settings) -> None:
    """Measure rows of a recogniser whose PCM arrives through shared memory, without sockets."""
    for number in range(settings.runs):
        found = results.attempt(
            f"rings/{number}",
            lambda: measure_rings(settings.rows, settings.generators, seconds=settings.rows_s),
        )
        tell(f"{settings.rows} rows through rings: {found}")


PARTS: Final[Mapping[str, Callable[[Results, Settings], None]]] = {
    "sweep": sweep,
    "burst": bursts,
    "overload": overloads,
    "stt": recognisers,
    "rings": rings,
}


if __name__ == "__main__":
    raise SystemExit(main())
