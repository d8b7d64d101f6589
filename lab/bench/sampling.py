"""Measures how long the numpy reference of docs/sampling.md takes to choose one token for every row.

python -m lab.bench.sampling
"""

from __future__ import annotations

import sys
import timeit

import numpy as np

from antiphon.models.sampling import sample

CASES = (
    ("audio, 2048 entries, top 250", 2048, 250, 0.8),
    ("audio, 512 entries, top 250", 512, 250, 0.8),
    ("text, 32000 pieces, top 25", 32000, 25, 0.7),
    ("text, 32000 pieces, greedy", 32000, 25, 0.0),
)
ROWS = (1, 8, 32)
CALLS, REPEATS = 20, 7


def call_us(vocabulary: int, topk: int, temperature: float, rows: int) -> float:
    """Measure the microseconds in which the reference samples ``rows`` tokens, the best of several runs."""
    logits = np.random.default_rng(0).standard_normal((rows, vocabulary)).astype(np.float32) * np.float32(4)
    seed = np.arange(rows)

    def call() -> None:
        sample(logits, temperature=temperature, topk=topk, seed=seed, step=seed, stream=1)

    return min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def main() -> int:
    """Print the table of docs/sampling.md."""
    print("| | " + " | ".join(f"{rows} row{'s' if rows > 1 else ''}" for rows in ROWS) + " |")
    print("|---|" + "---|" * len(ROWS))
    for name, vocabulary, topk, temperature in CASES:
        times = (call_us(vocabulary, topk, temperature, rows) for rows in ROWS)
        print(f"| {name} | " + " | ".join(f"{time:.0f}" for time in times) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
