"""The card as a PNG: quality against speed, the distribution of ticks, memory. Needs matplotlib, an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphon.errors import MissingExtraError
from antiphon_quantize.bench.card import Card
from antiphon_quantize.bench.quality import PREFERRED

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
    """Write the PNG.

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
    """What stands for quality on this card, as text, and its finite number for every model that has one.

    It is the first model's headline. The baseline's number is what the gate measured of it with the others,
    or 1 where the measure is how alike the two are.
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
