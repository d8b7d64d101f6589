"""Compares ticks measured on an H100 and an H200 with the times that ``antiphon.models.costs`` computes for
them. Its constants are fitted to some of the ticks on the H100. Those of the H200 differ only in the rate and
the size of its memory, which are from its datasheet.

    python -m lab.bench.gpu_fit                            the table of docs/benchmarks/gpu.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.models.costs import H100, H200, GpuCard
from lab.bench.gpu_costs import costs_of, tick_ms, work_of
from lab.bench.gpu_models import Form, published_sizes
from lab.bench.gpu_timings import EMPTY_TICKS, TICKS, middle_frames

FILLS = ("full", "half", "empty")


@dataclass(frozen=True, slots=True)
class Point:
    """The median milliseconds of each stage and of the whole tick, with full, half full and empty rings.

    ``is_fitted``: constants are fitted to it; other points only check them. ``bits`` are those of weights,
    keys and values.
    """

    model: str
    rows: int
    is_fitted: bool
    encode: tuple[float, float, float]
    lm: tuple[float, float, float]
    decode: tuple[float, float, float] | None
    tick: tuple[float, float, float]
    card: GpuCard = H100
    bits: int = 8

    def ratios(self) -> dict[str, tuple[float, ...]]:
        """Return computed time divided by measured time, of each stage and of the tick, in the order of
        FILLS."""
        size = published_sizes()[self.model]
        work = work_of(size, Form.of(is_int8=self.bits == 8))
        context, found = int(size.lm["context"]), dict[str, tuple[float, ...]]()
        for place, begun in enumerate((context, context // 2, 1)):
            ticks = EMPTY_TICKS if FILLS[place] == "empty" else TICKS
            frames = min(context, middle_frames(begun, ticks))
            costs = costs_of(self.model, work, self.rows, frames, self.card)
            computed = {name: cost.ms for name, cost in costs.items()} | {"tick": tick_ms(costs, self.card)}
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
    Point(
        "moshi-7b", 1, False, card=H200,
        encode=(0.992, 1.007, 0.931), lm=(4.410, 4.384, 4.207), decode=(0.840, 0.841, 0.762),
        tick=(6.460, 6.484, 6.143),
    ),
    Point(
        "moshi-7b", 64, False, card=H200,
        encode=(3.235, 3.125, 2.771), lm=(18.795, 13.239, 6.588), decode=(2.666, 2.669, 2.412),
        tick=(25.616, 20.067, 12.378),
    ),
    Point(
        "moshi-7b", 128, False, card=H200,
        encode=(4.735, 4.861, 4.199), lm=(33.653, 22.468, 9.301), decode=(4.576, 4.567, 3.953),
        tick=(44.146, 33.576, 18.678),
    ),
    Point(
        "moshi-7b", 32, False, card=H200, bits=16,
        encode=(2.463, 2.253, 2.003), lm=(18.012, 13.088, 7.400), decode=(1.757, 1.756, 1.602),
        tick=(23.232, 17.764, 11.484),
    ),
)  # fmt: skip
"""NVIDIA H100 80GB HBM3, 26 November 2026, and NVIDIA H200, 27 November 2026; random weights:
``docs/benchmarks/gpu.md``."""


def lines() -> Iterator[str]:
    """Yield the lines of the table: how far each computed time is from the measured one."""
    yield "| GPU | rows | of the fit | encode | language model | decode | step |"
    yield "|---" * 7 + "|"
    for point in POINTS:
        ratios = point.ratios()
        cells = (
            ", ".join(f"{100 * (ratio - 1):+.0f}" for ratio in ratios[name]) if name in ratios else ""
            for name in ("encode", "lm", "decode", "tick")
        )
        model = "" if point.model == "moshi-7b" else f"{point.model}, "
        rows = f"{model}{point.rows}" + (", bfloat16" if point.bits == 16 else "")
        yield f"| {point.card.name} | {rows} | {'yes' if point.is_fitted else 'no'} | {' | '.join(cells)} |"


def main() -> int:
    """Print the table."""
    print(*lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
