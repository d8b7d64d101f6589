"""Writes the results of ``lab.bench.front_ends`` as text and as a figure, with estimates for larger
machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon_client.plot import load_matplotlib
from lab.bench.harness import Values, machine_line

FRAME_MS: Final = 80.0
NAMES: Final = {"opus": "Opus, 20 ms messages", "pcm_s16le": "PCM, 80 ms messages"}
COMPUTED_FOR: Final = (4, 8, 15)
ROWS: Final = 2000
"""Recogniser rows of one GPU, for which the number of front ends is computed."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """The CPU milliseconds of one session for each frame, in a front end and in the engine's process.

    ``busy`` is the share of one core that a front end used at the largest load that it held.
    """

    front_end_ms: float
    engine_ms: float
    busy: float

    def sessions(self, front_ends: int) -> int:
        """Return the number of sessions that ``front_ends`` front ends serve, with a core for each and for
        the engine."""
        by_front_ends = front_ends * self.busy * FRAME_MS / self.front_end_ms
        by_engine = self.busy * FRAME_MS / self.engine_ms if self.engine_ms else by_front_ends
        return int(min(by_front_ends, by_engine))

    def front_ends(self, sessions: int) -> int:
        """Return the number of front ends that ``sessions`` sessions need."""
        return -(-sessions // max(1, int(self.busy * FRAME_MS / self.front_end_ms)))


def render(values: Values) -> str:
    """Return the whole report in Markdown."""
    parts = [
        "# What front ends bring",
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. Server and load generator share the machine. "
        "0 front ends: all in one process.",
        *("\n".join(table) for table in _tables(values["attempts"])),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _tables(attempts: Mapping[str, Values]) -> Iterator[list[str]]:
    for audio_format, name in NAMES.items():
        yield _sweep(attempts, audio_format, name)
    yield _computed(attempts)
    yield _rows(
        attempts,
        "burst",
        (
            "front ends",
            "talkers",
            "connections",
            "let in",
            "longest ms",
            "p99 before",
            "p99 then",
            "late then",
        ),
        lambda it: (
            *(it[name] for name in ("talkers", "connections", "opened", "longest_ms")),
            *(it["before"]["p99_ms"], it["during"]["p99_ms"], it["during"]["late"]),
        ),
    )
    yield _rows(
        attempts,
        "overload",
        ("front ends", "talkers", "cut", "surge", "p99 before", "p99 then", "normal after s", "refused s"),
        lambda it: (
            *(it["talkers"], len(it["cut"]), it["surge"], it["before"]["p99_ms"], it["during"]["p99_ms"]),
            *(it["normal_after_s"], it["refused_until_s"]),
        ),
    )
    yield _recognisers(attempts)
    yield _rows(
        attempts,
        "rings",
        ("run", "rows", "p50 ms", "p99 ms", "engine's process, cores", "µs a row and frame", "unanswered"),
        lambda it: (
            it["rows"],
            *(f"{it[name]:.3g}" for name in ("p50_ms", "p99_ms", "engine_cpu_share")),
            *(f"{it['host_us_per_row_frame']:.1f}", it["unanswered"]),
        ),
    )


def _rows(attempts: Mapping[str, Values], name: str, head: tuple[str, ...], cells: object) -> list[str]:
    assert callable(cells)
    found = [(key.split("/")[1], it) for key, it in attempts.items() if key.startswith(f"{name}/")]
    if not found:
        return []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(map(str, (number, *cells(it))))} |" for number, it in found]


def _sweep(attempts: Mapping[str, Values], audio_format: str, name: str) -> list[str]:
    head = (
        "sessions",
        "front ends",
        "p99 ms",
        "late",
        "lost",
        "refused",
        "CPU ms",
        "switches/s",
        "load average",
    )
    found = _swept(attempts, audio_format)
    if not found:
        return []
    lines = [f"{name}; CPU of all processes a session and frame.", "", f"| {' | '.join(head)} |"]
    lines.append("|---" * len(head) + "|")
    for front_ends, it in found:
        p99 = f"{it['latency_ms']['p99']:.1f}" if it["latency_ms"] else "-"
        cells = (
            *(it["sessions"], front_ends, p99, it["late"], it["lost"], it["refused"]),
            *(
                f"{sum(it['cpu_ms'].values()):.2f}",
                f"{it['switches_per_s']:.0f}",
                f"{it['load_average']:.1f}",
            ),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _swept(attempts: Mapping[str, Values], audio_format: str) -> list[tuple[int, Values]]:
    start = f"sweep/{audio_format}/"
    found = [(int(key.split("/")[2]), it) for key, it in attempts.items() if key.startswith(start)]
    return sorted(found, key=lambda each: (each[1]["sessions"], each[0]))  # resumed runs have another order


def calibrate(attempts: Mapping[str, Values], audio_format: str) -> CpuTime | None:
    """Return the CPU time at the largest load that one front end held with a p99 latency within a frame."""
    held = [
        it
        for front_ends, it in _swept(attempts, audio_format)
        if front_ends == 1 and it["latency_ms"] and it["latency_ms"]["p99"] <= FRAME_MS and not it["refused"]
    ]
    if not held:
        return None
    largest = max(held, key=lambda it: int(it["sessions"]))
    cpu = largest["cpu_ms"]
    busy = largest["sessions"] * cpu["front end"] / FRAME_MS
    return CpuTime(cpu["front end"], cpu["engine"], min(1.0, busy))


def _computed(attempts: Mapping[str, Values]) -> list[str]:
    lines: list[str] = []
    for audio_format, name in NAMES.items():
        if (cpu := calibrate(attempts, audio_format)) is None:
            continue
        counts = ", ".join(f"{number}: {cpu.sessions(number)}" for number in COMPUTED_FOR)
        lines.append(
            f"- {name}: {cpu.front_end_ms:.2f} ms in a front end and {cpu.engine_ms:.2f} ms in the engine's "
            f"process a session and frame, a front end {cpu.busy:.0%} busy. Sessions by front ends: {counts}."
        )
    if not lines:
        return []
    head = "**Computed, not measured**: each front end and the engine on a core of its own, null backend."
    return [head, "", *lines]


def _recognisers(attempts: Mapping[str, Values]) -> list[str]:
    cpu = calibrate(attempts, "opus") or calibrate(attempts, "pcm_s16le")
    lines: list[str] = []
    for key, it in attempts.items():
        if not key.startswith("stt/"):
            continue
        front_end_ms = it["cpu_ms"]["front end"]
        needed = ""
        if cpu is not None:
            number = CpuTime(front_end_ms, 0.0, cpu.busy).front_ends(ROWS)
            needed = f"; {ROWS:,} sessions need {number} front ends (computed)"
        lines.append(
            f"- Kyutai STT, messages of {key.split('/')[1]} ms: {front_end_ms:.2f} ms of a front end's CPU a "
            f"session and frame{needed}."
        )
    return lines


def plot(values: Values, path: Path) -> None:
    """Plot p99 frame latency by sessions to ``path``; loads with refused callers are hollow.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(9, 4.5), layout="constrained")
    for axes, (audio_format, name) in zip(figure.subplots(1, 2, sharey=True), NAMES.items(), strict=True):
        found = _swept(values["attempts"], audio_format)
        for index, front_ends in enumerate(sorted({number for number, _ in found})):
            points = [(it["sessions"], it) for number, it in found if number == front_ends]
            points = [(sessions, it) for sessions, it in points if it["latency_ms"]]
            label = f"{front_ends} front ends" if front_ends else "one process"
            for is_refused, style in ((False, "full"), (True, "none")):
                chosen = [
                    (n, it["latency_ms"]["p99"]) for n, it in points if bool(it["refused"]) is is_refused
                ]
                more = {} if is_refused else {"label": label}
                axes.plot(
                    *zip(*chosen, strict=True) if chosen else ((), ()),
                    "o",
                    color=f"C{index}",
                    fillstyle=style,
                    **more,
                )
            line = [(n, it["latency_ms"]["p99"]) for n, it in points]
            axes.plot(*zip(*line, strict=True) if line else ((), ()), "-", color=f"C{index}", linewidth=1)
        axes.axhline(FRAME_MS, color="black", linestyle="--", linewidth=1, label="deadline, 80 ms")
        axes.set(xlabel="sessions", ylabel="p99 frame latency [ms]", yscale="log", title=name)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
