"""Writes the results of ``lab.bench.server_capacity`` as text and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from antiphon_client.plot import load_matplotlib
from lab.bench.harness import Values, machine_line

NAMES = {"opus": "Opus", "ogg": "Ogg/Opus", "pcm_s16le": "PCM (16 bit)", "pcm_f32le": "PCM (float)"}
FRAME_MS = 80.0


def render(values: Values) -> str:
    """Return the whole report in Markdown."""
    settings = values["settings"]
    parts = [
        "# What the server holds without a model",
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}.",
        f"Server (`--backend null --null-step-ms {settings['null_step_ms']:g}`) and load generator "
        f"(processes: {settings['processes']}) share the machine. A load is held when every session is "
        "answered in real time at random phases, nothing is lost, latency does not grow and p99 frame "
        "latency (client's clock, from when a message was due) stays under 80 ms, and the generator's own "
        f"messages leave at most half a message late at p99, in {settings['runs']} of {settings['runs']} "
        f"runs of at least {settings['confirm_s']:g} s at full load.",
        "\n".join(_capacity_table(values)),
        _codec(values),
        _reference(values["attempts"]["reference"]),
        "![p99 frame latency by number of sessions](server-capacity.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _capacity_table(values: Values) -> Iterator[str]:
    head = (
        *("format", "sessions held", "p50 ms", "p99 ms of each run", "lost", "server %", "generator %"),
        "generator late, p99 ms",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for audio_format, sessions in values["capacity"].items():
        runs = _confirmed(values, audio_format, sessions)
        cells = [NAMES[audio_format], f"**{sessions}**"]
        if runs:
            cells += [
                _range([run["latency_ms"]["p50"] for run in runs]),
                ", ".join(f"{run['latency_ms']['p99']:.1f}" for run in runs),
                str(sum(run["lost"] for run in runs)),
                _range([100 * run["server_cpu_share"] for run in runs], 0),
                _range([100 * run["generator"]["cpu_share"] for run in runs], 0),
                _range([run["generator"]["send_late_ms"]["p99"] for run in runs if run["latency_ms"]]),
            ]
        yield f"| {' | '.join(cells + [''] * (len(head) - len(cells)))} |"


def _codec(values: Values) -> str:
    codec, cores = values["attempts"]["codec"], values["machine"]["cores"]
    return (
        f"Server and generator are given in % of the whole machine. Raw codec cost of one frame: encode "
        f"{codec['encode_ms']:.3f} ms, decode {codec['decode_ms']:.3f} ms, so {cores} cores that did nothing "
        f"else would carry {int(cores * FRAME_MS / codec['frame_ms'])} Opus sessions."
    )


def _confirmed(values: Values, audio_format: str, sessions: int) -> list[Values]:
    start = f"{audio_format}/confirm/{sessions}/"
    return [attempt for key, attempt in values["attempts"].items() if key.startswith(start)]


def _reference(run: Values) -> str:
    latency = run["latency_ms"]
    if latency is None:
        return f"{run['load']}: no frame was answered."
    return (
        f"{run['load']}: {run['lost']} lost, frame latency p50 {latency['p50']:.1f} ms, "
        f"p99 {latency['p99']:.1f} ms, max {latency['max']:.1f} ms; server {run['server_cpu_share']:.0%} and "
        f"generator {run['generator']['cpu_share']:.0%} of the machine."
    )


def _range(numbers: list[float], digits: int = 1) -> str:
    low, high = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def plot(values: Values, path: Path) -> None:
    """Plot the p99 frame latency of every tried load by number of sessions, and write the figure to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for index, (audio_format, sessions) in enumerate(values["capacity"].items()):
        name, colour = NAMES[audio_format], f"C{index}"
        for stage, filling, what in (("search", "none", "seconds"), ("confirm", "full", "a minute")):
            tried = _p99_by_sessions(values, f"{audio_format}/{stage}/")
            label = f"{name}, {what}"
            axes.plot(*tried, "o", color=colour, fillstyle=filling, markersize=5, label=label)
        axes.axvline(sessions, color=colour, linewidth=1, label=f"{name}: {sessions} held")
    axes.axhline(FRAME_MS, color="black", linestyle="--", linewidth=1, label="deadline, 80 ms")
    axes.set(xlabel="sessions", ylabel="p99 frame latency [ms]", yscale="log")
    axes.set_title(
        f"{values['machine']['cpu']}, {values['machine']['cores']} cores, null backend", fontsize=10
    )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _p99_by_sessions(values: Values, start: str) -> tuple[list[int], list[float]]:
    tried = [
        attempt
        for key, attempt in values["attempts"].items()
        if key.startswith(start) and attempt["latency_ms"] is not None
    ]
    return [attempt["sessions"] for attempt in tried], [attempt["latency_ms"]["p99"] for attempt in tried]
