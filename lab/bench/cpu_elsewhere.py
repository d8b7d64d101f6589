"""Computes the time of a frame of `tiny` on processors that are not at hand, one core each.

    python -m lab.bench.cpu_elsewhere

Each stage is timed here on one thread, and compared with its lower bound (``lab.bench.cpu_roofline``). On
another processor its time is the lower bound there, divided by the share of it that is reached here, at most
1. The rates of another processor are 80 % of the peak by its documents (80 % is an assumption), and all its
cores are busy. So the time of operators without products scales like products and reads, and weights that a
cache holds here count as read from a cache there. Sockets and Opus are not included. Nothing printed for
another processor is a measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from lab.bench.cpu_profile import SHIPPED, subjects
from lab.bench.cpu_rates import Rates, measure_rates
from lab.bench.cpu_roofline import PROFILED_ROWS
from lab.bench.harness import Values, tell, warn_if_busy
from lab.bench.onnx_models import Setting
from lab.bench.onnx_work import Work, take_profile
from lab.bench.turns import take_turns

REACHED: Final = 0.8
"""Share of a peak that products of large matrices, or a long read, are assumed to reach."""
FRAME_MS: Final = 80.0


@dataclass(frozen=True, slots=True)
class Core:
    """One core of a processor by its documents: its clock, its multiplications per cycle (128-bit
    instructions by their throughput), and its part of the memory's bytes per second."""

    name: str
    clock_ghz: float
    float32_per_cycle: int
    int8_per_cycle: int
    gb_s: float

    @property
    def rates(self) -> Rates:
        """The rates that it is assumed to reach."""
        hertz = REACHED * self.clock_ghz * 1e9
        return Rates(
            bytes_s=REACHED * self.gb_s * 1e9,
            float32_s=hertz * self.float32_per_cycle,
            bfloat16_s=0.0,
            int8_s=hertz * self.int8_per_cycle,
            int8_unit="dot products",
        )


CORES: Final = (
    # Arm's guide of the Cortex-A76: two FMLA or SDOT a cycle. LPDDR4X-4267, 32 bits, by four cores.
    Core("Raspberry Pi 5 (Cortex-A76, 2.4 GHz)", 2.4, 8, 32, 17.1 / 4),
    # Arm's guide of the Neoverse V1: four a cycle, without SMMLA. Eight channels of DDR5-4800 by 64 cores.
    Core("Graviton3 (Neoverse V1, 2.6 GHz)", 2.6, 16, 64, 307.2 / 64),
    # https://dougallj.github.io/applecpu/firestorm.html: four a cycle. LPDDR4X-4266, 128 bits, by four cores.
    Core("Apple M1, a performance core (3.06 GHz)", 3.06, 16, 64, 68.3 / 4),
)


@dataclass(frozen=True, slots=True)
class StageHere:
    """A stage on this machine: the work of its nodes, and its measured milliseconds by the number of rows."""

    works: Sequence[Work]
    measured_ms: Mapping[int, float]

    def on(self, rates: Rates, rows: int, here: Rates) -> float:
        """Return the computed milliseconds with the rates of another processor."""
        share = min(1.0, 1000 * self._least_s(rows, here) / self.measured_ms[rows])
        return 1000 * self._least_s(rows, rates) / share

    def _least_s(self, rows: int, rates: Rates) -> float:
        return sum(work.least_s(rows, rates) for work in self.works)


def measure_stages(rows: Sequence[int], turns: int) -> list[StageHere]:
    """Measure the stages of the shipped model on one thread: the CPU time of a frame."""
    found = []
    for subject in subjects(SHIPPED, None, Setting(Path(), "full", 1, False, turns)):
        tell(f"measure {subject}")
        works = take_profile(subject.file, PROFILED_ROWS, 1, runs=1).works()
        graph = subject.file.rows(subject.file.session(1), max(rows))
        times = take_turns({str(n): graph.prepare(range(n)) for n in rows}, turns)
        found.append(StageHere(works, {n: times[str(n)]["median_ms"] for n in rows}))
    return found


def with_rows(ms: Mapping[int, float]) -> Values:
    """Return the milliseconds of a frame by the number of rows, and the rows whose step takes 80 ms, on the
    line through the last two."""
    (few, few_ms), (many, many_ms) = list(ms.items())[-2:]
    each_ms = max((many_ms - few_ms) / (many - few), 1e-6)
    return {"ms": dict(ms), "rows": int(many + (FRAME_MS - many_ms) / each_ms)}


def measured(stages: Sequence[StageHere], rows: Sequence[int]) -> Values:
    """Return the times of this machine."""
    return with_rows({n: sum(stage.measured_ms[n] for stage in stages) for n in rows})


def computed(stages: Sequence[StageHere], rates: Rates, here: Rates, rows: Sequence[int]) -> Values:
    """Return the times of a processor with other rates."""
    return with_rows({n: sum(stage.on(rates, n, here) for stage in stages) for n in rows})


def render(results: Mapping[str, Values], rows: Sequence[int]) -> str:
    """Return the table in Markdown."""
    head = ["one core", *(f"{n} row{'s' * (n > 1)}, ms" for n in rows), "rows in 80 ms"]
    cells = [
        [name, *(f"{found['ms'][n]:.1f}" for n in rows), str(found["rows"])]
        for name, found in results.items()
    ]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure here, and print what is computed for other processors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 8, 16], help="rows [4 8 16]")
    parser.add_argument("--turns", type=int, default=40, help="rounds of measurement [%(default)s]")
    options = parser.parse_args(argv)
    rows = sorted(set(options.batch))
    if len(rows) < 2:
        parser.error(f"--batch needs two different numbers of rows, got {rows}")
    warn_if_busy()
    torch.set_num_threads(1)
    here = measure_rates(1)
    tell(f"here, one thread: {here}")
    stages = measure_stages(rows, options.turns)
    results = {"this machine, measured": measured(stages, rows)}
    results |= {core.name: computed(stages, core.rates, here, rows) for core in CORES}
    print(render(results, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
