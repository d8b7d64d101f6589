"""The report as a figure: frame latency over time and its distribution. Needs matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.errors import MissingExtraError
from antiphon_client.record import SessionRecord
from antiphon_client.report import latencies_ms


def load_matplotlib() -> Any:
    """The module ``matplotlib.figure``, which draws without any display.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("a plot", extra="plot", module="matplotlib") from error
    return matplotlib.figure


def plot_records(records: Sequence[SessionRecord], path: Path, *, title: str) -> None:
    """Write a PNG with each session's frame latency over time, and the distribution of all latencies.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(11, 4.5), layout="constrained")
    over_time, spread = figure.subplots(1, 2, width_ratios=(3, 2))
    frame_ms = records[0].frame_s * 1000
    _draw_over_time(over_time, records, frame_ms)
    _draw_spread(spread, np.concatenate([latencies_ms(record) for record in records]), frame_ms)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _draw_over_time(axes: Any, records: Sequence[SessionRecord], frame_ms: float) -> None:
    begin_s = min(record.connect_s for record in records)
    for record in records:
        axes.plot(record.timeline.sent_s - begin_s, latencies_ms(record), linewidth=0.7, alpha=0.6)
        lost = np.isnan(record.timeline.replied_s)
        lost[: record.delay_frames] = False
        axes.plot(record.timeline.sent_s[lost] - begin_s, np.zeros(int(lost.sum())), "rx", markersize=4)
    axes.axhline(frame_ms, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="time since the first connection [s]", ylabel="frame latency [ms]", ylim=(0, None))
    axes.set_title("each session (red crosses: no reply)", fontsize="medium")


def _draw_spread(axes: Any, latency_ms: Any, frame_ms: float) -> None:
    known = np.sort(latency_ms[~np.isnan(latency_ms)])
    if known.size:
        share_above = 1 - np.arange(known.size) / known.size
        axes.semilogy(known, share_above)
    axes.axvline(frame_ms, color="black", linestyle="--", linewidth=1, label=f"deadline, {frame_ms:.0f} ms")
    axes.axhline(0.01, color="grey", linestyle=":", linewidth=1, label="p99")
    axes.set(xlabel="frame latency [ms]", ylabel="share of frames above", xlim=(0, None))
    axes.set_title("all frames", fontsize="medium")
    axes.legend(fontsize="small")
