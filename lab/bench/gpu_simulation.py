"""Simulates ticks and frame latency of calls on a GPU from computed costs: an expectation, not a measurement.

    python -m lab.bench.gpu_simulation                     Moshi 7B in INT8: calls at full contexts, ticks

Calls at random phases send a frame every 80 ms. A tick takes every row that is ready, padded to its bucket,
and takes the time that ``lab.bench.gpu_costs`` computes. Nothing here was measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.pipeline import row_buckets
from antiphon.engine.sizing import MemoryFacts, most_rows
from antiphon.models.costs import CARDS, H100, H200, GpuCard
from lab.bench.gpu_costs import INT8, NODES, costs_of, stage_costs, tick_ms, work_of
from lab.bench.gpu_models import Form, Size, published_sizes, reads

FRAME_MS = 80.0
KV_FORMS = tuple(Form(8, form) for form in KVForm if form.is_rounded)
WEIGHT_FORMS = tuple(Form(bits, KVForm.INT8) for bits in (8, 4))
LIMITS_MS, FORM_S = (40.0, 80.0), 10.0
"""Limits on latency at p99, and the simulated seconds of calls for each number."""
CALLS = (1, 32, 64, 96, 128, 144)
TICKS = (("moshi-7b", 1), ("moshi-7b", 32), ("moshi-7b", 64), ("moshi-7b", 128), ("stt-1b", 512))
"""The ticks that the plan "first" of ``lab.bench.gpu_session`` times."""
TICK_LIMITS_S = (70, 60, 80, 90, 70)
LEAST_TICK_MS = 5.0
"""Minimum interval between the starts of live ticks: the engine's own default."""


def simulate(
    size: Size, calls: int, card: GpuCard, *, form: Form = INT8, seconds: float = 60.0
) -> tuple[float, float, float]:
    """Simulate calls; returns p50 and p99 of frame latency in ms, and the mean rows of a tick."""
    name, work = size.name.partition(",")[0], work_of(size, form)

    @cache
    def lasts_ms(rows: int) -> float:
        bucket = next(bucket for bucket in row_buckets(calls) if bucket >= rows)
        padding, full = (
            costs_of(name, work, bucket, 1, card),
            costs_of(name, work, rows, work.context, card),
        )
        rings_ms = full["lm"].bytes_ms - costs_of(name, work, rows, 1, card)["lm"].bytes_ms
        return tick_ms(padding, card) + rings_ms

    due_ms = np.sort(np.random.default_rng(0).random(calls)) * FRAME_MS
    now_ms, end_ms, latencies_ms, ticks = 0.0, 1000 * seconds, list[float](), 0
    while now_ms < end_ms:
        ready = np.flatnonzero(due_ms <= now_ms)
        if not ready.size:
            now_ms = float(due_ms.min())
            continue
        begun_ms, now_ms = now_ms, now_ms + lasts_ms(int(ready.size))
        latencies_ms += (now_ms - due_ms[ready]).tolist()
        due_ms[ready] += FRAME_MS
        now_ms, ticks = max(now_ms, begun_ms + LEAST_TICK_MS), ticks + 1
    p50, p99 = np.percentile(latencies_ms, (50, 99))
    return float(p50), float(p99), len(latencies_ms) / ticks


def rows_held(size: Size, form: Form, card: GpuCard) -> int:
    """Return the number of rows of ``--slots auto`` by memory, with full rings."""
    cost = reads(size, form)
    return most_rows(MemoryFacts(round(card.memory_bytes), cost.resident_bytes, cost.row_bytes))


def calls_within(size: Size, form: Form, card: GpuCard, limit_ms: float) -> int:
    """Return the largest number of calls at full contexts with a p99 latency below ``limit_ms``."""
    low, high = 0, rows_held(size, form, card)
    while low < high:
        middle = high if not low else (low + high + 1) // 2  # usually memory is the limit
        is_in_time = simulate(size, middle, card, form=form, seconds=FORM_S)[1] < limit_ms
        low, high = (middle, high) if is_in_time else (low, middle - 1)
    return low


