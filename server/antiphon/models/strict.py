"""Reading JSON objects strictly: every key is known, present where required, and of its type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antiphon.errors import CheckpointFormatError, hint
from antiphon.values import Types, ValueRule


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises CheckpointFormatError with the file's name."""
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

    ``where`` names the object in messages. A bool never passes for a number, and an int passes for a
    float. Raises CheckpointFormatError: not an object, unknown key (naming the nearest known one),
    missing key, wrong type.
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
    """Raise CheckpointFormatError unless ``value`` is of one of ``types``."""
    if fault := ValueRule(types).fault(value):
        raise CheckpointFormatError(f"{where} {fault.words}")
