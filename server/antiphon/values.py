"""The rules for values, their type, range and choices: one check and one wording for all inputs.

Options, sampling parameters, queries, JSON events, manifests and messages between processes each raise their
own exception with the text of a :class:`Fault`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Types: TypeAlias = type | tuple[type, ...]

MAX_SHOWN_CHARS: Final = 40
"""Maximum number of characters of a rejected value that an error repeats."""

LARGEST: Final = sys.float_info.max
"""Limit above which a number counts as not finite, like NaN."""

NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

_WHOLE: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(\d{1,19}(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a value is invalid: it is the end of a sentence that begins with the value's name."""

    words: str
    is_type: bool
    """Whether its type is wrong."""


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The rule for a value.

    An int is accepted as a float, a bool is never a number, and a float has to be finite. ``also`` lists
    accepted values outside of the range, each with its meaning ("" if it needs no explanation).
    """

    types: Types
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    also: Mapping[Any, str] = field(default_factory=dict)

    def fault(self, value: Any) -> Fault | None:
        """The reason why ``value`` is invalid, or None."""
        if isinstance(value, str) and value in self.also:
            return None
        if not self._is_of_kind(value):
            return Fault(f"is {shown(value)}, {self.needed} is needed", is_type=True)
        if isinstance(value, int | float) and not isinstance(value, bool):
            fits = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
            if not (fits and -LARGEST <= value <= LARGEST) and value not in self.also:
                return Fault(
                    f"is {shown(value)}, {self.range or 'a finite number is needed'}{self._others}",
                    is_type=False,
                )
        if self.choices and value not in self.choices:
            return Fault(f"is {shown(value)}, not one of {', '.join(map(str, self.choices))}", is_type=False)
        return None

    def _is_of_kind(self, value: Any) -> bool:
        """Whether ``value``, from JSON, has one of the types."""
        if isinstance(value, bool):
            return bool in self.kinds
        return isinstance(value, self.kinds) or (float in self.kinds and isinstance(value, int))

    def converted(self, value: Any) -> Any:
        """A valid value in the rule's type: whole numbers become floats if the rule is for floats."""
        return float(value) if float in self.kinds and isinstance(value, int) else value

    @property
    def kinds(self) -> tuple[type, ...]:
        """The accepted Python types."""
        return self.types if isinstance(self.types, tuple) else (self.types,)

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are valid."""
        return int in self.kinds and float not in self.kinds

    @property
    def is_optional(self) -> bool:
        """Whether None is valid."""
        return type(None) in self.kinds

    @property
    def needed(self) -> str:
        """The accepted types as text, for messages."""
        words = [NAMES.get(kind, kind.__name__) for kind in self.kinds]
        return " or ".join([*words, *(repr(value) for value in self.also if isinstance(value, str))])

    @property
    def range(self) -> str:
        """The range as text, "" if every value is valid."""
        if self.low is None and self.high is None:
            return ""
        if self.high is None:
            return f"at least {plain(self.low)} is needed"
        if self.low is None:
            return f"at most {plain(self.high)} is allowed"
        return f"{plain(self.low)} to {plain(self.high)} are allowed"

    @property
    def _others(self) -> str:
        return "".join(f", or {value} for {means}" for value, means in self.also.items() if means)


def shown(value: object) -> str:
    """The text of a value in messages of errors: a number or a string, truncated if long; else its type."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return NAMES.get(type(value), f"a {type(value).__name__}")
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def plain(number: float | None) -> str:
    """A bound in decimal notation, without a fraction of zeros."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def read_number(text: str, *, is_whole: bool) -> int | float | None:
    """The number in ``text``, or None.

    Digits in JavaScript's notation; underscores, spaces, nan and inf are invalid.
    """
    if is_whole:
        return int(text) if _WHOLE.fullmatch(text) else None
    return float(text) if _DECIMAL.fullmatch(text) else None
