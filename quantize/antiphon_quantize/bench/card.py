"""The benchmark card: what was measured, of what, on what, by which command. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError
from antiphon_quantize.bench.plain import from_plain, to_plain
from antiphon_quantize.bench.quality import Quality
from antiphon_quantize.bench.ticks import TickPlan

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``format`` describes its files; ``file_bytes`` is those of its weights."""

    name: str
    kind: str
    parameters: int
    format: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """``count`` is GPUs in use, or processors this process may run on; ``threads`` those of the model."""

    device: str
    count: int
    driver: str
    threads: int


@dataclass(frozen=True, slots=True)
class QuantizationFacts:
    """``method`` and ``calibration`` as text, "none" where there is none."""

    method: str
    calibration: str


@dataclass(frozen=True, slots=True)
class SubjectFacts:
    """What is known of a model on a backend once it is loaded. ``versions`` are by package."""

    model: ModelFacts
    hardware: HardwareFacts
    quantization: QuantizationFacts
    backend: str
    dtype: str
    frame_ms: float
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """One number a turn: the median over all turns, the least and the largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RowsResult:
    """What came out at one number of rows.

    Percentiles are of all paced ticks of all turns, ``samples_ms``; ``turn_p50_ms`` is how the median moved
    from turn to turn. ``late`` ticks ended over a frame's length after their frame was complete.
    ``frames_per_s`` and ``realtime_factor``, seconds of audio answered in a second, count all rows
    together, back to back. ``speed_ratio`` is frames_per_s over the baseline's (without one: the first
    model's) of the same turn.
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
    """Bytes. ``peak_rss`` is the most a process held that runs this model and nothing else; ``device`` the
    most it reserved on its GPU. What the backend says of itself: ``weights`` and ``state_per_row``."""

    peak_rss: int
    device: int | None
    weights: int | None
    state_per_row: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of a card. ``rows_in_time`` is a lower bound where the most rows measured were in time."""

    label: str
    facts: SubjectFacts
    results: tuple[RowsResult, ...]
    rows_in_time: int
    rows_in_time_is_least: bool
    memory: MeasuredMemory
    quality: Quality | None


@dataclass(frozen=True, slots=True)
class Card:
    """All models of a run. ``load_average`` is the machine's before the run, over one minute."""

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


def card_from_json(text: str, where: str) -> Card:
    """The card that :func:`card_to_json` wrote; ``where`` names it in messages.

    Raises:
        ConfigError: it is none, or one of another schema.
    """
    try:
        values: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if isinstance(values, Mapping) and values.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(f"{where} has schema {values['schema']}, this version reads {SCHEMA}")
    return from_plain(Card, values, where)


def read_card(path: Path) -> Card:
    """Read a card's JSON file. Raises ConfigError when it cannot be read or is none."""
    try:
        return card_from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
