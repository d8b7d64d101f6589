"""Frame latency of calls on a card, simulated over computed costs: what to expect, not what there is.

    python -m lab.bench.gpu_simulation                     Moshi 7B in INT8, full contexts, 64 to 144 calls

Calls at random phases bring a frame every 80 ms. A tick takes every row that is ready, padded to its bucket,
and lasts as ``lab.bench.gpu_costs`` computes. Nothing here was measured.
"""

from __future__ import annotations

import sys
from functools import cache

import numpy as np

from antiphon.backends.torch.places import row_buckets
from antiphon.models.cards import H100, H200, CardRates
from lab.bench.gpu_costs import stage_costs, tick_ms
from lab.bench.gpu_models import Size, published_sizes

FRAME_MS = 80.0
CALLS = (1, 32, 64, 96, 128, 144)
LEAST_TICK_MS = 5.0
"""A live tick begins no sooner after the last one began: the engine's own default."""


def simulate(size: Size, calls: int, card: CardRates, *, seconds: float = 60.0) -> tuple[float, float, float]:
    """p50 and p99 of frame latency in ms, and the mean rows of a tick."""
    context = int(size.lm["context"])

    @cache
    def lasts_ms(rows: int) -> float:
        bucket = next(bucket for bucket in row_buckets(calls) if bucket >= rows)
        padding, full = stage_costs(size, bucket, 1, card), stage_costs(size, rows, context, card)
        rings_ms = full["lm"].bytes_ms - stage_costs(size, rows, 1, card)["lm"].bytes_ms
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


def main() -> int:
    """The table."""
    size = published_sizes()["moshi-7b"]
    print(
        "| computed, not measured: calls | "
        + " | ".join(f"{card.name} p50 / p99 ms, rows" for card in (H200, H100))
    )
    print("|---" * 3 + "|")
    for calls in CALLS:
        cells = []
        for card in (H200, H100):
            p50, p99, rows = simulate(size, calls, card)
            cells.append(f"{p50:.0f} / {p99:.0f}, {rows:.0f}")
        print(f"| {calls} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
