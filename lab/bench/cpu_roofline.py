"""Compares every stage with its lower bound, for ``lab.bench.cpu_models --only roofline``.

The lower bound of a stage is the sum over its nodes of the longer of two times: reading its weights and rings
at this machine's memory rate, and computing its products at the rate of their kind. Both rates are measured
in the same run. A stage whose weights remain in a cache from frame to frame can be below its bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lab.bench.cpu_profile import MODELS, QUICK_PROBE, Subject, subjects
from lab.bench.cpu_rates import Rates, measure_rates
from lab.bench.harness import Values, tell
from lab.bench.onnx_models import Setting
from lab.bench.onnx_work import take_profile
from lab.bench.turns import take_turns

ROWS: Final = (1, 2, 4, 8, 16)
PROFILED_ROWS: Final = 2
"""Number of profiled rows: neither 1, which has special routines, nor many."""


def measure_roofline(setting: Setting) -> Values:
    """Measure the machine's rates, and the lower bound and the time of every stage at each number of rows."""
    rates = measure_rates(setting.threads, **(QUICK_PROBE if setting.size == "small" else {}))
    stages = {}
    for model in MODELS:
        for subject in subjects(model, None, setting):
            tell(f"roofline {subject}")
            stages[str(subject)] = measure_stage(subject, setting, rates)
    return {"rates": rates.to_json(), "stages": stages, "spin": setting.spin}


def measure_stage(subject: Subject, setting: Setting, rates: Rates) -> Values:
    """Time a stage at each number of rows of ``ROWS``, alternately; ``floor_ms`` is the lower bound of its
    time.
    """
    file = subject.file
    works = take_profile(file, PROFILED_ROWS, setting.threads, runs=1).works()
    session = file.session(setting.threads, spin=setting.spin)
    graph = file.rows(session, max(ROWS))
    times = take_turns({str(rows): graph.prepare(range(rows)) for rows in ROWS}, setting.turns)
    floors_ms = {rows: 1000 * sum(work.least_s(rows, rates) for work in works) for rows in ROWS}
    return {str(rows): {**times[str(rows)], "floor_ms": floors_ms[rows]} for rows in ROWS}


def render(attempts: Mapping[str, Values]) -> str:
    """Return a section in Markdown; empty if no roofline was measured."""
    found = attempts.get("roofline")
    if found is None:
        return ""
    about = (
        f"What this machine reaches on as many threads: {Rates(**found['rates'])}. Threads "
        f"{'spin' if found.get('spin') else 'sleep'} where they wait. In each cell the floor "
        "and the median in ms, and the floor's share of it. A stage whose weights stay in a cache from frame "
        "to frame (tiny's do) can be below its floor."
    )
    head = f"| rows | {' | '.join(map(str, ROWS))} |\n" + "|---" * (1 + len(ROWS)) + "|"
    lines = [f"| {name} | {' | '.join(_cells(stage))} |" for name, stage in found["stages"].items()]
    return "\n\n".join(["## Roofline", about, "\n".join([head, *lines])])


def _cells(stage: Values) -> Sequence[str]:
    cells = [stage[str(rows)] for rows in ROWS]
    return [
        f"{cell['floor_ms']:.2f} / {cell['median_ms']:.2f} = {cell['floor_ms'] / cell['median_ms']:.0%}"
        for cell in cells
    ]
