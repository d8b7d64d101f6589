"""Measures the most sessions that this machine holds without a model, for the cost of the server itself.

    python -m lab.bench.server_capacity                 about twenty minutes on two cores
    python -m lab.bench.server_capacity --quick         seconds, to see that it works
    python -m lab.bench.server_capacity --resume        continue an interrupted run

Each load gets a fresh `antiphon serve --backend null` (a model of 5 ms that sleeps) and `antiphon probe`, in
separate processes on the same machine. The search tries loads for a few seconds each; its result is confirmed
for at least 60 s at full load, several times, and reduced until every run holds. The cost of the codec, and
the generator's share of the machine, are reported, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import MESSAGE_MS
from antiphon_client.load import RAMP_S_PER_SESSION
from lab.bench.capacity_report import plot, render
from lab.bench.capacity_search import confirm_largest, faults, search_largest
from lab.bench.codec_cost import measure
from lab.bench.harness import (
    Results,
    Values,
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

    formats: tuple[str, ...] = ("opus", "pcm_s16le")
    null_step_ms: float = 5.0
    start: int = 32
    limit: int = 1024
    search_s: float = 10.0
    confirm_s: float = 60.0
    ramp_s: float = 2.0
    runs: int = 3
    processes: int = 1
    reference_sessions: int = 32
    reference_s: float = 30.0
    codec_frames: int = 500
    codec_runs: int = 5


FULL = Settings()
QUICK = Settings(
    start=1,
    limit=2,
    search_s=1.0,
    confirm_s=1.0,
    ramp_s=0.4,
    runs=1,
    reference_sessions=2,
    reference_s=1.0,
    codec_frames=20,
    codec_runs=1,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON, figure and text."""
    options = _parse(argv)
    settings: Settings = options.settings
    results = Results(
        options.out / "server-capacity.json",
        settings=asdict(settings),
        resume=options.resume,
        most_others_cores=MOST_CORES,
    )
    with terminable("lab.bench.server_capacity"):
        run(results, settings)
    write_page(options.out / "server-capacity.md", render(results.values))
    plot(results.values, options.out / "server-capacity.png")
    tell(f"written: {options.out}/server-capacity.json, .md and .png")
    return 0


def run(results: Results, settings: Settings) -> None:
    """Run all measurements, and save each result at once."""
    warn_if_busy()
    tell("codec: encode, decode")
    results.attempt("codec", lambda: measure(frames=settings.codec_frames, runs=settings.codec_runs))
    results.attempt(
        "reference",
        lambda: hold(settings, "opus", settings.reference_sessions, full_load_s=settings.reference_s, seed=0),
    )
    capacities: Values = results.values.setdefault("capacity", {})
    for audio_format in settings.formats:
        capacities[audio_format] = find_capacity(results, settings, audio_format)
        tell(f"{audio_format}: {capacities[audio_format]} sessions")
        results.save()


def find_capacity(results: Results, settings: Settings, audio_format: str) -> int:
    """Search for the most sessions of one format, and return the confirmed number."""

    def holds(stage: str, sessions: int, number: int) -> bool:
        full_load_s = settings.confirm_s if stage == "confirm" else settings.search_s
        attempt = results.attempt(
            f"{audio_format}/{stage}/{sessions}/{number}",
            lambda: hold(settings, audio_format, sessions, full_load_s=full_load_s, seed=number),
        )
        return not attempt["faults"]

    def holds_briefly(sessions: int) -> bool:
        # One disturbance of the machine must not end the search below: only the confirming runs are strict.
        return holds("search", sessions, 0) or holds("search", sessions, 1)

    found = search_largest(holds_briefly, start=settings.start, limit=settings.limit)
    return confirm_largest(
        lambda sessions, number: holds("confirm", sessions, number), found=found, runs=settings.runs
    )


def hold(settings: Settings, audio_format: str, sessions: int, *, full_load_s: float, seed: int) -> Values:
    """Run a load on a fresh server; returns its results, and the reasons why it does not prove capacity, if
    any.

    Every session talks long enough that all of them overlap for ``full_load_s``.
    """
    seconds = full_load_s + sessions * RAMP_S_PER_SESSION + settings.ramp_s
    command = serve_command(
        "--backend", "null", "--null-step-ms", f"{settings.null_step_ms:g}", "--slots", str(settings.limit)
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(command, Path(scratch) / "server.log") as server,
    ):
        begun_cpu_s = server.cpu_s()
        values = probe(
            server.url,
            *("--sessions", str(sessions), "--seconds", f"{seconds:g}", "--format", audio_format),
            *("--processes", str(settings.processes), "--seed", str(seed)),
        )
        cpu_s = server.cpu_s() - begun_cpu_s
        rss_bytes = server.rss_bytes()
    report = values["report"]
    message_ms = MESSAGE_MS[AudioFormat(audio_format)]
    found = faults(report, full_load_s=full_load_s, message_ms=message_ms)
    attempt = {
        "format": audio_format,
        "sessions": sessions,
        "seconds": seconds,
        "faults": found,
        "latency_ms": report["times"]["latency"],
        "server_ms": report["times"]["server"],
        "lost": report["counts"]["lost"],
        "late": report["counts"]["late"],
        "gaps": report["counts"]["gaps"],
        "answered_share": report["answered_share"],
        "drift_ms": report["drift_ms"],
        "full_load_s": report["full_load_s"],
        "server_cpu_share": cpu_s / (report["duration_s"] * report["generator"]["cores"]),
        "server_rss_bytes": rss_bytes,
        "generator": report["generator"],
        "load": values["card"]["load"],
    }
    tell(_line(attempt))
    return attempt


def _line(attempt: Values) -> str:
    latency = attempt["latency_ms"]
    p99 = f"p99 {latency['p99']:6.1f} ms" if latency else "nothing answered"
    send_late = attempt["generator"]["send_late_ms"]
    late = f" (late by {send_late['p99']:.1f} ms at p99)" if send_late else ""
    return (
        f"{attempt['format']:<10}{attempt['sessions']:>5} sessions {attempt['seconds']:>5.0f} s: {p99}, "
        f"server {attempt['server_cpu_share']:.0%}, generator {attempt['generator']['cpu_share']:.0%} of the "
        f"machine{late}; {'; '.join(attempt['faults']) or 'held'}"
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.server_capacity", description=summary)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="a load or two for a second each")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("--formats", nargs="+", metavar="FORMAT", help=f"[{' '.join(FULL.formats)}]")
    for name, what in (
        ("null_step_ms", "time of one step of the model"),
        ("start", "first load tried"),
        ("limit", "largest load tried"),
        ("search_s", "length of a run that searches"),
        ("confirm_s", "full load of a run that confirms"),
        ("runs", "runs that confirm"),
        ("processes", "of the load generator"),
    ):
        default = getattr(FULL, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), help=f"{what} [{default}]")
    options = parser.parse_args(argv)
    given = {field.name: getattr(options, field.name, None) for field in fields(Settings)}
    chosen = {name: value for name, value in given.items() if value is not None}
    if "formats" in chosen:
        chosen["formats"] = tuple(chosen["formats"])
    options.settings = replace(QUICK if options.quick else FULL, **chosen)
    return options


if __name__ == "__main__":
    sys.exit(main())
