"""Simulates calls that share pages of keys and values while new callers always wait, and counts the calls and
the evicted calls.

    python -m lab.bench.kv_pages        Moshi 7B in INT8 on an H100, by overcommit and mean length of a call

Simulated, not measured. Lengths of calls are exponential; the rules are those of the engine: new callers wait
unless more pages are free than there are calls, and if a call finds no page the youngest calls end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.page_pool import PAGE_SLOTS

FRAME_S = 0.08
WINDOW_PAGES = 47
WHOLE_CALLS = 82
"""Calls of an H100 with whole windows: docs/models.md."""
SETTLING_STEPS = 2000


@dataclass(frozen=True, slots=True)
class SharedPages:
    """The mean number of calls, and the evicted calls per thousand that ended."""

    calls: float
    evicted_per_1000: float


def simulate(overcommit: float, minutes: float, *, steps: int = 40_000, seed: int = 0) -> SharedPages:
    """Simulate ``steps`` periods of 5.12 s, in which each call takes one page until its window is full."""
    random = np.random.default_rng(seed)
    pages, slots = WHOLE_CALLS * WINDOW_PAGES, int(WHOLE_CALLS * overcommit)
    survival = np.exp(-PAGE_SLOTS * FRAME_S / (60 * minutes))
    held: NDArray[np.int64] = np.ones(0, np.int64)  # pages of each call, the oldest first
    counts, evicted, ended = [], 0, 0
    for step in range(steps):
        lives = random.random(held.size) < survival
        ended += int(np.count_nonzero(~lives))
        held = np.minimum(held[lives] + 1, WINDOW_PAGES)
        kept = int(np.searchsorted(held.cumsum(), pages, side="right"))
        evicted += held.size - kept
        held = held[:kept]
        room = (pages - int(held.sum()) - held.size) // 2  # a new caller takes a page, and needs one free
        held = np.append(held, np.ones(max(0, min(slots - kept, room)), np.int64))
        if step >= SETTLING_STEPS:
            counts.append(held.size)
    return SharedPages(float(np.mean(counts)), 1000 * evicted / max(1, evicted + ended))


def main() -> int:
    """Print the table."""
    for minutes in (1, 4, 10, 60):
        for overcommit in (1.0, 1.3, 1.6, 2.0, 3.0):
            found = simulate(overcommit, minutes)
            sys.stdout.write(
                f"{minutes:3d} min, overcommit {overcommit:.1f}: {found.calls:4.0f} calls, "
                f"{found.evicted_per_1000:6.2f} of 1,000 evicted\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
