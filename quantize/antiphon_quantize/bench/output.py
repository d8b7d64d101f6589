"""Writes a benchmark card as new files: Markdown, JSON and, with matplotlib, a picture."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.errors import ConfigError, MissingExtraError
from antiphon_quantize.advice.show import table
from antiphon_quantize.bench.card import (
    PREFERRED,
    Card,
    Entry,
    MeasuredMemory,
    Quality,
    RowsResult,
    Spread,
    card_to_json,
)

SIZE_INCHES = (15.0, 4.5)
DPI = 110


def load_matplotlib() -> Any:
    """The module ``matplotlib.figure``, which draws without any display.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("the figure of a card", extra="plot", module="matplotlib") from error
    return matplotlib.figure


def draw(card: Card, path: Path) -> None:
    """Draw the figure of a benchmark card and write it to ``path`` as PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=SIZE_INCHES, layout="constrained")
    pareto, ticks, memory = figure.subplots(1, 3)
    _draw_pareto(pareto, card)
    _draw_ticks(ticks, card)
    _draw_memory(memory, card)
    hardware = card.entries[0].facts.hardware
    figure.suptitle(f"{hardware.device}, {hardware.count} x, {card.started_at}", fontsize="medium")
    figure.savefig(path, dpi=DPI)


def quality_points(card: Card) -> tuple[str, dict[str, float]]:
    """The measure of quality on this card, as text, and its finite number for every model that has one.

    The measure is the first model's headline. The baseline's number comes from the gate's comparison with the
    other models, or is 1 for a measure of similarity.
    """
    headlines = [entry.quality.headline for entry in card.entries if entry.quality is not None]
    name = next((metric.name for metric in headlines if metric is not None), None)
    if name is None:
        return "", {}
    points: dict[str, float] = {}
    for entry in card.entries:
        for metric in entry.quality.metrics if entry.quality is not None else ():
            if metric.name == name and metric.score is not None:
                points[entry.label] = metric.score
                if card.baseline is not None:
                    points[card.baseline] = 1.0 if metric.baseline is None else metric.baseline
    return PREFERRED[name], {label: value for label, value in points.items() if np.isfinite(value)}


def _draw_pareto(axes: Any, card: Card) -> None:
    name, points = quality_points(card)
    axes.set(xlabel=f"frames/s, {card.plan.rows[-1]} rows", ylabel=name, title="quality against speed")
    for index, entry in enumerate(card.entries):
        speed = entry.results[-1].frames_per_s
        if entry.label in points:
            value, reach = points[entry.label], [[speed.median - speed.low], [speed.high - speed.median]]
            axes.errorbar([speed.median], [value], xerr=reach, fmt="o", color=f"C{index}", label=entry.label)
        else:
            axes.axvline(speed.median, color=f"C{index}", linestyle=":", label=entry.label)
    if not points:
        box = {"facecolor": "white", "edgecolor": "none"}
        axes.text(0.5, 0.5, "quality: not measured", ha="center", transform=axes.transAxes, bbox=box)
        axes.set_yticks([])
    axes.set_xlim(left=0)
    axes.legend(fontsize="small")


def _draw_ticks(axes: Any, card: Card) -> None:
    frame_ms = card.entries[0].facts.frame_ms
    for index, entry in enumerate(card.entries):
        for result, style in ((entry.results[0], ":"), (entry.results[-1], "-")):
            known = np.sort(result.samples_ms)
            share_above = 1 - np.arange(known.size) / known.size
            label = f"{entry.label}, {result.rows} rows"
            axes.semilogy(known, share_above, style, color=f"C{index}", label=label)
            if len(entry.results) == 1:
                break
    axes.axvline(frame_ms / 2, color="black", linestyle="--", linewidth=1, label="half a frame")
    axes.axhline(0.01, color="grey", linestyle=":", linewidth=1, label="p99")
    axes.set(xlabel="tick time [ms]", ylabel="share of ticks above", title="one tick a frame", xlim=(0, None))
    axes.legend(fontsize="small")


def _draw_memory(axes: Any, card: Card) -> None:
    place = np.arange(len(card.entries))
    bars = {
        "files": [entry.facts.model.file_bytes for entry in card.entries],
        "peak RSS": [entry.memory.peak_rss for entry in card.entries],
        "device": [entry.memory.device or 0 for entry in card.entries],
    }
    shown = {name: sizes for name, sizes in bars.items() if any(sizes)}
    height = 0.8 / len(shown)
    for index, (name, sizes) in enumerate(shown.items()):
        axes.barh(place + index * height, np.array(sizes) / 1e6, height, label=name)
    axes.set_yticks(place + 0.4 - height / 2, [entry.label for entry in card.entries])
    axes.invert_yaxis()
    axes.set(xlabel="MB", title="memory")
    axes.legend(fontsize="small")


BUSY_SHARE = 0.3
"""Load average per processor above which another program is assumed to disturb the run."""
NOT_MEASURED = "not measured"


def render(card: Card, figure: str | None = None) -> str:
    """The whole card in Markdown; ``figure`` is the file name of its PNG, if there is one."""
    plan, entries = card.plan, card.entries
    frame_ms = entries[0].facts.frame_ms
    parts = [
        f"# Benchmark card: {', '.join(entry.label for entry in entries)}",
        f"{card.started_at}, {card.system}, {card.memory_bytes / 2**30:.1f} GiB of memory, load average "
        f"{card.load_average:g} before the run. {plan.turns} turns of each model, one after the other, of "
        f"{plan.seconds:g} s each: fresh rows, {plan.lead_frames} frames that do not count, then one tick "
        f"every {frame_ms:g} ms, then ticks back to back.",
    ]
    if is_busy(card):
        parts.append("**Other programs were running on this machine: use ratios, not milliseconds.**")
    if len(entries) > 1:
        parts.append("## Side by side\n\n" + _table(_side_by_side(card)))
    for entry in entries:
        parts.append(f"## {entry.label}\n\n" + _table(_fields(card, entry)))
        parts.append(_table(_results(card, entry)))
        parts.append(rows_in_time_sentence(entry))
        if entry.quality is not None and entry.quality.metrics:
            parts.append(f"Quality, by the gate, on {entry.quality.material}:")
            parts.append(_table(_quality(entry.quality)))
    if figure is not None:
        parts.append(f"![quality against speed, tick times, memory]({figure})")
    return "\n\n".join(parts) + "\n"


def summary(card: Card) -> str:
    """The output for a terminal of 80 columns: the ticks of each model, and several models side by side."""
    parts = [
        f"{entry.label} ({entry.facts.backend}, {entry.facts.dtype})\n"
        + table([(*row[:2], *row[3:7]) for row in _results(card, entry)])  # the card has all columns
        + f"\n{rows_in_time_sentence(entry)}"
        for entry in card.entries
    ]
    if len(card.entries) > 1:
        head, *rows = [(row[0], *row[2:4], *row[5:7]) for row in _side_by_side(card)]
        parts.append(
            f"side by side, {card.plan.rows[-1]} rows; {head[-1]}\n" + table([(*head[:-1], "speed"), *rows])
        )
        parts.append("\n".join(_said_of(card, entry) for entry in card.entries))
    if is_busy(card):
        parts.append("other programs were running on this machine: use ratios, not milliseconds")
    return "\n\n".join(parts).replace("**", "")  # bold in Markdown


def _said_of(card: Card, entry: Entry) -> str:
    said = "the baseline" if entry.label == card.baseline else verdict(entry.quality)
    return textwrap.fill(f"quality of {entry.label}: {said}", 80, subsequent_indent="  ")


def speed_of(card: Card) -> str:
    """The label of the model that speed ratios refer to."""
    return card.baseline or card.entries[0].label


def is_busy(card: Card) -> bool:
    """Whether the load average before the run shows that other programs used the processors."""
    cores = max(entry.facts.hardware.count for entry in card.entries)
    return card.load_average > BUSY_SHARE * cores


def _table(rows: Iterator[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    columns = head.count(" | ") + 1
    return "\n".join([head, "|---" * columns + "|", *body])


def _side_by_side(card: Card) -> Iterator[Sequence[str]]:
    rows = card.plan.rows[-1]
    yield (
        *("model", "quantization", "files", "peak RSS"),
        *(f"tick p50 / p99 ms, {rows} rows", "frames/s", f"speed, {speed_of(card)} = 1", "quality"),
    )
    for entry in card.entries:
        result = entry.results[-1]
        yield (
            *(entry.label, entry.facts.quantization.method, size_words(entry.facts.model.file_bytes)),
            size_words(entry.memory.peak_rss),
            f"{result.p50_ms:.2f} / {result.p99_ms:.2f}",
            f"{result.frames_per_s.median:.1f}",
            spread_words(result.speed_ratio, 2) if result.speed_ratio else "1",
            "baseline" if entry.label == card.baseline else verdict(entry.quality),
        )


def _fields(card: Card, entry: Entry) -> Iterator[Sequence[str]]:
    """The card's fixed fields, each in a row."""
    facts = entry.facts
    model, hardware, quantization = facts.model, facts.hardware, facts.quantization
    yield "field", "value"
    yield (
        "Model",
        f"{model.name} ({model.kind}), {model.parameters:,} parameters, {model.format}, "
        f"{size_words(model.file_bytes)}",
    )
    yield (
        "Hardware",
        f"device {hardware.device}, count {hardware.count}, driver {hardware.driver}, threads "
        f"{hardware.threads}",
    )
    yield "Backend", f"{facts.backend}, {facts.dtype}"
    yield "Quantization", f"method {quantization.method}, calibration {quantization.calibration}"
    yield "Versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield "Command", f"`{card.command}`"
    yield "Memory", memory_words(entry.memory)
    yield "Quality", "this is the baseline" if entry.label == card.baseline else verdict(entry.quality)


