"""The fields of a JSON event, read with their types checked and their path in every error."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.errors import FieldError

INVALID_TYPE, INVALID_VALUE = "invalid_type", "invalid_value"
MISSING = "missing_required_parameter"

MAX_SHOWN_CHARS = 40
"""Of a value that is refused, no more is repeated to its sender."""


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of an event: its values, the path that leads to it, and the event's own id.

    A field that is null counts as absent. Every method raises FieldError for what it cannot read.
    """

    values: Mapping[str, Any]
    path: str = ""
    event_id: str | None = None

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def error(self, name: str, code: str, words: str) -> FieldError:
        """The error for a field: its path, then ``words``."""
        param = self.path_of(name)
        return FieldError(f"{param} {words}", param=param, code=code, event_id=self.event_id)

    def path_of(self, name: str) -> str:
        """The path of a field, from the event on."""
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str, *, max_chars: int) -> str:
        """A string of 1 to ``max_chars`` characters that has to be there."""
        value = self.optional_text(name, max_chars=max_chars)
        if value is None:
            raise self.error(name, MISSING, "is missing")
        if not value:
            raise self.error(name, INVALID_VALUE, f"is empty, 1 to {max_chars} characters are needed")
        return value

    def optional_text(self, name: str, *, max_chars: int) -> str | None:
        """A string, which may be empty, or None."""
        value = self._of_type(name, str, "a string")
        if value is not None and len(value) > max_chars:
            raise self.error(name, INVALID_VALUE, f"has {len(value)} characters, the limit is {max_chars}")
        return None if value is None else str(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of these strings, which has to be there."""
        value = self.text(name, max_chars=1000)
        if value not in choices:
            raise self.error(name, INVALID_VALUE, f"is {shown(value)}, not one of {', '.join(choices)}")
        return value

    def optional_choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of these strings, or None."""
        return self.choice(name, choices) if name in self else None

    def whole(self, name: str, choices: Sequence[int], *, default: int) -> int:
        """One of these whole numbers."""
        value = self._of_type(name, int, "a whole number")
        if value is None:
            return default
        if isinstance(value, bool):  # JSON's true is a Python int
            raise self.error(name, INVALID_TYPE, "is true or false, a whole number is needed")
        if value not in choices:
            known = " or ".join(map(str, choices))
            raise self.error(name, INVALID_VALUE, f"is {shown(value)}, {known} is needed")
        return int(value)

    def number(self, name: str, low: float, high: float, *, default: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self._of_type(name, (int, float), "a number")
        if value is None:
            return default
        if isinstance(value, bool):
            raise self.error(name, INVALID_TYPE, "is true or false, a number is needed")
        if not low <= value <= high:
            raise self.error(name, INVALID_VALUE, f"is {shown(value)}, {low:g} to {high:g} are allowed")
        return float(value)

    def count(self, name: str, *, low: int, high: int, default: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.number(name, low, high, default=default)
        if value != int(value):
            raise self.error(name, INVALID_TYPE, f"is {value:g}, a whole number is needed")
        return int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._of_type(name, bool, "true or false")
        return default if value is None else bool(value)

    def object(self, name: str) -> Fields:
        """An object that has to be there."""
        found = self.optional_object(name)
        if found is None:
            raise self.error(name, MISSING, "is missing")
        return found

    def optional_object(self, name: str) -> Fields | None:
        """An object, or None."""
        value = self._of_type(name, dict, "an object")
        return None if value is None else Fields(value, self.path_of(name), self.event_id)

    def objects(self, name: str, *, most: int) -> tuple[Fields, ...]:
        """A list of at most ``most`` objects; absent is empty."""
        values = self._of_type(name, list, "a list") or []
        if len(values) > most:
            raise self.error(name, INVALID_VALUE, f"has {len(values)} entries, the limit is {most}")
        path = self.path_of(name)
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.error(
                    f"{name}[{index}]", INVALID_TYPE, f"is {kind_of(value)}, an object is needed"
                )
        return tuple(Fields(value, f"{path}[{index}]", self.event_id) for index, value in enumerate(values))

    def base64(self, name: str) -> bytes:
        """Bytes in base64, which have to be there."""
        value = self._of_type(name, str, "a string")
        if value is None:
            raise self.error(name, MISSING, "is missing")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(name, INVALID_VALUE, f"is not base64: {error}") from error

    def _of_type(self, name: str, kind: type | tuple[type, ...], needed: str) -> Any:
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.error(name, INVALID_TYPE, f"is {kind_of(value)}, {needed} is needed")
        return value


_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def kind_of(value: object) -> str:
    """What JSON calls a value."""
    return _KINDS.get(type(value), "null")


def shown(value: object) -> str:
    """A value as an error repeats it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