def form_lines(forms: Sequence[Form], cards: Sequence[GpuCard] = CARDS) -> Iterator[str]:
    """Yield a line for each GPU with, for each form of Moshi 7B, the tick of one call and the numbers of
    calls."""
    size = published_sizes()["moshi-7b"]
    for card in cards:
        cells = []
        for form in forms:
            one_ms = tick_ms(stage_costs(size, 1, size.lm["context"], card, form), card)
            limits = (str(calls_within(size, form, card, limit_ms)) for limit_ms in LIMITS_MS)
            cells.append(f"{one_ms:.1f} | {rows_held(size, form, card)}, {', '.join(limits)}")
        yield f"| {card.name} | {' | '.join(cells)} |"


def call_lines() -> Iterator[str]:
    """Yield the lines of the table of call latencies."""
    size = published_sizes()["moshi-7b"]
    heads = [f"{card.name} p50 / p99 ms, rows" for card in (H200, H100)]
    yield f"| computed, not measured: calls | {' | '.join(heads)} |"
    yield "|---" * 3 + "|"
    for calls in CALLS:
        cells = []
        for card in (H200, H100):
            p50, p99, rows = simulate(size, calls, card)
            cells.append(f"{p50:.0f} / {p99:.0f}, {rows:.0f}")
        yield f"| {calls} | {' | '.join(cells)} |"


def tick_lines() -> Iterator[str]:
    """Yield the lines of the table of ticks of one row and of many."""
    heads = [f"{card.name} empty / half / full ms" for card in (H200, H100)]
    yield f"| computed, not measured: tick | kernels | {' | '.join(heads)} |"
    yield "|---" * 4 + "|"
    for name, rows in TICKS:
        size = published_sizes()[name]
        context = int(size.lm["context"])
        kernels = sum(nodes.of(rows, 8) for (model, _), nodes in NODES.items() if model == name)
        cells = [
            " / ".join(
                f"{tick_ms(stage_costs(size, rows, frames, card), card):.1f}"
                for frames in (1, context // 2, context)
            )
            for card in (H200, H100)
        ]
        yield f"| {name}, {rows} rows | {kernels} | {' | '.join(cells)} |"


def session_lines() -> Iterator[str]:
    """Yield the table of the steps of a GPU session that time ticks and run calls."""
    moshi = published_sizes()["moshi-7b"]
    most = {card: rows_held(moshi, INT8, card) for card in (H200, H100)}
    for (name, rows), limit_s in zip(TICKS, TICK_LIMITS_S, strict=True):
        size, context = published_sizes()[name], int(published_sizes()[name].lm["context"])
        cells = []
        for card in (H200, H100):
            held = min(rows, most[card]) if name == "moshi-7b" else rows
            times = (
                tick_ms(stage_costs(size, held, frames, card), card) for frames in (1, context // 2, context)
            )
            cells.append(", ".join(f"{time_ms:.1f}" for time_ms in times))
        held_words = f"; an H100 holds {most[H100]}" if rows > most[H100] and name == "moshi-7b" else ""
        model = "" if name == "moshi-7b" else f"{name}, "
        yield f"| `ticks`, {model}{rows} rows{held_words} | {limit_s} | {' | '.join(cells)} |"
    for calls, limit_s in ((64, 80), (96, 80), (128, 90)):
        cells = []
        for card in (H200, H100):
            p50, p99, _ = simulate(moshi, min(calls, most[card]), card, seconds=20.0)
            cells.append(f"{p50:.0f}, {p99:.0f}")
        held_words = f"; an H100 holds {most[H100]}" if calls > most[H100] else ""
        yield f"| `paced`, {calls} calls{held_words} | {limit_s} | {' | '.join(cells)} |"


def main() -> int:
    """Print all tables line by line: a simulation takes seconds."""
    forms = map(form_lines, (KV_FORMS, WEIGHT_FORMS))
    for lines in (tick_lines(), call_lines(), session_lines(), *forms):
        for line in lines:
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
