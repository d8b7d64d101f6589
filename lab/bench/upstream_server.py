"""Upstream's own server and ours on the same weights and the same machine: who is answered, and how fast.

    python -m lab.bench.upstream_server                      a small seeded checkpoint, made on the spot
    python -m lab.bench.upstream_server --checkpoint FOLDER  any checkpoint in the published layout
    python -m lab.bench.upstream_server --quick              seconds, to see that it works

Both are called by the same client, which speaks plain /api/chat in Ogg/Opus as any Moshi client does, in real
time at random phases, and measures by its own clock. Calls are held one at a time and several at once, the
two servers in turn. A caller counts as answered when the server greets it while the others still speak.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from antiphon.models.catalog import load_checkpoint
from antiphon_client.plot import load_matplotlib
from lab.bench.harness import (
    Results,
    Values,
    machine_line,
    probe,
    running_server,
    serve_command,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.pages import write_page

SERVERS = ("upstream", "ours")
NAMES = {"upstream": "moshi.server", "ours": "antiphon serve"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The loads, how often, how long, and on what; ``threads`` (of torch) None leaves each server its own."""

    checkpoint: str | None = None
    callers: tuple[int, ...] = (1, 2, 4)
    seconds: float = 20.0
    patience_s: float = 10.0
    runs: int = 3
    backend: str = "reference"
    threads: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON, figure and text."""
    options = _parse(argv)
    settings: Settings = options.settings
    results = Results(options.out / "upstream-server.json", settings=asdict(settings), resume=options.resume)
    with terminable("lab.bench.upstream_server"), tempfile.TemporaryDirectory() as scratch:
        run(results, settings, Path(scratch))
    write_page(options.out / "upstream-server.md", render(results.values))
    plot(results.values, options.out / "upstream-server.png")
    tell(f"written: {options.out}/upstream-server.json, .md and .png")
    return 0


def run(results: Results, settings: Settings, scratch: Path) -> None:
    """Hold every load on both servers, in turn."""
    warn_if_busy()
    folder = Path(settings.checkpoint) if settings.checkpoint else make_small_checkpoint(scratch / "moshi")
    spec = load_checkpoint(str(folder)).spec
    results.values["model"] = {"family": spec.family, "parameters": spec.parameters}
    for number in range(settings.runs):
        for callers in settings.callers:
            for server in SERVERS:
                key = f"{server}/{callers}/{number}"

                def held(server: str = server, callers: int = callers, number: int = number) -> Values:
                    command = (
                        upstream_command(folder, settings)
                        if server == "upstream"
                        else our_command(folder, settings)
                    )
                    return hold(
                        command,
                        settings,
                        scratch,
                        callers=callers,
                        delay_frames=spec.delay_frames,
                        seed=number,
                    )

                tell(f"{key}: {_line(results.attempt(key, held))}")


def make_small_checkpoint(folder: Path) -> Path:
    """A small seeded Moshi in the published layout, in float32."""
    from tests.support.make_checkpoint import make_checkpoint  # needs torch and moshi

    return make_checkpoint(folder, kind="moshi", seed=1, dtype="float32")


def upstream_command(folder: Path, settings: Settings) -> Callable[[int], list[str]]:
    """Upstream's server on ``folder``."""
    # Upstream compiles one norm of the model; without a compiler it would die at its first frame.
    eager = () if shutil.which("g++") else ("env", "NO_TORCH_COMPILE=1")
    command = [*_environment(settings), *eager, sys.executable, "-m", "lab.bench.upstream_main", str(folder)]
    return lambda port: [*command, str(port)]


def our_command(folder: Path, settings: Settings) -> Callable[[int], list[str]]:
    """Ours on the same files, with a row for every caller."""
    slots = str(max(settings.callers))
    # Upstream refuses no caller because frames are late; here ours does not either.
    lateness = ("--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=60000")
    command = serve_command(
        "--model", str(folder), "--backend", settings.backend, "--slots", slots, *lateness
    )
    return lambda port: [*_environment(settings), *command(port)]


def _environment(settings: Settings) -> tuple[str, ...]:
    return ("env", f"OMP_NUM_THREADS={settings.threads}") if settings.threads else ()


def hold(
    command: Callable[[int], Sequence[str]],
    settings: Settings,
    scratch: Path,
    *,
    callers: int,
    delay_frames: int,
    seed: int,
) -> Values:
    """One load on a fresh server."""
    with running_server(command, scratch / "server.log", answers="/") as server:
        begun_cpu_s = server.cpu_s()
        values = probe(
            server.url,
            *("--stock", "--delay-frames", str(delay_frames), "--seed", str(seed)),
            *("--sessions", str(callers), "--seconds", f"{settings.seconds:g}"),
            *("--ready-timeout", f"{settings.patience_s:g}"),
        )
        cpu_s = server.cpu_s() - begun_cpu_s
    report = values["report"]
    return {
        "callers": callers,
        "answered": report["answered"],
        "rejected": report["rejected"],
        "frames_planned": report["counts"]["planned"],
        "frames_answered": report["counts"]["answered"],
        "late": report["counts"]["late"],
        "latency_ms": report["times"]["latency"],
        "first_audio_ms": report["first_audio_ms"],
        "detail": next((s["detail"] for s in report["per_session"] if s["outcome"] != "answered"), ""),
        "server_cpu_share": cpu_s / (report["duration_s"] * report["generator"]["cores"]),
        "generator": report["generator"],
    }


