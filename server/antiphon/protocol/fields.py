"""Reads the fields of a JSON event: checks their types, and names their path in every error.

Structs of msgspec would be shorter, but their errors lack the value and the documented texts, and they do not
treat null as an absent field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.errors import FieldError
from antiphon.values import ValueRule

INVALID_TYPE, INVALID_VALUE = "invalid_type", "invalid_value"
MISSING, UNSUPPORTED_VALUE = "missing_required_parameter", "unsupported_value"

TEXT, OBJECT, LIST, FLAG = ValueRule(str), ValueRule(dict), ValueRule(list), ValueRule(bool)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of an event: its values, the path that leads to it, and the event's own id.

    A field that is null counts as absent. Every method raises FieldError for a value that it cannot read.
    """

    values: Mapping[str, Any]
    path: str = ""
    event_id: str | None = None

    def __contains__(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.values.get(name) is not None

    def error(self, name: str, code: str, words: str) -> FieldError:
        """The error for a field; its message is the field's path and then ``words``."""
        param = self.path_of(name)
        return FieldError(f"{param} {words}", param=param, code=code, event_id=self.event_id)

    def path_of(self, name: str) -> str:
        """The path of a field, starting at the event."""
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str, *, max_chars: int) -> str:
        """A required string of 1 to ``max_chars`` characters."""
        value = self.optional_text(name, max_chars=max_chars)
        if value is None:
            raise self.error(name, MISSING, "is missing")
        if not value:
            raise self.error(name, INVALID_VALUE, f"is empty, 1 to {max_chars} characters are needed")
        return value

    def optional_text(self, name: str, *, max_chars: int) -> str | None:
        """An optional string, which may be empty."""
        value = self._value(name, TEXT)
        if value is not None and len(value) > max_chars:
            raise self.error(name, INVALID_VALUE, f"has {len(value)} characters, the limit is {max_chars}")
        return None if value is None else str(value)

    def name_or_id(self, name: str, *, max_chars: int) -> str | None:
        """A string, or the ``id`` of an object, not empty; None if the field is absent."""
        if name not in self:
            return None
        if isinstance(self.values[name], dict):
            return self.object(name).text("id", max_chars=max_chars)
        return self.text(name, max_chars=max_chars)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """A required string, one of ``choices``."""
        value: str = self.text(name, max_chars=1000)
        self._value(name, ValueRule(str, choices=tuple(choices)))
        return value

    def optional_choice(self, name: str, choices: Sequence[str]) -> str | None:
        """An optional string, one of ``choices``."""
        return self.choice(name, choices) if name in self else None

    def whole(self, name: str, choices: Sequence[int], *, default: int) -> int:
        """A whole number, one of ``choices``."""
        return int(self._value(name, ValueRule(int, choices=tuple(choices)), default))

    def number(self, name: str, low: float, high: float, *, default: float) -> float:
        """A number from ``low`` to ``high``."""
        return float(self._value(name, ValueRule(float, low, high), default))

    def count(self, name: str, *, low: int, high: int, default: int) -> int:
        """A whole number from ``low`` to ``high``, which may be written as 3.0."""
        value = self.number(name, low, high, default=default)
        if value != int(value):
            raise self.error(name, INVALID_TYPE, f"is {value:g}, a whole number is needed")
        return int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false."""
        return bool(self._value(name, FLAG, default))

    def object(self, name: str) -> Fields:
        """A required field that is an object."""
        found = self.optional_object(name)
        if found is None:
            raise self.error(name, MISSING, "is missing")
        return found

    def optional_object(self, name: str) -> Fields | None:
        """An optional field that is an object."""
        value = self._value(name, OBJECT)
        return None if value is None else Fields(value, self.path_of(name), self.event_id)

    def objects(self, name: str, *, most: int) -> tuple[Fields, ...]:
        """A list of at most ``most`` objects; empty if absent."""
        values = self._value(name, LIST) or []
        if len(values) > most:
            raise self.error(name, INVALID_VALUE, f"has {len(values)} entries, the limit is {most}")
        path = self.path_of(name)
        for index, value in enumerate(values):
            if fault := OBJECT.fault(value):
                raise self.error(f"{name}[{index}]", INVALID_TYPE, fault.words)
        return tuple(Fields(value, f"{path}[{index}]", self.event_id) for index, value in enumerate(values))

    def base64(self, name: str) -> bytes:
        """Required bytes in base64, at least one; bytes that are already decoded are returned unchanged."""
        value = self.values.get(name)
        value = value if isinstance(value, bytes) else self._value(name, TEXT)
        if value is None:
            raise self.error(name, MISSING, "is missing")
        try:
            data = value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(name, INVALID_VALUE, f"is not base64: {error}") from error
        if not data:
            raise self.error(name, INVALID_VALUE, "is empty")
        return data

    def _value(self, name: str, rule: ValueRule, default: Any = None) -> Any:
        value = self.values.get(name)
        if value is None:
            return default
        if fault := rule.fault(value):
            raise self.error(name, INVALID_TYPE if fault.is_type else INVALID_VALUE, fault.words)
        return value