def _results(card: Card, entry: Entry) -> Iterator[Sequence[str]]:
    speed = (f"speed, {speed_of(card)} = 1",) if len(card.entries) > 1 else ()
    yield (
        *("rows", "tick p50 ms (turns)", "p95 ms", "p99 ms", "max ms", "late"),
        *("frames/s (turns)", "real-time factor", *speed),
    )
    for result in entry.results:
        yield _result_cells(result)[: 8 + len(speed)]


def _result_cells(result: RowsResult) -> Sequence[str]:
    middle = result.turn_p50_ms
    return (
        str(result.rows),
        f"{result.p50_ms:.2f} ({middle.low:.2f} to {middle.high:.2f})",
        *(f"{value:.2f}" for value in (result.p95_ms, result.p99_ms, result.max_ms)),
        f"{result.late} of {len(result.samples_ms)}",
        spread_words(result.frames_per_s, 1),
        f"{result.realtime_factor:.2f}",
        spread_words(result.speed_ratio, 2) if result.speed_ratio else "1",
    )


def rows_in_time_sentence(entry: Entry) -> str:
    """A sentence with the number of rows that this model answers in time on this machine."""
    least = "at least " if entry.rows_in_time_is_least else ""
    rows = f"{least}**{entry.rows_in_time}**"
    return f"Rows in real time, p99 of a tick within what a frame leaves for two: {rows}."


