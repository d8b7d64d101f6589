"""Frozen dataclasses to plain JSON values and back, strictly."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from antiphon.errors import ConfigError, hint
from antiphon.values import ValueRule

T = TypeVar("T")

NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Numbers that JSON does not have, as the texts that stand for them."""


def to_plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses and mappings as objects, tuples as lists, NOT_FINITE as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(cls: type[T], values: Any, where: str) -> T:
    """The dataclass ``cls`` that :func:`to_plain` made ``values`` of; ``where`` names it in messages.

    Raises:
        ConfigError: not an object, an unknown key (naming the nearest one), one that is missing, or a value
            of another type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is a {type(values).__name__}, expected an object")
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(f"{where} has an unknown key '{key}'{hint(str(key), hints)}")
    if missing := [name for name in hints if name not in values]:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return cls(**{name: _value(kind, values[name], f"{where}.{name}") for name, kind in hints.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _value(arguments[0], value, where)
    if dataclasses.is_dataclass(kind):
        return from_plain(cast("type[Any]", kind), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {value!r:.80}, expected a list")
        return tuple(_value(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is not None:  # Mapping[str, X]
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r:.80}, expected an object")
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and value in NOT_FINITE:
        return float(value)
    rule = ValueRule(kind)
    if fault := rule.fault(value):
        raise ConfigError(f"{where} {fault.words}")
    return rule.converted(value)
