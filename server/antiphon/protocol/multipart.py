"""A form with files (``multipart/form-data``, RFC 7578), read as it comes: bytes in, pieces of parts out.

Nothing but the part of a delimiter that the next bytes may complete is kept, so a form of any length takes
little memory; what its sender may write between the parts is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Final

from antiphon.errors import ProtocolError

MAX_PARTS: Final = 64
"""Far more than the fields of any client."""

MAX_HEAD_BYTES: Final = 8192
"""The headers of one part: a name, a file's name and a type."""

MAX_BOUNDARY_BYTES: Final = 70
"""RFC 2046."""

FORM: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the part of this name. ``is_first`` begins a part, which may be empty.

    ``is_file`` says that the part has a file's name.
    """

    name: str
    is_file: bool
    data: bytes
    is_first: bool


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type names.

    Raises:
        ProtocolError: it is no form, or names none.
    """
    header = _header("content-type", content_type)
    boundary = str(header.get_param("boundary", "", "content-type")).encode("latin-1", "replace")
    if header.get_content_type() != FORM:
        raise ProtocolError(f"the body is {header.get_content_type()[:40]}, {FORM} is needed")
    if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES:
        raise ProtocolError(f"a boundary of {len(boundary)} bytes, 1 to {MAX_BOUNDARY_BYTES} are needed")
    return boundary


class FormReader:
    """One form. ``is_complete`` says whether its last delimiter has come."""

    def __init__(self, boundary: bytes) -> None:
        """Read a form whose parts lie between delimiters made of ``boundary``."""
        self.is_complete = False
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter has none in front of it
        self._parts = 0
        self._name: str | None = None  # of the part under way
        self._is_file = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that these bytes complete; what follows the last delimiter is passed over.

        Raises:
            ProtocolError: no form, or one with more parts or longer headers than may be.
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

    def _take_data(self) -> Piece | None:
        """What belongs to the part for certain; a delimiter ends it, and stays."""
        at = self._buffer.find(self._delimiter)
        end = at if at >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        data, name = bytes(self._buffer[:end]), self._name
        del self._buffer[:end]
        if at >= 0:
            self._name = None
        return Piece(name or "", self._is_file, data, is_first=False) if data else None

    def _begin_part(self) -> Piece | None:
        """Read a delimiter and headers; None while they have not come whole, or where the form ends."""
        delimiter, buffer = self._delimiter, self._buffer
        if buffer[: len(delimiter)] != delimiter[: len(buffer)]:
            raise ProtocolError("this form does not begin with its boundary")
        after = bytes(buffer[len(delimiter) : len(delimiter) + 2])
        if after == b"--":
            self.is_complete = True
            self._buffer.clear()
            return None
        end = buffer.find(b"\r\n\r\n", len(delimiter))
        if end < 0 or end - len(delimiter) > MAX_HEAD_BYTES:
            if len(buffer) - len(delimiter) > MAX_HEAD_BYTES:
                raise ProtocolError(f"a part with more than {MAX_HEAD_BYTES} bytes of headers")
            return None
        if self._parts == MAX_PARTS:
            raise ProtocolError(f"a form of more than {MAX_PARTS} parts, which is the limit")
        self._parts += 1
        self._name, self._is_file = _name_of(bytes(buffer[len(delimiter) : end]))
        del buffer[: end + 4]
        return Piece(self._name, self._is_file, b"", is_first=True)


def _name_of(head: bytes) -> tuple[str, bool]:
    """The name of a part, and whether it is a file.

    Raises:
        ProtocolError: it has none.
    """
    for line in head.decode("utf-8", "replace").split("\r\n"):
        label, _, value = line.partition(":")
        if label.strip().lower() == "content-disposition":
            header = _header("content-disposition", value.strip())
            name = header.get_param("name", None, "content-disposition")
            if isinstance(name, str):
                return name, header.get_param("filename", None, "content-disposition") is not None
    raise ProtocolError("a part of this form has no name")


def _header(name: str, value: str) -> Message:
    message = Message()
    message[name] = " ".join(value.split())  # a line break would end the header
    return message
