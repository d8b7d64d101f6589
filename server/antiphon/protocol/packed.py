"""Reads msgpack maps whose first key is the type, the envelope of Kyutai's speech servers, and packs arrays
of floats.

Their servers write ``{"type": name, field: value, ...}`` (serde's internally tagged enums through rmp-serde).
The order of other fields has no meaning, and unknown fields are ignored, as in serde.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np

from antiphon.arrays import FloatArray
from antiphon.errors import ProtocolError

MAX_FIELDS: Final = 16
"""Maximum number of entries of a map, far more than any message has; a larger map is rejected before it is
built.
"""

MAX_CONTAINERS: Final = 16
"""Maximum number of arrays and maps in one message, unknown fields included: no message needs more than
three.
"""

MAX_ITEMS: Final = 24_576
"""Maximum number of items of all arrays in one message that are not floats of one precision: a second of
samples. Building an object for an item takes 45 nanoseconds.
"""

MIN_FLOATS: Final = 256
"""Shortest array that is read without an object for each item."""

INT64: Final = range(-(2**63), 2**63)

_FLOAT32: Final = 0xCA
_PACKED_FLOAT: Final = np.dtype([("tag", "u1"), ("value", ">f4")])
_PACKED: Final = {_FLOAT32: _PACKED_FLOAT, 0xCB: np.dtype([("tag", "u1"), ("value", ">f8")])}


def unpack_map(data: bytes) -> dict[str, Any]:
    """Unpack the one map in ``data``, whose keys are text.

    The content is checked before the map is built: lengths that the data cannot fill, more than ``MAX_ITEMS``
    items in arrays, more than ``MAX_CONTAINERS`` arrays and maps, and extension types are refused.

    Long arrays of floats of one precision become float32 ``[N]``; only the length of the data limits N.

    Raises:
        ProtocolError: the data is not such a map.
    """
    try:
        _check_complete(data)
        value = _unpack(data)
    except ValueError as error:  # msgpack raises no other class for bytes; its message may be empty
        raise ProtocolError(
            f"{len(data)} bytes are no msgpack: {str(error) or type(error).__name__}"
        ) from error
    if not isinstance(value, dict):
        raise ProtocolError(f"a msgpack {type(value).__name__} was sent, a map is needed")
    return value


def _unpack(data: bytes) -> Any:
    """One value, with no bytes after it.

    Raises:
        ValueError: it exceeds a limit, or is no msgpack.
    """
    count = _Count()
    options: Any = {
        "raw": False,
        "strict_map_key": True,
        "max_map_len": min(len(data), MAX_FIELDS),
        "max_array_len": min(len(data), MAX_ITEMS),
        "list_hook": count.array,
        "object_hook": count.map,
        "ext_hook": _no_extension,
    }
    if len(data) < MIN_FLOATS or not 0x80 <= data[0] <= 0x8F:
        return msgpack.unpackb(data, **options)
    unpacker = msgpack.Unpacker(max_buffer_size=len(data), **options)
    unpacker.feed(data)
    values: dict[str, Any] = {}
    for _ in range(unpacker.read_map_header()):
        key = unpacker.unpack()
        if not isinstance(key, str):
            raise ValueError(f"{type(key).__name__} is not allowed for map key when strict_map_key=True")
        at = unpacker.tell()
        if (floats := _floats_at(data, at)) is None:
            values[key] = unpacker.unpack()
        else:
            values[key], size = floats
            unpacker.read_bytes(size)
    if unpacker.tell() != len(data):
        raise ValueError("unpack(b) received extra data.")
    return count.map(values)


def _check_complete(data: bytes) -> None:
    """Skip one value without building it.

    An array takes memory for its stated length at once. A thousand nested arrays that state ``MAX_ITEMS``
    each would take 1 GB before the data is found too short; complete data holds as many items as it states.

    Raises:
        ValueError: the value does not end.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData as error:
        raise ValueError("incomplete input") from error


@dataclass(slots=True)
class _Count:
    """The counts of a message so far."""

    containers: int = 0
    items: int = 0

    def array(self, values: list[Any]) -> list[Any]:
        """Count an array."""
        self.items += len(values)
        if self.items > MAX_ITEMS:
            raise ValueError(f"its arrays have more than {MAX_ITEMS} items")
        self._container()
        return values

    def map(self, values: dict[str, Any]) -> dict[str, Any]:
        """Count a map."""
        self._container()
        return values

    def _container(self) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise ValueError(f"it has more than {MAX_CONTAINERS} arrays and maps")


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} of {len(data)} bytes")


def field_of(values: dict[str, Any], name: str, what: str) -> Any:
    """The value of a required field.

    Raises:
        ProtocolError: the field is missing.
    """
    if name not in values:
        raise ProtocolError(f"{what} lacks '{name}'")
    return values[name]


