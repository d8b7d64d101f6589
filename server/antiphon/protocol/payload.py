"""Decodes and encodes the two kinds of text payload: UTF-8 text, and one JSON object in UTF-8."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from antiphon.errors import ProtocolError

MAX_JSON_BYTES = 65_536
"""Maximum number of bytes of a JSON object, far more than any event needs."""

MAX_VALUES: Final = 2000
"""Maximum number of values of one object, at all depths. A value costs up to 0.6 microseconds, a key 0.3."""

MAX_STRUCTURE_BYTES: Final = 32_768
"""Maximum number of brackets, commas and quotes, inside and outside of strings, in an object with more than
``MAX_VALUES`` of them.
"""

MAX_NUMBER_CHARS: Final = 64
"""Maximum number of digits of an integer, whose parsing time grows with the square of its length."""

_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[{,'))
_STRING: Final = re.compile(rb'"[^"]*"')


def decode_text(data: bytes, what: str) -> str:
    """Decode UTF-8 bytes to text.

    Raises:
        ProtocolError: not UTF-8; the message has ``what`` and the position.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"{what} is not UTF-8 at byte {error.start} of {len(data)}: {error.reason}"
        ) from error


def decode_object(data: bytes, what: str) -> dict[str, Any]:
    """Decode one JSON object, strictly: no NaN, no infinity, no lone surrogates, at most ``MAX_JSON_BYTES``.

    Raises:
        ProtocolError: the bytes are not such an object; ``what`` names the message in the error.
    """
    if len(data) > MAX_JSON_BYTES:
        raise ProtocolError(f"{what} has {len(data)} bytes of JSON, the limit is {MAX_JSON_BYTES}")
    return parse_object(decode_text(data, what), what)


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Parse one JSON object, as strictly as :func:`decode_object`; the caller limits its length.

    Values are counted before they are built, so the time depends only on the length of the text.

    Raises:
        ProtocolError: the text is not such an object, or has more than ``MAX_VALUES`` values; ``what``
            names the message in the error.
    """
    _check_values(text, what)
    try:
        value = json.loads(text, parse_int=_integer, parse_constant=_refuse_constant)
        _check_plain(value, has_escapes="\\" in text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is a JSON {type(value).__name__}, an object is needed")
    return value


def encode_object(values: Mapping[str, Any], what: str) -> bytes:
    """Encode an object as compact JSON in UTF-8, byte for byte equal to JavaScript's ``JSON.stringify``.

    Whole numbers must be ints, because JavaScript writes 1.0 as ``1``, and this function as ``1.0``.

    Raises:
        ProtocolError: JSON cannot represent a value.
    """
    try:
        return object_text(values, what).encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{what} cannot be sent as JSON: {error}") from error


def object_text(values: Mapping[str, Any], what: str) -> str:
    """The JSON of :func:`encode_object` as text, for messages that are text.

    Raises:
        ProtocolError: JSON cannot represent a value.
    """
    try:
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} cannot be sent as JSON: {error}") from error


def _check_values(text: str, what: str) -> None:
    """Limit the values of a JSON text: each follows a bracket, a comma or a key."""
    if len(text) <= MAX_VALUES:
        return
    data = text.encode(errors="surrogatepass")
    codes = np.frombuffer(data, np.uint8)
    found = sum(int(np.count_nonzero(codes == code)) for code in b"[{,")
    if found <= MAX_VALUES:
        return
    if found > MAX_STRUCTURE_BYTES:
        raise ProtocolError(f"{what} has {found} brackets and commas, the limit is {MAX_STRUCTURE_BYTES}")
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # each remaining quote starts or ends a string
    structure = data.translate(None, _NOT_STRUCTURE)
    if len(structure) > MAX_STRUCTURE_BYTES:
        raise ProtocolError(
            f"{what} has {len(structure)} brackets, commas and quotes, the limit is {MAX_STRUCTURE_BYTES}"
        )
    values = len(_STRING.sub(b"", structure))
    if values > MAX_VALUES:
        raise ProtocolError(f"{what} has {values} values, the limit is {MAX_VALUES}")


def _check_plain(value: Any, *, has_escapes: bool) -> None:
    """Check that numbers are finite and that escapes have no half of a surrogate pair, which UTF-8 cannot
    encode.

    Raises:
        ValueError: another value.
    """
    pending = [value]
    while pending:
        one = pending.pop()
        kind = type(one)
        if kind is float:
            if not math.isfinite(one):
                raise ValueError(f"{one} is not a finite number")
        elif kind is list:
            pending += one
        elif kind is dict:
            pending += one.values()
            if has_escapes:
                pending += one
        elif has_escapes and kind is str:
            one.encode()


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS:
        raise ValueError(f"a number of {len(digits)} characters, the limit is {MAX_NUMBER_CHARS}")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")