def _line(attempt: Values) -> str:
    latency = attempt["latency_ms"]
    times = f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms" if latency else "no reply"
    return (
        f"{attempt['answered']} of {attempt['callers']} callers answered, "
        f"{attempt['frames_answered']} of {attempt['frames_planned']} frames, {times}"
        + (f" ({attempt['detail']})" if attempt["detail"] else "")
    )


def render(values: Values) -> str:
    """The whole report in Markdown."""
    settings, model = values["settings"], values["model"]
    head = ("callers", "server", "answered at once", "frames answered", "p50 ms", "p99 ms", "max ms", "CPU %")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    rows += [_row(values, callers, server) for callers in settings["callers"] for server in SERVERS]
    return (
        "# Beside upstream's server\n\n"
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}.\n\n"
        f"The same {model['family']} checkpoint ({model['parameters'] / 1e6:.2f} M parameters, float32) "
        f"under `moshi.server` and `antiphon serve --backend {settings['backend']}`, torch threads "
        f"{settings['threads'] or 'as each chooses'}. Both are called over plain `/api/chat` in Ogg/Opus for "
        f"{settings['seconds']:g} s by the same client, by its clock; medians of {settings['runs']} runs, "
        f"the servers in turn. A caller who is not greeted within {settings['patience_s']:g} s counts as not "
        "answered.\n\n" + "\n".join(rows) + "\n\n![frame latency and answered callers](upstream-server.png)\n"
    )


def _runs(values: Values, callers: int, server: str) -> list[Values]:
    start = f"{server}/{callers}/"
    return [attempt for key, attempt in values["attempts"].items() if key.startswith(start)]


def _row(values: Values, callers: int, server: str) -> str:
    runs = _runs(values, callers, server)
    latencies = [run["latency_ms"] for run in runs if run["latency_ms"] is not None]
    cells = [
        str(callers),
        f"`{NAMES[server]}`",
        f"{_median([run['answered'] for run in runs]):.0f} of {callers}",
        f"{_median([run['frames_answered'] / run['frames_planned'] for run in runs]):.1%}",
        *(
            f"{_median([latency[name] for latency in latencies]):.1f}" if latencies else ""
            for name in ("p50", "p99", "max")
        ),
        f"{_median([100 * run['server_cpu_share'] for run in runs]):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]


def plot(values: Values, path: Path) -> None:
    """Callers answered, and p99 frame latency, by callers at once.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(9, 4), layout="constrained")
    answered, latency = figure.subplots(1, 2)
    callers = values["settings"]["callers"]
    # Hollow and of two sizes, since both servers often lie on the same point.
    styles = {"upstream": {"marker": "s", "markersize": 10}, "ours": {"marker": "o", "markersize": 6}}
    for server in SERVERS:
        style = {"linestyle": "", "fillstyle": "none", "label": NAMES[server], **styles[server]}
        runs = [run for count in callers for run in _runs(values, count, server)]
        spoken = [{**run, "p99": run["latency_ms"]["p99"]} for run in runs if run["latency_ms"]]
        answered.plot(*_columns(runs, "answered"), **style)
        latency.plot(*_columns(spoken, "p99"), **style)
    latency.axhline(80, color="black", linestyle="--", linewidth=1)
    answered.set(ylabel="callers answered", yticks=range(max(callers) + 1))
    latency.set(ylabel="p99 frame latency of those answered [ms]", ylim=(0, None))
    for axes in (answered, latency):
        axes.set(xlabel="callers at once", xticks=callers)
    answered.legend()
    figure.savefig(path, dpi=120)


def _columns(runs: Sequence[Values], name: str) -> tuple[list[float], list[float]]:
    return [run["callers"] for run in runs], [run[name] for run in runs]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.upstream_server", description=summary)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    parser.add_argument("--quick", action="store_true", help="one run of ten seconds")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="[a small seeded one]")
    parser.add_argument("--callers", type=int, nargs="+", metavar="N", help="[1 2 4]")
    parser.add_argument("--seconds", type=float, help="[20]")
    parser.add_argument("--runs", type=int, help="[3]")
    parser.add_argument("--threads", type=int, help="of torch, in both servers [as each does by itself]")
    parser.add_argument("--backend", default="reference", help="ours [%(default)s]")
    options = parser.parse_args(argv)
    base = Settings(callers=(1, 2), seconds=10.0, patience_s=8.0, runs=1) if options.quick else Settings()
    options.settings = Settings(
        checkpoint=options.checkpoint,
        callers=tuple(options.callers) if options.callers else base.callers,
        seconds=options.seconds or base.seconds,
        patience_s=base.patience_s,
        runs=options.runs or base.runs,
        backend=options.backend,
        threads=options.threads,
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
