"""Reads JSON objects strictly: every key must be known, present if required, and of its type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from antiphon.errors import CheckpointFormatError, hint
from antiphon.values import Types, ValueRule

T = TypeVar("T")


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object. Raises CheckpointFormatError with the file's name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointFormatError(f"{path} is not JSON: {error}") from error
    except OSError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointFormatError(f"{path} holds a JSON {type(values).__name__}, expected an object")
    return values


def check_keys(
    values: Any, where: str, *, required: Mapping[str, Types], optional: Mapping[str, Types] | None = None
) -> dict[str, Any]:
    """Check an object's keys and the types of their values, and return it as a dict.

    ``where`` names the object in messages. A bool is never accepted as a number; an int is accepted as a
    float. Raises CheckpointFormatError: not an object, unknown key (with the nearest known one), missing key,
    wrong type.
    """
    if not isinstance(values, Mapping):
        raise CheckpointFormatError(f"{where} is a {type(values).__name__}, expected an object")
    known = {**required, **(optional or {})}
    for key, value in values.items():
        if key not in known:
            raise CheckpointFormatError(f"{where} has an unknown key '{key}'{hint(key, known)}")
        check_type(value, known[key], f"{where}.{key}")
    missing = [key for key in required if key not in values]
    if missing:
        raise CheckpointFormatError(f"{where} lacks {', '.join(missing)}")
    return dict(values)


def check_type(value: Any, types: Types, where: str) -> None:
    """Raise CheckpointFormatError if ``value`` is of none of ``types``."""
    if fault := ValueRule(types).fault(value):
        raise CheckpointFormatError(f"{where} {fault.words}")


def read_record(kind: type[T], values: Any, where: str, joint: str = ".") -> T:
    """Make the dataclass ``kind`` from an object with a key for each field; fields with a default may be
    absent.

    Fields are JSON values, dataclasses, or tuples and mappings of either. In messages ``joint`` stands
    between ``where`` and the keys of inner objects. Raises CheckpointFormatError as :func:`check_keys`.
    """
    hints, required, optional = get_type_hints(kind), dict[str, Types](), dict[str, Types]()
    for item in fields(kind):  # type: ignore[arg-type]
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        (optional if has_default else required)[item.name] = _json_types(hints[item.name])
    read = check_keys(values, where, required=required, optional=optional)
    return kind(**{name: _field(hints[name], it, f"{where}{joint}{name}") for name, it in read.items()})


def _json_types(kind: Any) -> tuple[type, ...]:
    """The JSON types of a field's values."""
    if get_origin(kind) is UnionType:
        return tuple(each for part in get_args(kind) for each in _json_types(part))
    return ({tuple: list, Mapping: dict}.get(get_origin(kind), dict if is_dataclass(kind) else kind),)


def _field(kind: Any, value: Any, where: str) -> Any:
    """The value of a field whose own type was checked."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return read_record(kind, value, where)  # type: ignore[arg-type]
    if origin is UnionType:
        return None if value is None else _field(parts[0], value, where)
    if origin is tuple:
        return tuple(_part(parts[0], each, where) for each in value)
    if origin is Mapping:
        return {name: _part(parts[1], each, f"{where}.{name}") for name, each in value.items()}
    return value


def _part(kind: Any, value: Any, where: str) -> Any:
    if kind is not Any and not is_dataclass(kind):
        check_type(value, _json_types(kind), where)
    return _field(kind, value, where)