def read_text(values: dict[str, Any], name: str, what: str) -> str:
    """The value of a required text field.

    Raises:
        ProtocolError: the field is missing, or of another type.
    """
    value = field_of(values, name, what)
    if not isinstance(value, str):
        raise ProtocolError(f"{what}.{name} is a {type(value).__name__}, text is needed")
    return value


def read_int(values: dict[str, Any], name: str, what: str, bounds: range = INT64) -> int:
    """The value of a required field that is a whole number within ``bounds``.

    Raises:
        ProtocolError: the field is missing, of another type, or out of range.
    """
    value = field_of(values, name, what)
    if type(value) is not int:
        raise ProtocolError(f"{what}.{name} is a {type(value).__name__}, a whole number is needed")
    if value not in bounds:
        raise ProtocolError(f"{what}.{name} is {value}, it must be {bounds[0]} to {bounds[-1]}")
    return value


def read_number(values: dict[str, Any], name: str, what: str) -> float:
    """The value of a required field that is a finite number.

    Raises:
        ProtocolError: the field is missing, of another type, or not finite.
    """
    value = field_of(values, name, what)
    if type(value) not in (int, float):
        raise ProtocolError(f"{what}.{name} is a {type(value).__name__}, a number is needed")
    if not math.isfinite(value):
        raise ProtocolError(f"{what}.{name} is {value}, a finite number is needed")
    return float(value)


def read_bytes(values: dict[str, Any], name: str, what: str) -> bytes:
    """The value of a required field that is bytes: msgpack's own, or an array of numbers from 0 to 255.

    Raises:
        ProtocolError: the field is missing, or has another type.
    """
    value = field_of(values, name, what)
    if isinstance(value, bytes):
        return value
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        try:
            return bytes(value)
        except ValueError as error:
            raise ProtocolError(f"{what}.{name} holds numbers beyond 0 to 255") from error
    raise ProtocolError(f"{what}.{name} is a {type(value).__name__}, bytes or an array of bytes is needed")


def read_floats(values: dict[str, Any], name: str, what: str) -> FloatArray:
    """The value of a required field that is an array of finite numbers, whole or not, as float32 ``[N]``.

    Raises:
        ProtocolError: the field is missing, or has another type.
    """
    value = field_of(values, name, what)
    if isinstance(value, np.ndarray):
        return finite(value, f"{what}.{name}")
    if not isinstance(value, list):
        raise ProtocolError(f"{what}.{name} is a {type(value).__name__}, an array of numbers is needed")
    if not set(map(type, value)) <= {int, float}:
        wrong = next(item for item in value if type(item) not in (int, float))
        raise ProtocolError(f"{what}.{name} holds a {type(wrong).__name__}, numbers are needed")
    with np.errstate(over="ignore"):
        return finite(np.frombuffer(array("d", value)).astype(np.float32), f"{what}.{name}")


def finite(samples: FloatArray, what: str) -> FloatArray:
    """Check samples and return them.

    Raises:
        ProtocolError: a sample is NaN, infinite, or out of the range of float32.
    """
    if not np.isfinite(samples).all():
        index = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise ProtocolError(f"{what}[{index}] is {samples[index]}, finite numbers are needed")
    return samples


def array_header(count: int) -> bytes:
    """The header of a msgpack array of ``count`` items, in its shortest form."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 2**16 else b"\xdd" + count.to_bytes(4, "big")


def pack_floats(samples: FloatArray) -> bytes:
    """A msgpack array of float32, as written by rmp-serde and by ``use_single_float``."""
    items = np.empty(samples.size, _PACKED_FLOAT)
    items["tag"] = _FLOAT32
    items["value"] = samples
    return array_header(samples.size) + items.tobytes()


def unpack_floats(data: bytes, start: int) -> FloatArray | None:
    """The array of floats that fills ``data`` from ``start`` on, read without an object for each number.

    The result is None if the floats have different precisions; :func:`unpack_map` then reads the array.
    Doubles outside of the range of float32 become infinite.
    """
    floats = _floats_at(data, start, least=0)
    return floats[0] if floats is not None and start + floats[1] == len(data) else None


def _floats_at(data: bytes, start: int, *, least: int = MIN_FLOATS) -> tuple[FloatArray, int] | None:
    """The array of at least ``least`` floats at ``start``, and its length in bytes."""
    if start >= len(data):
        return None
    width = {0xDC: 2, 0xDD: 4}.get(data[start], 0)
    first = start + 1 + width
    count = int.from_bytes(data[start + 1 : first], "big") if width else data[start] & 0x0F
    layout = _PACKED.get(data[first]) if first < len(data) else None
    if layout is None or count < least or data[start:first] != array_header(count):
        return None
    if len(data) < first + count * layout.itemsize:
        return None
    items = np.frombuffer(data, layout, count, first)
    if not (items["tag"] == data[first]).all():
        return None
    with np.errstate(over="ignore"):
        return items["value"].astype(np.float32), first + count * layout.itemsize - start
