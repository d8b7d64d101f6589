"""WebSocket frames (RFC 6455, section 5) without extensions and without I/O.

The reader assembles messages from a client's frames. A frame that arrives in pieces is joined once, when it
is complete. A message in fragments grows in one buffer, so that a fragment of one byte takes no more memory
than that byte. A server's frames are unmasked and not fragmented.
"""

from __future__ import annotations

import codecs
from typing import Final

import numpy as np

from antiphon.errors import ProtocolError
from antiphon.protocol.close_codes import CloseCode

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FINAL, MASKED = 0x80, 0x80  # in a frame's first byte, and in its second
DATA: Final = frozenset({CONTINUATION, TEXT, BINARY})
CONTROL: Final = frozenset({CLOSE, PING, PONG})
MAX_CONTROL_BYTES: Final = 125
"""The largest payload of a control frame (RFC 6455, section 5.5). The payload of a close frame begins with
the code."""

SHORT_BYTES: Final = 512
"""Payload size in bytes up to which Python's integers unmask faster than numpy: for 100 bytes 0.4 µs instead
of 1.3 µs.
"""

FRAGMENTS: Final = 0x10
"""Returned in place of an opcode: fragments were read, and their message is incomplete."""

MAX_FRAGMENTS: Final = 64
"""Fragments read in one step of 0.1 ms, at any size."""

CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
"""The valid close codes of a peer below 3000: the registered codes that a frame may carry."""


