"""Compares ticks measured on an H100 with the times that ``antiphon.models.costs`` computes for them. Its
constants are fitted to some of these ticks.

    python -m lab.bench.gpu_fit                            the table of docs/benchmarks/gpu.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.models.costs import H100
from lab.bench.gpu_costs import INT8, costs_of, tick_ms, work_of
from lab.bench.gpu_models import published_sizes
from lab.bench.gpu_timings import EMPTY_TICKS, TICKS, middle_frames

FILLS = ("full", "half", "empty")


@dataclass(frozen=True, slots=True)
class Point:
    """The median milliseconds of each stage and of the whole tick, with full, half full and empty rings.

    ``is_fitted``: constants are fitted to it; other points only check them.
    """

    model: str
    rows: int
    is_fitted: bool
    encode: tuple[float, float, float]
    lm: tuple[float, float, float]
    decode: tuple[float, float, float] | None
    tick: tuple[float, float, float]

    def ratios(self) -> dict[str, tuple[float, ...]]:
        """Return computed time divided by measured time, of each stage and of the tick, in the order of
        FILLS."""
        size = published_sizes()[self.model]
        work, context, found = work_of(size, INT8), int(size.lm["context"]), dict[str, tuple[float, ...]]()
        for place, begun in enumerate((context, context // 2, 1)):
            ticks = EMPTY_TICKS if FILLS[place] == "empty" else TICKS
            costs = costs_of(self.model, work, self.rows, min(context, middle_frames(begun, ticks)), H100)
            computed = {name: cost.ms for name, cost in costs.items()} | {"tick": tick_ms(costs, H100)}
            for name, value_ms in computed.items():
                found[name] = (*found.get(name, ()), value_ms / getattr(self, name)[place])
        return found


POINTS = (
    Point(
        "moshi-7b", 1, True,
        encode=(0.991, 1.110, 1.057), lm=(5.096, 5.028, 4.871), decode=(0.826, 0.826, 0.764),
        tick=(7.172, 7.459, 7.250),
    ),
    Point(
        "moshi-7b", 32, False,
        encode=(2.260, 2.078, 2.143), lm=(14.665, 10.862, 6.472), decode=(1.738, 1.741, 1.604),
        tick=(19.476, 15.220, 10.995),
    ),
    Point(
        "moshi-7b", 64, True,
        encode=(3.905, 3.055, 2.735), lm=(23.649, 16.031, 7.438), decode=(2.655, 2.656, 2.467),
        tick=(31.715, 22.980, 13.304),
    ),
    Point(
        "moshi-7b", 82, False,
        encode=(3.735, 3.510, 3.264), lm=(29.788, 20.052, 9.177), decode=(3.291, 3.292, 2.993),
        tick=(37.973, 28.014, 16.311),
    ),
    Point(
        "stt-1b", 512, False,
        encode=(14.431, 14.417, 12.944), lm=(11.946, 9.968, 4.737), decode=None,
        tick=(27.152, 24.884, 18.535),
    ),
)  # fmt: skip
"""NVIDIA H100 80GB HBM3, 26 November 2026, random weights, all in INT8: ``docs/benchmarks/gpu.md``."""


def lines() -> Iterator[str]:
    """Yield the lines of the table: how far each computed time is from the measured one."""
    yield "| rows | of the fit | encode | language model | decode | step |"
    yield "|---" * 6 + "|"
    for point in POINTS:
        ratios = point.ratios()
        cells = (
            ", ".join(f"{100 * (ratio - 1):+.0f}" for ratio in ratios[name]) if name in ratios else ""
            for name in ("encode", "lm", "decode", "tick")
        )
        model = "" if point.model == "moshi-7b" else f"{point.model}, "
        yield f"| {model}{point.rows} | {'yes' if point.is_fitted else 'no'} | {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    print(*lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
