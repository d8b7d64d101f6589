"""The most sessions of speech to text that this machine holds with a model, by the definition of capacity.

    python -m bench.stt_capacity FOLDER             about ten minutes
    python -m bench.stt_capacity --quick            seconds, on a small seeded one, to see that it works
    python -m bench.stt_capacity FOLDER --backend onnx --resume

Each load gets a fresh `antiphon serve` and `antiphon probe --protocol stt`, in processes of their own on the
same machine: every session in real time at a random phase, 80 ms a message, each frame answered by its step.
What the search finds is confirmed for at least 60 s at full load, and stepped down until every run holds.
Beside it stands how fast one recording is read when it is sent as fast as possible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from antiphon_client.load import RAMP_S_PER_SESSION
from bench.capacity_search import confirm_largest, faults, search_largest
from bench.harness import (
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

MESSAGE_MS = 80


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run measures and for how long; a resumed run must have the same."""

    model: str = ""
    backend: str = "auto"
    start: int = 2
    limit: int = 256
    search_s: float = 10.0
    confirm_s: float = 60.0
    ramp_s: float = 2.0
    runs: int = 3
    processes: int = 1
    file_s: float = 60.0


FULL = Settings()
QUICK = Settings(
    backend="torch", start=1, limit=1, search_s=1.0, confirm_s=1.0, ramp_s=0.4, runs=1, file_s=2.0
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON and text."""
    options = _parse(argv)
    settings: Settings = options.settings
    results = Results(options.out / "stt-capacity.json", settings=asdict(settings), resume=options.resume)
    with terminable("bench.stt_capacity"), tempfile.TemporaryDirectory() as scratch:
        model = settings.model or _small_model(Path(scratch) / "stt")
        run(results, settings, model)
    (options.out / "stt-capacity.md").write_text(render(results.values), encoding="utf-8")
    tell(f"written: {options.out}/stt-capacity.json and .md")
    return 0


def _small_model(folder: Path) -> str:
    from tools.make_checkpoint import make_checkpoint  # needs upstream's modules, which a real model does not

    return str(make_checkpoint(folder, kind="stt", seed=3))


def run(results: Results, settings: Settings, model: str) -> None:
    """Measure everything, keeping each number as soon as it is known."""
    warn_if_busy()

    def holds(stage: str, sessions: int, number: int) -> bool:
        full_load_s = settings.confirm_s if stage == "confirm" else settings.search_s
        attempt = results.attempt(
            f"{stage}/{sessions}/{number}",
            lambda: hold(settings, model, sessions, full_load_s=full_load_s, seed=number),
        )
        return not attempt["faults"]

    def holds_briefly(sessions: int) -> bool:
        return holds("search", sessions, 0) or holds("search", sessions, 1)

    found = search_largest(holds_briefly, start=settings.start, limit=settings.limit)
    results.values["capacity"] = confirm_largest(
        lambda sessions, number: holds("confirm", sessions, number), found=found, runs=settings.runs
    )
    results.attempt("file", lambda: read_file(settings, model))
    results.save()


def hold(settings: Settings, model: str, sessions: int, *, full_load_s: float, seed: int) -> Values:
    """One load on a fresh server: what it was like, and why it is no proof of capacity, if it is none."""
    seconds = full_load_s + sessions * RAMP_S_PER_SESSION + settings.ramp_s
    values = _probe(
        settings,
        model,
        sessions,
        *("--sessions", str(sessions), "--seconds", f"{seconds:g}", "--message-ms", str(MESSAGE_MS)),
        *("--processes", str(settings.processes), "--seed", str(seed)),
    )
    report = values["report"]
    attempt = {
        "sessions": sessions,
        "seconds": seconds,
        "faults": faults(report, full_load_s=full_load_s, message_ms=MESSAGE_MS),
        "latency_ms": report["times"]["latency"],
        "word_latency_ms": report["word_latency_ms"],
        "lost": report["counts"]["lost"],
        "late": report["counts"]["late"],
        "drift_ms": report["drift_ms"],
        "full_load_s": report["full_load_s"],
        "generator": report["generator"],
        "build_info": values["build_info"],
    }
    p99 = f"p99 {attempt['latency_ms']['p99']:.1f} ms" if attempt["latency_ms"] else "nothing answered"
    tell(f"{sessions:>4} sessions {seconds:>4.0f} s: {p99}; {'; '.join(attempt['faults']) or 'held'}")
    return attempt


def read_file(settings: Settings, model: str) -> Values:
    """One recording as fast as the server takes it."""
    values = _probe(settings, model, 1, "--seconds", f"{settings.file_s:g}", "--as-fast-as-possible")
    report = values["report"]
    return {"realtime_factor": report["realtime_factor"], "lost": report["counts"]["lost"]}


def _probe(settings: Settings, model: str, slots: int, *words: str) -> Values:
    command = serve_command("--model", model, "--backend", settings.backend, "--slots", str(slots))
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(command, Path(scratch) / "server.log") as server,
    ):
        return probe(server.url, "--protocol", "stt", *words)


def render(values: Values) -> str:
    """The result as text."""
    settings, attempts = values["settings"], values["attempts"]
    model = settings["model"] or "a small seeded checkpoint"
    lines = [
        "# Capacity of speech to text",
        "",
        f"`{values['command']}`, {values['started_at']}, on {machine_line(values)}.",
        "",
        f"{model}, backend {settings['backend']}: **{values['capacity']} sessions** in real time; one "
        f"recording as fast as possible at {attempts['file']['realtime_factor']:.1f} times real time, "
        f"{attempts['file']['lost']} frames lost.",
        "",
        "| load | sessions | p99 frame ms | p50 word ms | lost | |",
        "|---|---|---|---|---|---|",
    ]
    for key, it in attempts.items():
        if key == "file":
            continue
        frame = f"{it['latency_ms']['p99']:.1f}" if it["latency_ms"] else "-"
        word = f"{it['word_latency_ms']['p50']:.0f}" if it["word_latency_ms"] else "-"
        verdict = "; ".join(it["faults"]) or "held"
        lines.append(f"| {key} | {it['sessions']} | {frame} | {word} | {it['lost']} | {verdict} |")
    return "\n".join(lines) + "\n"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="bench.stt_capacity", description=summary)
    parser.add_argument("model", nargs="?", help="what --model of antiphon serve takes [a small seeded one]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="one session for a second")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    for name, what in (
        ("backend", "what runs the model"),
        ("start", "first load tried"),
        ("limit", "largest load tried"),
        ("search_s", "length of a run that searches"),
        ("confirm_s", "full load of a run that confirms"),
        ("runs", "runs that confirm"),
        ("processes", "of the load generator"),
        ("file_s", "length of the recording sent as fast as possible"),
    ):
        default = getattr(FULL, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), help=f"{what} [{default}]")
    options = parser.parse_args(argv)
    given = {field.name: getattr(options, field.name, None) for field in fields(Settings)}
    chosen = {name: value for name, value in given.items() if value is not None}
    options.settings = replace(QUICK if options.quick else FULL, **chosen)
    return options


if __name__ == "__main__":
    sys.exit(main())
