"""Messages on a bare TCP connection, each of which states its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from antiphon.errors import ProtocolError
from antiphon.protocol.close_codes import CloseCode
from antiphon.serve.transport.frames import BINARY, FrameError

SizeOf: TypeAlias = Callable[[bytearray], int | None]
"""The bytes of the first message in some bytes; None until more arrive.

The function raises a ProtocolError for bytes that are not the start of a message, or if the message is too
long.
"""


class StreamReader:
    """Assembles one connection's messages. ``is_empty``: the next byte begins a message.

    ``farewell`` is the message that ends a connection, if the protocol has one.
    """

    def __init__(self, size_of: SizeOf, farewell: bytes = b"") -> None:
        """Begin."""
        self.farewell, self._size_of = farewell, size_of
        self._data, self._is_broken = bytearray(), False
        self._size: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no part of a message is buffered."""
        return not self._data

    def feed(self, data: bytes) -> None:
        """Add bytes from the network; :meth:`next` returns the messages that they complete.

        After a fault the bytes are ignored.
        """
        if not self._is_broken:
            self._data += data

    def next(self) -> tuple[int, bytes] | None:
        """The next message, as a WebSocket's reader returns it; None until more bytes are fed.

        Raises:
            FrameError: the peer violated the protocol; no further message is read.
        """
        try:
            if self._size is None and self._data:
                self._size = self._size_of(self._data)
        except ProtocolError as error:
            self._data.clear()
            self._is_broken = True
            raise FrameError(CloseCode.INVALID_DATA, str(error)) from error
        if self._size is None or len(self._data) < self._size:
            return None
        message = bytes(self._data[: self._size])
        del self._data[: self._size]
        self._size = None
        return BINARY, message
