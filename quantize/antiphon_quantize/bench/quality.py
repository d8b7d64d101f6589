"""The verdict of the quality gate on a model: shown in the report, read from ``antiphon gate --json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.errors import ConfigError
from antiphon_quantize.bench.plain import NOT_FINITE

PREFERRED: Final[Mapping[str, str]] = {
    "answers loss": "questions answered rightly",
    "text agreement": "text tokens chosen as by the baseline",
    "codec stoi loss": "STOI of the codec",
    "codec codes": "codes equal to the baseline's",
}
"""Measures of the gate that may stand for quality as a whole, the best first, and what they are called."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of the gate. ``baseline`` and ``candidate`` are the two numbers that ``value``, a difference
    or a ratio, is made of; None where it compares the two directly. ``value`` None: not measured.
    ``limit`` and ``verdict`` are text."""

    name: str
    value: float | None
    baseline: float | None
    candidate: float | None
    limit: str
    verdict: str
    detail: str

    @property
    def score(self) -> float | None:
        """The model's own number: the candidate's where there are two, else the comparison itself."""
        return self.value if self.candidate is None else self.candidate


@dataclass(frozen=True, slots=True)
class Quality:
    """A model held against ``baseline``, on ``material``. ``note``: why it could not be judged, if so."""

    baseline: str
    is_passed: bool | None
    material: str
    metrics: tuple[Metric, ...]
    note: str

    @property
    def headline(self) -> Metric | None:
        """The first of :data:`PREFERRED` that was measured."""
        known = {metric.name: metric for metric in self.metrics if metric.score is not None}
        return next((known[name] for name in PREFERRED if name in known), None)


def not_judged(baseline: str, why: str) -> Quality:
    """A quality that is not known."""
    return Quality(baseline, None, "", (), why)


def quality_from_json(values: Any, baseline: str, where: str) -> Quality:
    """The quality that ``antiphon gate --json`` wrote; ``where`` names it in messages.

    Raises:
        ConfigError: no gate wrote this.
    """
    try:
        metrics = tuple(_metric(row) for row in values["measures"])
        return Quality(baseline, bool(values["passed"]), str(values["material"]), metrics, "")
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where} is not what antiphon gate --json writes: {error!r}") from error


def _metric(row: Mapping[str, Any]) -> Metric:
    limit = row["limit"] or {}
    bounds = {">=": _number(limit.get("least")), "<=": _number(limit.get("most"))}
    return Metric(
        name=str(row["measure"]),
        value=_number(row["value"]),
        baseline=_number(row["baseline"]),
        candidate=_number(row["candidate"]),
        limit=" ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None),
        verdict=str(row["verdict"]),
        detail=str(row["detail"]),
    )


def _number(value: Any) -> float | None:
    if value is not None and value not in NOT_FINITE and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return None if value is None else float(value)


def read_quality(path: Path, baseline: str) -> Quality:
    """Read a file that ``antiphon gate --json`` wrote. Raises ConfigError when it cannot be."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return quality_from_json(values, baseline, str(path))
