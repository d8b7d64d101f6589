"""Limits: how far a measure may go, and why; from a recipe, from our own table, or from the command line."""

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
from antiphon.models.strict import check_keys, check_type

if TYPE_CHECKING:
    from antiphon_quantize.gate_measures import Measure

_ASKED = re.compile(r"^(?P<measure>[^<>=]+?)\s*(?P<way><=|>=)\s*(?P<number>[-+0-9.einf]+)$")


@dataclass(frozen=True, slots=True)
class Limit:
    """The ``most`` or the ``least`` that measures of a glob pattern may be, and the reason."""

    measure: str
    why: str
    most: float | None = None
    least: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a measure may have this value; one that is not finite never may, whichever way it errs."""
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
        """What a table says of it."""
        if self.measure.value is None:
            return "not measured"
        return "-" if self.limit is None else "FAIL" if self.failed else "PASS"


def judge_measures(measures: Iterable[Measure], limits: Sequence[Limit]) -> tuple[Row, ...]:
    """Each measure with the first limit whose pattern it matches."""
    return tuple(
        Row(measure, next((limit for limit in limits if fnmatchcase(measure.name, limit.measure)), None))
        for measure in measures
    )


def read_limits(tables: Any, where: str) -> tuple[Limit, ...]:
    """The limits of a ``[[gate]]`` array of tables.

    Raises:
        CheckpointFormatError: an unknown or missing key, a limit that limits nothing, or one that is NaN.
    """
    check_type(tables, list, where)
    limits = []
    for table in tables:
        check_type(table, dict, where)
        found = check_keys(
            table,
            where,
            required={"measure": str, "why": str},
            optional={"most": float, "least": float},
        )
        if not {"most", "least"} & found.keys():
            raise CheckpointFormatError(f"{where}: '{found['measure']}' has neither 'most' nor 'least'")
        if any(math.isnan(found.get(key, 0)) for key in ("most", "least")):
            raise CheckpointFormatError(f"{where}: the limit of '{found['measure']}' is nan")
        limits.append(Limit(**found))
    return tuple(limits)


def read_limits_file(path: Path) -> tuple[Limit, ...]:
    """The ``[[gate]]`` tables of a TOML file that holds nothing else.

    Raises:
        ConfigError: it cannot be read.
        CheckpointFormatError: as :func:`read_limits`.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the limits {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return read_limits(check_keys(table, str(path), required={"gate": list}, optional={})["gate"], str(path))


def common_limits() -> tuple[Limit, ...]:
    """The limits for whatever a recipe says nothing of."""
    return read_limits_file(Path(str(resources.files("antiphon_quantize"))) / "recipes" / "gate.toml")


def parse_limit(text: str) -> Limit:
    """A limit as it is typed: "text kl<=0.01", "* agreement>=0.9".

    Raises:
        ConfigError: it is none.
    """
    match = _ASKED.match(text.strip())
    try:
        number = float(match["number"]) if match is not None else None
    except ValueError:
        number = None
    if match is None or number is None:
        raise ConfigError(f"'{text}' is no limit; one is written 'text kl<=0.01' or '* agreement>=0.9'")
    key = "most" if match["way"] == "<=" else "least"
    return Limit(match["measure"], "asked for on the command line", **{key: number})
