"""The values of a benchmark card (models, machine, command and results), and their JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The plan of a measurement: ascending row counts, seconds of paced ticks per turn, and the number of
    turns of each model.

    Every turn starts with fresh rows and ``lead_frames`` uncounted ticks, so that contexts have the same
    length in every turn of every model.
    """

    rows: tuple[int, ...]
    seconds: float
    turns: int
    lead_frames: int

    def __post_init__(self) -> None:
        """Raise ConfigError for an empty plan."""
        if not self.rows or min(self.rows) < 1 or list(self.rows) != sorted(set(self.rows)):
            raise ConfigError(f"rows {list(self.rows)} must be ascending whole numbers from 1")
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"seconds = {self.seconds:g}; a turn needs more than 0")
        if self.turns < 1:
            raise ConfigError(f"turns = {self.turns} is below 1, the minimum")
        if self.lead_frames < 0:
            raise ConfigError(f"lead_frames = {self.lead_frames} is below 0, the minimum")


NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Texts for numbers that JSON cannot represent."""


def to_plain(value: Any) -> Any:
    """A value for JSON: dataclasses and mappings as objects, tuples as lists, infinities and NaN as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


PREFERRED: Final[Mapping[str, str]] = {
    "answers loss": "questions answered correctly",
    "text agreement": "text tokens chosen as by the baseline",
    "codec stoi loss": "STOI of the codec",
    "codec codes": "codes equal to the baseline's",
}
"""Measures of the gate that may represent overall quality, the best first, and their labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measure of the quality gate.

    ``value`` is the difference or the ratio of ``baseline`` and ``candidate``; these are None if the measure
    compares the two models directly. ``value`` is None if the measure was not taken. ``limit`` and
    ``verdict`` are text.
    """

    name: str
    value: float | None
    baseline: float | None
    candidate: float | None
    limit: str
    verdict: str
    detail: str

    @property
    def score(self) -> float | None:
        """The candidate's number if there is one, else the comparison ``value``."""
        return self.value if self.candidate is None else self.candidate


@dataclass(frozen=True, slots=True)
class Quality:
    """The gate's result for a model, compared with ``baseline`` on ``material``.

    ``note`` is the reason for a missing verdict.
    """

    baseline: str
    is_passed: bool | None
    material: str
    metrics: tuple[Metric, ...]
    note: str

    @property
    def headline(self) -> Metric | None:
        """The first measure of :data:`PREFERRED` that was measured."""
        known = {metric.name: metric for metric in self.metrics if metric.score is not None}
        return next((known[name] for name in PREFERRED if name in known), None)


def not_judged(baseline: str, why: str) -> Quality:
    """The quality of a model that the gate did not judge, with the reason."""
    return Quality(baseline, None, "", (), why)


def quality_from_json(values: Any, baseline: str, where: str) -> Quality:
    """The quality in the output of ``antiphon gate --json``; ``where`` names the output in messages.

    Raises:
        ConfigError: the file was not written by the gate.
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
    """Read a file that ``antiphon gate --json`` wrote. Raises ConfigError if it is unreadable."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return quality_from_json(values, baseline, str(path))


SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model; ``format`` describes its files, ``file_bytes`` is the size of its weights."""

    name: str
    kind: str
    parameters: int
    format: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """The hardware that runs a model.

    ``count`` is the number of GPUs in use, or of processors available to this process; ``threads`` is the
    number of threads of the model.
    """

    device: str
    count: int
    driver: str
    threads: int


@dataclass(frozen=True, slots=True)
class QuantizationFacts:
    """The ``method`` that rounded the weights and its ``calibration``, as text; "none" if there is none."""

    method: str
    calibration: str


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """Facts of a model on a backend after loading. ``versions`` maps packages to their versions."""

    model: ModelFacts
    hardware: HardwareFacts
    quantization: QuantizationFacts
    backend: str
    dtype: str
    frame_ms: float
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """A measure over all turns: the median, the smallest and the largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RowsResult:
    """A model's results at one number of rows.

    Percentiles are over all paced ticks of all turns, ``samples_ms``; ``turn_p50_ms`` is the median's range
    over the turns. ``late`` counts ticks that ended over a frame's length after their frame was complete.
    ``frames_per_s`` and ``realtime_factor`` (seconds of audio answered per second) are measured with ticks
    back to back and count all rows together. ``speed_ratio`` is ``frames_per_s`` divided by the value of the
    baseline in the same turn, or of the first model if there is no baseline.
    """

    rows: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    turn_p50_ms: Spread
    late: int
    frames_per_s: Spread
    realtime_factor: float
    speed_ratio: Spread | None
    samples_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Memory of a measured model, in bytes.

    ``peak_rss`` is the largest memory of a process that runs only this model; ``device`` the largest
    reservation on its GPU. ``weights`` and ``state_per_row`` are reported by the backend.
    """

    peak_rss: int
    device: int | None
    weights: int | None
    state_per_row: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a benchmark card says about one model. If the largest measured number of rows was in time,
    ``rows_in_time`` is a lower bound.
    """

    label: str
    facts: SubjectFacts
    results: tuple[RowsResult, ...]
    rows_in_time: int
    rows_in_time_is_least: bool
    memory: MeasuredMemory
    quality: Quality | None


@dataclass(frozen=True, slots=True)
class Card:
    """A benchmark card: all models of a run.

    ``load_average`` is the machine's load average over one minute, before the run.
    """

    schema: int
    started_at: str
    command: str
    system: str
    memory_bytes: int
    load_average: float
    plan: TickPlan
    baseline: str | None
    entries: tuple[Entry, ...]


def card_to_json(card: Card) -> str:
    """The card as indented JSON."""
    return json.dumps(to_plain(card), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
