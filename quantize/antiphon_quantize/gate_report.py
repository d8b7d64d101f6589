"""A verdict, as a table for people and as JSON for machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from antiphon_quantize.gate_limits import Row
from antiphon_quantize.gate_measures import SPEED


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was measured of a candidate, compared with a baseline. Both are given as name and backend."""

    baseline: str
    candidate: str
    material: str
    rows: tuple[Row, ...]

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows whose limit was missed."""
        return tuple(row for row in self.rows if row.failed)

    @property
    def passed(self) -> bool:
        """Whether every limit was kept."""
        return not self.failed

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        limited = [row for row in self.rows if row.limit is not None and row.measure.value is not None]
        if self.passed:
            return f"PASS: {self.candidate} keeps {len(limited)} limits compared with {self.baseline}"
        names = ", ".join(row.measure.name for row in self.failed)
        return (
            f"FAIL: {self.candidate} misses {len(self.failed)} of {len(limited)} limits compared with "
            f"{self.baseline}: {names}"
        )


SLOWER = 1.05
"""A ratio of steps beyond what two equal models differ by between runs."""


def slower(verdict: Verdict) -> str | None:
    """A sentence for a candidate whose step takes longer than the baseline's; None for the others."""
    measure = next((row.measure for row in verdict.rows if row.measure.name == SPEED), None)
    if measure is None or measure.value is None or measure.value <= SLOWER:
        return None
    return (
        f"slower: a step of {verdict.candidate} takes {measure.value:.2f} times as long here as one of "
        f"{verdict.baseline} ({measure.candidate or 0:.1f} ms, not {measure.baseline or 0:.1f}); it saves "
        "memory, not time; docs/optimisation.md has the recipes that are faster"
    )


def render(verdict: Verdict) -> str:
    """The table, the reasons of the limits that were missed, and the verdict."""
    head = ("measure", "baseline", "candidate", "value", "limit", "", "")
    lines = [head, *(_cells(row) for row in verdict.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    table = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        ).rstrip()
        for line in lines
    ]
    title = f"{verdict.candidate} compared with {verdict.baseline}: {verdict.material}"
    reasons = {
        f"{row.limit.measure} {row.limit}: {row.limit.why}": None for row in verdict.failed if row.limit
    }
    return "\n".join([title, "", *table, "", *reasons, verdict.summary])


def _cells(row: Row) -> tuple[str, ...]:
    measure = row.measure
    numbers = [
        "" if value is None else _number(value)
        for value in (measure.baseline, measure.candidate, measure.value)
    ]
    return (measure.name, *numbers, "" if row.limit is None else str(row.limit), row.word, measure.detail)


def _number(value: float) -> str:
    if not math.isfinite(value) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}"


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values; JSON has no number that is not finite: it is "nan", "inf" or "-inf"."""
    return {
        "baseline": verdict.baseline,
        "candidate": verdict.candidate,
        "material": verdict.material,
        "passed": verdict.passed,
        "measures": [_row(row) for row in verdict.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    measure, limit = row.measure, row.limit
    limits = limit and {"most": _json(limit.most), "least": _json(limit.least), "why": limit.why}
    return {
        "measure": measure.name,
        "value": _json(measure.value),
        "baseline": _json(measure.baseline),
        "candidate": _json(measure.candidate),
        "detail": measure.detail,
        "limit": limits,
        "verdict": row.word,
    }


def _json(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(float(value))
