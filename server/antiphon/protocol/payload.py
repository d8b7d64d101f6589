"""The two payloads that hold words: UTF-8 text, and one JSON object in UTF-8."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from antiphon.errors import ProtocolError

MAX_JSON_BYTES = 65_536
"""Far more than any event needs, and little enough that parsing one costs about a millisecond."""


def decode_text(data: bytes, what: str) -> str:
    """UTF-8 to text.

    Raises:
        ProtocolError: not UTF-8; ``what`` names the message, the position is given.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"{what} is not UTF-8 at byte {error.start} of {len(data)}: {error.reason}"
        ) from error


def encode_text(text: str, what: str) -> bytes:
    """Text to UTF-8.

    Raises:
        ProtocolError: a lone surrogate, which UTF-8 cannot carry.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{what} cannot be UTF-8 at character {error.start}: {error.reason}") from error


def decode_object(data: bytes, what: str) -> dict[str, Any]:
    """One JSON object, strictly: no NaN, no infinity, no lone surrogates, at most ``MAX_JSON_BYTES``.

    Raises:
        ProtocolError: it is not that; ``what`` names the message.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ProtocolError(f"{what} has {len(data)} bytes of JSON, the limit is {MAX_JSON_BYTES}")
    return parse_object(decode_text(data, what), what)


def parse_object(text: str, what: str) -> dict[str, Any]:
    """One JSON object, as strictly as :func:`decode_object`; its length is for the caller to bound.

    Raises:
        ProtocolError: it is not that; ``what`` names the message.
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # an escape may spell half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is a JSON {type(value).__name__}, an object is needed")
    return value


def encode_object(values: Mapping[str, Any], what: str) -> bytes:
    """An object as compact JSON in UTF-8, byte for byte what JavaScript's ``JSON.stringify`` writes.

    Whole numbers must be given as int for that: 1.0 is written ``1.0`` here and ``1`` there.

    Raises:
        ProtocolError: a value that JSON cannot carry.
    """
    try:
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} cannot be sent as JSON: {error}") from error


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is not a finite number")
    return value
