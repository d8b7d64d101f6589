"""Reads the opset of an ONNX file from its protobuf, without a library.

A file is a ``ModelProto`` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto): field 8 contains the
operator sets, field 7 the graph with its weights, which is skipped.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, Final

from antiphon.errors import CheckpointFormatError

_OPSET_IMPORT: Final = 8
_DOMAIN, _VERSION = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT: Final = 10

MAX_ENTRY_BYTES: Final = 4096
"""Longest operator set, a domain and a version."""

MAX_FIELD_BYTES: Final = 2**31
"""Largest message of protobuf."""


def read_opset(path: Path) -> int:
    """The version of ONNX's own operators that a file uses.

    Raises:
        CheckpointFormatError: the file is not an ONNX graph.
    """
    with path.open("rb") as file:
        while (key := _varint(file, path)) is not None:
            if key >> 3 == _OPSET_IMPORT and key & 7 == _BYTES:
                version = _opset_version(io.BytesIO(file.read(_length(file, path))), path)
                if version is not None:
                    return version
            else:
                _skip(file, key & 7, path)
    raise CheckpointFormatError(f"{path} is no ONNX graph: it names no opset")


def _opset_version(entry: BinaryIO, path: Path) -> int | None:
    """The version in an ``OperatorSetIdProto`` if it is in ONNX's own domain."""
    version, domain = None, b""
    while (key := _varint(entry, path)) is not None:
        value = _varint(entry, path)
        if key >> 3 == _VERSION:
            version = value
        elif key >> 3 == _DOMAIN:
            domain = entry.read(min(value or 0, MAX_ENTRY_BYTES))
    return version if domain in (b"", b"ai.onnx") else None


def _skip(file: BinaryIO, kind: int, path: Path) -> None:
    if kind == _VARINT:
        _varint(file, path)
    elif kind == _BYTES:
        file.seek(_length(file, path, MAX_FIELD_BYTES), 1)
    elif kind in _FIXED_BYTES:
        file.seek(_FIXED_BYTES[kind], 1)
    else:
        raise CheckpointFormatError(f"{path} is no ONNX graph: it has a field of kind {kind}")


def _length(file: BinaryIO, path: Path, most: int = MAX_ENTRY_BYTES) -> int:
    """The length of a field as stated in the file, which may be wrong."""
    length = _varint(file, path) or 0
    if length > most:
        raise CheckpointFormatError(
            f"{path} is no ONNX graph: it states a field of {length} bytes, the limit is {most}"
        )
    return length


def _varint(file: BinaryIO, path: Path) -> int | None:
    """The next number, or None at the end of the file."""
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * index
        if byte[0] < 0x80:
            return value
    raise CheckpointFormatError(f"{path} is no ONNX graph: it has a number of over {_LONGEST_VARINT} bytes")
