"""Parses a form with files (``multipart/form-data``, RFC 7578) as it arrives: bytes in, pieces of parts out.

The parser keeps only a partial delimiter, so a form of any length takes little memory. The length of text
between the parts is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from antiphon.errors import ProtocolError

MAX_PARTS: Final = 64
"""Maximum number of parts of a form, far more than the fields of any client."""

MAX_HEAD_BYTES: Final = 8192
"""Maximum number of bytes of one part's headers: a name, a file's name and a type."""

MAX_PARAMETERS: Final = 16
"""Maximum number of parameters of one header; clients send only a name, a file's name and a charset."""

MAX_BOUNDARY_BYTES: Final = 70
"""Longest boundary (RFC 2046)."""

MAX_PREAMBLE_BYTES: Final = 8192
"""Maximum number of bytes before the first boundary, where RFC 2046 allows any text; clients send none."""

FORM: Final = "multipart/form-data"

_PARAMETER: Final = re.compile(r';[ \t]*([^\s;="]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))')
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the part with this name. ``is_first``: the part begins with this piece, which may be
    empty.

    ``is_file``: the part has a file's name.
    """

    name: str
    is_file: bool
    data: bytes
    is_first: bool


def boundary_of(content_type: str) -> bytes:
    """The boundary of a Content-Type.

    Raises:
        ProtocolError: the type is not that of a form, or has no boundary.
    """
    kind, parameters = _parameters(content_type)
    if kind != FORM:
        raise ProtocolError(f"the body is {kind[:40] or 'of no stated type'}, {FORM} is needed")
    if "boundary" not in parameters:
        raise ProtocolError(
            f"the Content-Type is {FORM} without a boundary; leave this header to the HTTP library"
        )
    boundary = parameters["boundary"].encode("latin-1", "replace")
    if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES:
        raise ProtocolError(f"a boundary of {len(boundary)} bytes, 1 to {MAX_BOUNDARY_BYTES} are needed")
    return boundary


class FormReader:
    """A parser of one form. ``is_complete`` is true after the last delimiter."""

    def __init__(self, boundary: bytes) -> None:
        """Parse a form whose parts are separated by ``boundary``."""
        self.is_complete = False
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter has no line break before it
        self._parts = 0
        self._has_begun = False
        self._name: str | None = None  # of the current part
        self._is_file = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that these bytes complete; bytes after the last delimiter are ignored.

        Raises:
            ProtocolError: the form is malformed, or has too many parts or too long headers.
        """
        if self.is_complete:
            return
        self._buffer += data
        while not self.is_complete:
            if self._name is not None:
                piece = self._take_data()
                if piece is not None:
                    yield piece
                if self._name is not None:
                    return
            begun = self._begin_part()
            if begun is None:
                return
            yield begun

    def check_complete(self) -> None:
        """Check that the form is complete.

        Raises:
            ProtocolError: the form is incomplete.
        """
        if not self._has_begun:
            raise ProtocolError(self._no_boundary())
        if not self.is_complete:
            raise ProtocolError("this form ends before its last boundary")

    def _take_data(self) -> Piece | None:
        """The bytes that certainly belong to the part; the delimiter that ends it stays in the buffer."""
        at = self._buffer.find(self._delimiter)
        end = at if at >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        data, name = bytes(self._buffer[:end]), self._name
        del self._buffer[:end]
        if at >= 0:
            self._name = None
        return Piece(name or "", self._is_file, data, is_first=False) if data else None

    def _begin_part(self) -> Piece | None:
        """Read a delimiter and headers; None while they are incomplete, or at the end of the form."""
        if not self._has_begun and not self._skip_preamble():
            return None
        buffer, start = self._buffer, len(self._delimiter)
        if buffer[start : start + 2] == b"--":
            self.is_complete = True
            self._buffer.clear()
            return None
        line_end = buffer.find(b"\r\n", start)
        if line_end >= 0 and buffer[start:line_end].strip(b" \t"):
            raise ProtocolError("a line of this form begins with its boundary and continues with other text")
        end = buffer.find(b"\r\n\r\n", line_end) if line_end >= 0 else -1
        if end < 0 or end - start > MAX_HEAD_BYTES:
            if len(buffer) - start > MAX_HEAD_BYTES:
                raise ProtocolError(f"a part with more than {MAX_HEAD_BYTES} bytes of headers")
            return None
        if self._parts == MAX_PARTS:
            raise ProtocolError(f"a form of more than {MAX_PARTS} parts, which is the limit")
        self._parts += 1
        self._name, self._is_file = _name_of(bytes(buffer[line_end:end]))
        del buffer[: end + 4]
        return Piece(self._name, self._is_file, b"", is_first=True)

    def _skip_preamble(self) -> bool:
        """Skip the text before the first delimiter; returns whether the delimiter was received."""
        at = self._buffer.find(self._delimiter)
        if at < 0 and len(self._buffer) > MAX_PREAMBLE_BYTES:
            raise ProtocolError(self._no_boundary())
        if at >= 0:
            del self._buffer[:at]
            self._has_begun = True
        return at >= 0

    def _no_boundary(self) -> str:
        shown = self._delimiter[2:].decode("latin-1")
        return f"the first {MAX_PREAMBLE_BYTES} bytes of this form have no line {shown!r}, its boundary"


def _name_of(head: bytes) -> tuple[str, bool]:
    """The name of a part, and whether the part is a file.

    Raises:
        ProtocolError: it has no name.
    """
    for line in head.decode("utf-8", "replace").split("\r\n"):
        label, _, value = line.partition(":")
        if label.strip().lower() == "content-disposition":
            _, parameters = _parameters(value)
            if "name" in parameters:
                return parameters["name"], not parameters.keys().isdisjoint(("filename", "filename*"))
    raise ProtocolError("a part of this form has no name")


def _parameters(header: str) -> tuple[str, dict[str, str]]:
    """The value of a header in lower case, and its parameters; the first one of a name counts."""
    kind, _, rest = header.partition(";")
    found: dict[str, str] = {}
    for match in islice(_PARAMETER.finditer(f";{rest}"), MAX_PARAMETERS):
        name, quoted, plain = match.groups("")
        found.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) if quoted else plain.strip())
    return kind.strip().lower(), found
