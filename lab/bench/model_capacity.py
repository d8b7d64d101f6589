"""Measures the most sessions that this machine holds with a model, by the definition of capacity.

    python -m lab.bench.model_capacity FOLDER           ten minutes; with --runs 1 three
    python -m lab.bench.model_capacity --quick          seconds, on a small seeded one, to see that it works
    python -m lab.bench.model_capacity FOLDER --backend-option threads=2 --backend-option spin=true --resume

Each load gets a fresh `antiphon serve` and `antiphon probe`, in separate processes on the same machine.
Duplex and stt: every session in real time at a random phase, each frame answered. tts: every session gets a
text that is longer than the run, all at once, and a player that starts with 80 ms of it must never run dry.
The result of the search is confirmed for at least 60 s at full load, and reduced until every run holds. For
stt the speed of one recording at full rate is measured, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import PipelineKind
from antiphon_client.load import RAMP_S_PER_SESSION
from lab.bench.capacity_search import confirm_largest, faults, search_largest, speech_faults
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
from lab.bench.neighbours import MOST_CORES
from lab.bench.pages import write_page

MESSAGE_MS: Final = 80
PROTOCOLS: Final = {
    PipelineKind.CODEC: "chat",
    PipelineKind.DUPLEX: "chat",
    PipelineKind.STT: "stt",
    PipelineKind.TTS: "tts",
}
FORMAT: Final = "pcm_s16le"
"""Format of a conversation: the cost of Opus belongs to the server and not to the model, and is measured
elsewhere."""

WORDS_PER_S: Final = 4
"""Faster than speech: a text of this number of words lasts long enough."""
COUNT: Final = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings and the length of a run; a resumed run must have the same."""

    model: str = ""
    backend: str = "auto"
    backend_option: tuple[str, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Subject:
    """The model of a run: the server's ``--model``, the model's name, and the protocol of its callers."""

    model: str
    name: str
    protocol: str

    @classmethod
    def of(cls, model: str) -> Subject:
        """Return the subject for a model named as for ``antiphon serve``."""
        spec = load_checkpoint(model).spec
        return cls(model, spec.name, PROTOCOLS[spec.kind])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON and text."""
    options = _parse(argv)
    settings: Settings = options.settings
    with terminable("lab.bench.model_capacity"), tempfile.TemporaryDirectory() as scratch:
        subject = Subject.of(settings.model or _small_model(Path(scratch) / "stt"))
        name = f"{subject.name}-capacity"
        results = Results(
            options.out / f"{name}.json",
            settings=asdict(settings),
            resume=options.resume,
            most_others_cores=MOST_CORES,
        )
        results.values |= {"model": subject.name, "protocol": subject.protocol}
        run(results, settings, subject)
    write_page(options.out / f"{name}.md", render(results.values))
    tell(f"written: {options.out}/{name}.json and .md")
    return 0


def _small_model(folder: Path) -> str:
    from tests.support.make_checkpoint import (
        make_checkpoint,  # needs upstream's modules, which a real model does not
    )

    return str(make_checkpoint(folder, kind="stt", seed=3))


def run(results: Results, settings: Settings, subject: Subject) -> None:
    """Run all measurements, and save each result at once."""
    warn_if_busy()
    hold = hold_speech if subject.protocol == "tts" else hold_conversation

    def holds(stage: str, sessions: int, number: int) -> bool:
        full_load_s = settings.confirm_s if stage == "confirm" else settings.search_s
        attempt = results.attempt(
            f"{stage}/{sessions}/{number}",
            lambda: hold(settings, subject, sessions, full_load_s=full_load_s, seed=number),
        )
        return not attempt["faults"]

    def holds_briefly(sessions: int) -> bool:
        return holds("search", sessions, 0) or holds("search", sessions, 1)

    found = search_largest(holds_briefly, start=settings.start, limit=settings.limit)
    results.values["capacity"] = confirm_largest(
        lambda sessions, number: holds("confirm", sessions, number), found=found, runs=settings.runs
    )
    if subject.protocol == "stt":
        results.attempt("file", lambda: read_file(settings, subject))
    results.save()


def hold_conversation(
    settings: Settings, subject: Subject, sessions: int, *, full_load_s: float, seed: int
) -> Values:
    """Run a load on a fresh server; returns its results, and the reasons why it does not prove capacity, if
    any."""
    seconds = full_load_s + sessions * RAMP_S_PER_SESSION + settings.ramp_s
    sound = ("--format", FORMAT) if subject.protocol == "chat" else ()
    values = _probe(
        settings,
        subject,
        sessions,
        *("--sessions", str(sessions), "--seconds", f"{seconds:g}", "--message-ms", str(MESSAGE_MS), *sound),
        *("--processes", str(settings.processes), "--seed", str(seed)),
    )
    report = values["report"]
    attempt = {
        "sessions": sessions,
        "seconds": seconds,
        "faults": faults(report, full_load_s=full_load_s, message_ms=MESSAGE_MS),
        "latency_ms": report["times"]["latency"],
        "word_latency_ms": report.get("word_latency_ms"),
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


def hold_speech(
    settings: Settings, subject: Subject, sessions: int, *, full_load_s: float, seed: int
) -> Values:
    """Run a load of texts as :func:`hold_conversation` does; the server samples with ``seed``."""
    words = [COUNT[index % len(COUNT)] for index in range(int(full_load_s * WORDS_PER_S))]
    values = _probe(
        settings,
        subject,
        sessions,
        *("--sessions", str(sessions), "--text", " ".join(words), "--set", f"seed={seed}"),
    )
    report = values["report"]
    attempt = {
        "sessions": sessions,
        "faults": speech_faults(report, full_load_s=full_load_s),
        "first_audio_ms": report["first_audio_ms"],
        "real_time_factor": report["real_time_factor"],
        "audio_s": report["audio_s"],
        "gaps": report["gaps"],
    }
    pace = f"{attempt['real_time_factor']['p50']:.2f} times real time" if report["audio_s"] else "no speech"
    tell(f"{sessions:>4} sessions: {pace}; {'; '.join(attempt['faults']) or 'held'}")
    return attempt


def read_file(settings: Settings, subject: Subject) -> Values:
    """Measure how fast the server transcribes one recording that is sent as fast as it is accepted."""
    values = _probe(settings, subject, 1, "--seconds", f"{settings.file_s:g}", "--as-fast-as-possible")
    report = values["report"]
    return {"realtime_factor": report["realtime_factor"], "lost": report["counts"]["lost"]}


def _probe(settings: Settings, subject: Subject, slots: int, *words: str) -> Values:
    chosen = [word for option in settings.backend_option for word in ("--backend-option", option)]
    command = serve_command(
        "--model", subject.model, "--backend", settings.backend, *chosen, "--slots", str(slots)
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(command, Path(scratch) / "server.log") as server,
    ):
        return probe(server.url, "--protocol", subject.protocol, *words)


def render(values: Values) -> str:
    """Return the result as text."""
    settings = values["settings"]
    attempts = {key: it for key, it in values["attempts"].items() if key != "file"}
    lines = [
        f"# Capacity of {values['model']}",
        "",
        f"`{values['command']}`, {values['started_at']}, on {machine_line(values)}.",
        "",
        f"{values['model']} ({values['protocol']}), backend {settings['backend']}: {_capacity(values)} in "
        f"real time, for {settings['confirm_s']:g} s, {settings['runs']} time(s){_file_sentence(values)}.",
        "",
        *(_speech_table(attempts) if values["protocol"] == "tts" else _conversation_table(attempts)),
    ]
    return "\n".join(lines) + "\n"


def _capacity(values: Values) -> str:
    found, limit = values["capacity"], values["settings"]["limit"]
    told = f"**{found} session{'s' * (found != 1)}**"
    return f"{told}, the most that were tried," if found == limit else told


def _file_sentence(values: Values) -> str:
    if "file" not in values["attempts"]:
        return ""
    file = values["attempts"]["file"]
    return (
        f"; one recording as fast as possible at {file['realtime_factor']:.1f} times real time, "
        f"{file['lost']} frames lost"
    )


def _conversation_table(attempts: Values) -> list[str]:
    lines = ["| load | sessions | p99 frame ms | p50 word ms | lost | |", "|---|---|---|---|---|---|"]
    for key, it in attempts.items():
        frame = f"{it['latency_ms']['p99']:.1f}" if it["latency_ms"] else "-"
        word = f"{it['word_latency_ms']['p50']:.0f}" if it["word_latency_ms"] else "-"
        lines.append(f"| {key} | {it['sessions']} | {frame} | {word} | {it['lost']} | {_verdict(it)} |")
    return lines


def _speech_table(attempts: Values) -> list[str]:
    lines = [
        "| load | sessions | p50 times real time | longest first sound ms | speech s | gaps | |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, it in attempts.items():
        pace = f"{it['real_time_factor']['p50']:.2f}" if it["real_time_factor"] else "-"
        first = f"{it['first_audio_ms']['max']:.0f}" if it["first_audio_ms"] else "-"
        lines.append(
            f"| {key} | {it['sessions']} | {pace} | {first} | {it['audio_s']:.0f} | {it['gaps']} "
            f"| {_verdict(it)} |"
        )
    return lines


def _verdict(attempt: Values) -> str:
    return "; ".join(attempt["faults"]) or "held"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.model_capacity", description=summary)
    parser.add_argument("model", nargs="?", help="what --model of antiphon serve takes [a small seeded one]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument(
        "--backend-option", action="extend", nargs="+", metavar="NAME=VALUE", help="options of it"
    )
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
    chosen["backend_option"] = tuple(options.backend_option or ())
    options.settings = replace(QUICK if options.quick else FULL, **chosen)
    return options


if __name__ == "__main__":
    sys.exit(main())
