"""Limits on changes of a measure, each with its reason, and the verdict as a table and as JSON."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.strict import read_record
from antiphon_quantize.advice.show import table
from antiphon_quantize.gate_measures import SPEED

if TYPE_CHECKING:
    from antiphon_quantize.gate_measures import Measure

_ASKED = re.compile(r"^(?P<measure>[^<>=]+?)\s*(?P<way><=|>=)\s*(?P<number>[-+0-9.einf]+)$")


@dataclass(frozen=True, slots=True)
class Limit:
    """The ``most`` or the ``least`` value of measures that match a glob pattern, and the reason."""

    measure: str
    why: str
    most: float | None = None
    least: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a measure may have this value; a value that is not finite never passes."""
        over = self.most is not None and value > self.most
        under = self.least is not None and value < self.least
        return math.isfinite(value) and not (over or under)

    def __str__(self) -> str:
        """The limit in a table."""
        parts = [f"<= {self.most:g}"] if self.most is not None else []
        parts += [f">= {self.least:g}"] if self.least is not None else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Row:
    """A measure and its limit, if it has one."""

    measure: Measure
    limit: Limit | None

    @property
    def failed(self) -> bool:
        """Whether the limit was missed."""
        value = self.measure.value
        return self.limit is not None and value is not None and not self.limit.allows(value)

    @property
    def word(self) -> str:
        """The result in the table: "PASS", "FAIL", "not measured", or "-" without a limit."""
        if self.measure.value is None:
            return "not measured"
        return "-" if self.limit is None else "FAIL" if self.failed else "PASS"


def judge_measures(measures: Iterable[Measure], limits: Sequence[Limit]) -> tuple[Row, ...]:
    """Each measure with the first limit whose pattern it matches."""
    return tuple(
        Row(measure, next((limit for limit in limits if fnmatchcase(measure.name, limit.measure)), None))
        for measure in measures
    )


def check_limits(limits: Iterable[Limit], where: str) -> None:
    """Raise CheckpointFormatError for a limit without a bound."""
    for limit in limits:
        if limit.most is None and limit.least is None:
            raise CheckpointFormatError(f"{where}: '{limit.measure}' has neither 'most' nor 'least'")


@dataclass(frozen=True, slots=True)
class _LimitsFile:
    gate: tuple[Limit, ...]


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; ``what`` names its purpose in errors.

    Raises ConfigError: unreadable, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_limits_file(path: Path) -> tuple[Limit, ...]:
    """The ``[[gate]]`` tables of a TOML file that contains nothing else.

    Raises:
        ConfigError: the file cannot be read. CheckpointFormatError: an unknown or missing key, or as
        :func:`check_limits`.
    """
    limits = read_record(_LimitsFile, read_toml(path, "limits"), str(path)).gate
    check_limits(limits, str(path))
    return limits


def common_limits() -> tuple[Limit, ...]:
    """The limits for measures without a limit in the recipe."""
    return read_limits_file(Path(str(resources.files("antiphon_quantize"))) / "recipes" / "gate.toml")


def parse_limit(text: str) -> Limit:
    """Read a limit such as "text kl<=0.01" or "* agreement>=0.9".

    Raises:
        ConfigError: the text is not a limit.
    """
    match = _ASKED.match(text.strip())
    try:
        number = float(match["number"]) if match is not None else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise ConfigError(f"'{text}' is no limit; one is written 'text kl<=0.01' or '* agreement>=0.9'")
    key = "most" if match["way"] == "<=" else "least"
    return Limit(match["measure"], "given on the command line", **{key: number})


@dataclass(frozen=True, slots=True)
class Verdict:
    """All measures of a candidate, compared with a baseline; ``baseline`` and ``candidate`` each name a model
    and its backend.
    """

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
        """The verdict as one line of text."""
        limited = [row for row in self.rows if row.limit is not None and row.measure.value is not None]
        if self.passed:
            return f"PASS: {self.candidate} keeps {len(limited)} limits compared with {self.baseline}"
        names = ", ".join(row.measure.name for row in self.failed)
        return (
            f"FAIL: {self.candidate} misses {len(self.failed)} of {len(limited)} limits compared with "
            f"{self.baseline}: {names}"
        )


SLOWER = 1.05
"""Ratio of step times beyond the difference that two equal models show between runs."""


def slower(verdict: Verdict) -> str | None:
    """A sentence if the candidate's step takes over :data:`SLOWER` times as long as the baseline's, else
    None.
    """
    measure = next((row.measure for row in verdict.rows if row.measure.name == SPEED), None)
    if measure is None or measure.value is None or measure.value <= SLOWER:
        return None
    return (
        f"slower: a step of {verdict.candidate} takes {measure.value:.2f} times as long here as one of "
        f"{verdict.baseline} ({measure.candidate or 0:.1f} ms, not {measure.baseline or 0:.1f}); it saves "
        "memory, not time; docs/optimisation.md has the recipes that are faster"
    )


def render(verdict: Verdict) -> str:
    """The verdict as text: the table of measures, the reasons of the missed limits, and a summary."""
    head = ("measure", "baseline", "candidate", "value", "limit", "", "")
    title = f"{verdict.candidate} compared with {verdict.baseline}: {verdict.material}"
    reasons = {
        f"{row.limit.measure} {row.limit}: {row.limit.why}": None for row in verdict.failed if row.limit
    }
    return "\n".join([title, "", table([head, *map(_cells, verdict.rows)]), "", *reasons, verdict.summary])


def _cells(row: Row) -> tuple[str, ...]:
    measure = row.measure
    numbers = []
    for value in (measure.baseline, measure.candidate, measure.value):
        if value is None or not math.isfinite(value) or float(value).is_integer():
            numbers.append("" if value is None else f"{value:,.0f}")
        else:
            numbers.append(f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}")
    return (measure.name, *numbers, "" if row.limit is None else str(row.limit), row.word, measure.detail)


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values; numbers that are not finite are "nan", "inf" or "-inf"."""
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