def _quality(quality: Quality) -> Iterator[Sequence[str]]:
    yield "quality", quality.baseline, "this model", "delta or distance", "limit", "verdict"
    for metric in quality.metrics:
        numbers = (metric.baseline, metric.candidate, metric.value)
        why = f": {metric.detail}" if metric.value is None and metric.detail else ""
        said = f"{metric.verdict}{why}".replace("|", "\\|")
        yield (metric.name, *map(_number, numbers), metric.limit, said)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def verdict(quality: Quality | None) -> str:
    """The gate's result, with the headline measure."""
    if quality is None:
        return NOT_MEASURED
    if quality.note:
        return f"{NOT_MEASURED}: {quality.note}"
    said = "gate passed" if quality.is_passed else "**gate failed**"
    shown = quality.headline
    number = "" if shown is None else f"; {PREFERRED[shown.name]}: {_number(shown.score)}"
    return f"{said} against {quality.baseline}{number}"


def memory_words(memory: MeasuredMemory) -> str:
    """The memory of a model, as text."""
    parts = {
        "peak RSS of its process": memory.peak_rss,
        "device": memory.device,
        "weights": memory.weights,
        "state of a row": memory.state_per_row,
    }
    return ", ".join(f"{name} {size_words(size)}" for name, size in parts.items() if size is not None)


def size_words(size: float) -> str:
    """A size in bytes as text, in kB (10^3), MB (10^6) or GB (10^9)."""
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def spread_words(spread: Spread, digits: int) -> str:
    """The median as text, with the smallest and the largest value in brackets."""
    middle, low, high = (f"{value:.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return f"{middle} ({low} to {high})"


SUFFIXES = (".md", ".json", ".png")


def free_place(out: Path) -> Path:
    """``out``, or ``out-2``, ``out-3`` and so on: the first name without any of a card's files."""
    names = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not any(path.exists() for path in _paths(name)))


def can_draw() -> bool:
    """Whether the card gets a picture; without matplotlib the reason is printed."""
    try:
        load_matplotlib()
    except MissingExtraError as error:
        tell(f"no picture: {error}")
        return False
    return True


def write_card(card: Card, out: Path, *, has_figure: bool) -> list[Path]:
    """Write the card's files, ``out`` with each suffix; JSON first, so that later failures lose no data."""
    page, values, figure = _paths(out)
    write_new(values, card_to_json(card))
    if has_figure:
        draw(card, figure)
    write_new(page, render(card, figure.name if has_figure else None))
    return [page, values, *([figure] if has_figure else [])]


def _paths(out: Path) -> list[Path]:
    return [out.with_name(out.name + suffix) for suffix in SUFFIXES]


def check_absent(*paths: Path) -> None:
    """Raise ConfigError for the first of these files that exists."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists and is not written over; choose another place, or remove it")


def write_new(path: Path, text: str) -> None:
    """Write a new file, and the folders above it.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    check_absent(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def tell(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