class FrameError(ProtocolError):
    """The peer violated the protocol; the connection is closed with ``code``."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class FrameReader:
    """Assembles the messages, of at most ``max_bytes``, of one connection.

    ``is_empty``: the next byte begins a frame and a message.
    """

    def __init__(self, max_message_bytes: int) -> None:
        """Start; a message of more than ``max_message_bytes`` fails as soon as its length is known."""
        self.is_empty = True
        self.max_bytes = max_message_bytes
        self._data = b""
        self._start = 0
        self._pieces: list[bytes] = []
        self._missing_bytes = 0
        self._partial = bytearray()
        self._opcode = CONTINUATION
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes) -> None:
        """Add bytes from the network; :meth:`next` returns the messages that they complete."""
        self.is_empty = False
        if self._missing_bytes > 0:
            self._pieces.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        elif self._start < len(self._data):
            data = self._data[self._start :] + data
        self._data, self._start = data, 0

    def next(self) -> tuple[int, bytes | str] | None:
        """The next message, TEXT (as str) or BINARY, or control frame; None until more bytes are fed.

        ``FRAGMENTS`` without content is returned after a number of fragments, so that other connections are
        served.

        Raises:
            FrameError: the peer violated the protocol; no further frame is read.
        """
        if self._start == len(self._data):
            self._data, self._start = b"", 0  # keep no large buffer
            self.is_empty = not (self._missing_bytes or self._opcode)
            return None
        for _ in range(MAX_FRAGMENTS):
            if (frame := self._next_frame()) is None:
                return None
            opcode, is_final, payload = frame
            if opcode in CONTROL:
                return opcode, payload
            if (message := self._assemble(opcode, is_final, payload)) is not None:
                return message
        return FRAGMENTS, b""

    def _next_frame(self) -> tuple[int, bool, bytes] | None:
        if self._missing_bytes > 0:
            return None
        data, start = self._data, self._start
        here_bytes = len(data) - start
        if here_bytes < 2:
            self._keep_until(2 - here_bytes)
            return None
        first, size = data[start], data[start + 1] - MASKED
        self._check(first, size)
        body = start + 6
        if size > 125:
            length_bytes = 2 if size == 126 else 8
            if here_bytes < 2 + length_bytes:
                self._keep_until(2 + length_bytes - here_bytes)
                return None
            size = int.from_bytes(data[start + 2 : start + 2 + length_bytes], "big")
            body += length_bytes
        if first & 0xF in DATA and size + len(self._partial) > self.max_bytes:
            raise FrameError(
                CloseCode.MESSAGE_TOO_BIG,
                f"a message of {size + len(self._partial)} bytes, the limit is {self.max_bytes}",
            )
        end = body + size
        if end > len(data):
            self._keep_until(end - len(data))
            return None
        self._start = end
        payload = data[body:end]
        return first & 0xF, first >= FINAL, unmasked(payload, data[body - 4 : body])

    def _keep_until(self, missing_bytes: int) -> None:
        """Keep the bytes until ``missing_bytes`` more have arrived."""
        self._pieces = [self._data[self._start :]]
        self._data, self._start, self._missing_bytes = b"", 0, missing_bytes

    def _check(self, first: int, size: int) -> None:
        """Check a header against the protocol; ``size`` is negative without a mask."""
        if first == FINAL | BINARY and size >= 0:
            return
        opcode = first & 0xF
        if first & 0x70:
            raise FrameError(
                CloseCode.PROTOCOL_ERROR, "a frame with a reserved bit set; no extension was agreed on"
            )
        if opcode not in DATA and opcode not in CONTROL:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"a frame with the unknown opcode {opcode:#x}")
        if size < 0:
            raise FrameError(CloseCode.PROTOCOL_ERROR, "a frame without a mask; a client masks every frame")
        if opcode in CONTROL and (size > MAX_CONTROL_BYTES or first < FINAL):
            raise FrameError(
                CloseCode.PROTOCOL_ERROR,
                f"a control frame in fragments, or of over {MAX_CONTROL_BYTES} bytes",
            )

    def _assemble(self, opcode: int, is_final: bool, payload: bytes) -> tuple[int, bytes | str] | None:
        """Add a frame of data; returns the message if it is the last frame."""
        if (opcode == CONTINUATION) == (self._opcode == CONTINUATION):
            raise FrameError(
                CloseCode.PROTOCOL_ERROR, "a message within another, or a continuation without a message"
            )
        kind = opcode or self._opcode
        if kind == TEXT and not (opcode and is_final):
            self._decode(payload, is_final)
        if opcode and is_final:
            return kind, self._text(payload) if kind == TEXT else payload
        self._partial += payload
        self._opcode = kind
        if not is_final:
            return None
        whole = bytes(self._partial)
        self._partial.clear()
        self._opcode = CONTINUATION
        return kind, self._text(whole) if kind == TEXT else whole

    def _decode(self, fragment: bytes, is_final: bool) -> None:
        """Fail as soon as a message in fragments can no longer be valid text."""
        try:
            self._utf8.decode(fragment, is_final)
        except UnicodeDecodeError as error:
            raise FrameError(CloseCode.INVALID_DATA, "a text message that is not UTF-8") from error

    @staticmethod
    def _text(payload: bytes) -> str:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise FrameError(CloseCode.INVALID_DATA, "a text message that is not UTF-8") from error


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """The payload, unmasked with the four bytes of ``mask``."""
    size = len(payload)
    if size <= SHORT_BYTES:
        repeated = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")).to_bytes(
            size, "little"
        )
    words: bytes = (np.frombuffer(payload, "<u4", size // 4) ^ np.frombuffer(mask, "<u4")).tobytes()
    rest = size % 4
    return words + unmasked(payload[-rest:], mask) if rest else words


def read_close(payload: bytes) -> int | None:
    """The code of a close frame, or None if it has none.

    Raises:
        FrameError: the payload is not valid in a close frame.
    """
    if not payload:
        return None
    code = int.from_bytes(payload[:2], "big")
    if len(payload) < 2 or not (code in CLOSE_CODES or 3000 <= code < 5000):
        raise FrameError(CloseCode.PROTOCOL_ERROR, f"a close frame with the invalid code {code}")
    try:
        payload[2:].decode()
    except UnicodeDecodeError as error:
        raise FrameError(CloseCode.INVALID_DATA, "a close frame whose reason is not UTF-8") from error
    return code


def control_frame(opcode: int, payload: bytes = b"") -> bytes:
    """A control frame: a ping, a pong or a close."""
    return bytes((FINAL | opcode, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """A close frame; the reason is truncated to the frame's limit."""
    # An error may quote text that UTF-8 cannot encode: a file's name with half of a surrogate pair.
    cut = reason.encode(errors="replace")[: MAX_CONTROL_BYTES - 2].decode(errors="ignore")
    return control_frame(CLOSE, code.to_bytes(2, "big") + cut.encode())
