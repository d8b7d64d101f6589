"""A WebSocket client that executes a case of Autobahn|Testsuite, valid or invalid.

Its methods and attributes have the names that the cases use.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

from tests.serve.autobahn_cases import STATE_CLOSED, STATE_CLOSING, STATE_OPEN

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
MASK: Final = b"\x37\xfa\x21\x3d"
DROP_S: Final = 5.0
"""How long the server may take to end the connection, which is the server's part."""


class Peer(asyncio.Protocol):
    """One connection, and one case."""

    CLOSE_STATUS_CODE_NORMAL = 1000
    CLOSE_STATUS_CODE_PROTOCOL_ERROR = 1002
    CLOSE_STATUS_CODE_INVALID_PAYLOAD = 1007
    factory = SimpleNamespace(isServer=False)

    def __init__(self, path: str, case: Callable[[Any], Any], patience_s: float) -> None:
        """``patience_s`` bounds every wait of the case: what it calls too late comes no later."""
        self._path = path
        self._patience_s = patience_s
        self._received = bytearray()
        self._partial: list[bytes] = []
        self._opcode = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        self._mask: Iterator[int] = itertools.cycle(MASK)
        self.over = self._loop.create_future()
        self.state = STATE_CLOSED
        self.connectionWasOpen = self.closedByMe = self.failedByMe = False
        self.droppedByMe = self.wasClean = False
        self.remoteCloseCode: int | None = None
        self.localCloseReason: str | None = None
        self.createWirelog = False
        self.case = case(self)

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        lines = [
            f"GET {self._path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
        ]
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self.connectionWasOpen:
            head, end, _ = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head, bytes(head)
            del self._received[: len(head) + 4]
            self.connectionWasOpen = True
            self.state = STATE_OPEN
            self.case.onOpen()
        while self._take_frame():
            pass

    def connection_lost(self, error: Exception | None) -> None:
        self.state = STATE_CLOSED
        for timer in self._timers:
            timer.cancel()
        self.case.onConnectionLost(self.failedByMe)
        self.over.set_result(None)

    def _take_frame(self) -> bool:
        data = self._received
        if len(data) < 2:
            return False
        assert not data[1] & 0x80, "a server's frames are not masked"
        flag = data[1] & 0x7F
        start = {126: 4, 127: 10}.get(flag, 2)
        size = flag if flag < 126 else int.from_bytes(data[2:start], "big")
        if len(data) < max(start, start + size):
            return False
        first, payload = data[0], bytes(data[start : start + size])
        del data[: start + size]
        self._handle(first & 0xF, bool(first & 0x80), payload)
        return True

    def _handle(self, opcode: int, is_final: bool, payload: bytes) -> None:
        if opcode == CLOSE:
            self._closed(payload)
        elif opcode == PING:
            self.case.onPing(payload.decode("latin-1"))
        elif opcode == PONG:
            self.case.onPong(payload.decode("latin-1"))
        elif self.state == STATE_OPEN:
            self._opcode = opcode or self._opcode
            self._partial.append(payload)
            if is_final:
                whole = b"".join(self._partial).decode("latin-1")
                self._partial.clear()
                self.case.onMessage(whole, self._opcode == BINARY)

    def _closed(self, payload: bytes) -> None:
        if self.remoteCloseCode is None:
            self.remoteCloseCode = int.from_bytes(payload[:2], "big") if payload else None
        self.wasClean = True
        if self.state == STATE_OPEN:
            self.state = STATE_CLOSING
            self.sendFrame(CLOSE, payload.decode("latin-1"))
        self._later(DROP_S, self._drop)

    def _drop(self) -> None:
        self.droppedByMe = True
        self._transport.abort()

    def _later(self, delay_s: float, action: Callable[[], Any]) -> None:
        self._timers.append(self._loop.call_later(min(delay_s, self._patience_s), action))

    # What the cases call.

    def sendFrame(  # noqa: N802
        self,
        opcode: int,
        payload: str = "",
        fin: bool = True,
        rsv: int = 0,
        payload_len: int | None = None,
        chopsize: int | None = None,
        sync: bool = False,
    ) -> None:
        octets = payload.encode("latin-1")
        if payload_len is not None:
            octets = (octets * (payload_len // len(octets) + 1))[:payload_len]
        first = (0x80 if fin else 0) | rsv << 4 | opcode
        self._write(header(first, len(octets)) + masked(octets), chopsize)

    def _write(self, octets: bytes, chop_bytes: int | None = None) -> None:
        step = chop_bytes or len(octets) or 1
        for start in range(0, len(octets), step):
            self._transport.write(octets[start : start + step])

    def sendMessage(self, payload: str, isBinary: bool = False, fragmentSize: int | None = None) -> None:  # noqa: N802, N803
        if self.state != STATE_OPEN:
            return
        step = fragmentSize or len(payload) or 1
        for start in range(0, len(payload) or 1, step):
            opcode = 0 if start else BINARY if isBinary else TEXT
            self.sendFrame(opcode, payload[start : start + step], start + step >= len(payload))

    def beginMessage(self) -> None:  # noqa: N802
        """The message is sent as one frame of text."""

    def beginMessageFrame(self, length: int) -> None:  # noqa: N802
        self._mask = itertools.cycle(MASK)
        self._write(header(0x80 | TEXT, length))

    def sendMessageFrameData(self, payload: str) -> None:  # noqa: N802
        self._write(bytes(octet ^ next(self._mask) for octet in payload.encode("latin-1")))

    def endMessage(self) -> None:  # noqa: N802
        """The frame was the last."""

    def sendCloseFrame(self, code: int | None = None, reasonUtf8: str | None = None) -> None:  # noqa: N802, N803
        if self.state != STATE_OPEN:
            return
        self.state, self.closedByMe, self.localCloseReason = STATE_CLOSING, True, reasonUtf8
        words = "" if code is None else code.to_bytes(2, "big").decode("latin-1")
        self.sendFrame(CLOSE, words + (reasonUtf8 or ""))
        self._later(DROP_S, self._drop)

    def sendClose(self, code: int | None = None, reason: str | None = None) -> None:  # noqa: N802
        self.sendCloseFrame(code, reason)

    def closeAfter(self, delay_s: float) -> None:  # noqa: N802
        self._later(delay_s, self.sendClose)

    def killAfter(self, delay_s: float) -> None:  # noqa: N802
        self._later(delay_s, self._kill)

    def _kill(self) -> None:
        self.failedByMe = True
        self._drop()

    def continueLater(self, delay_s: float, action: Callable[[], Any], tag: str | None = None) -> None:  # noqa: N802
        self._later(delay_s, action)

    def enableWirelog(self, is_enabled: bool) -> None:  # noqa: N802
        """There is no log."""


def header(first: int, size: int) -> bytes:
    """A masked frame's header."""
    if size < 126:
        return bytes((first, 0x80 | size)) + MASK
    if size < 65536:
        return bytes((first, 0x80 | 126)) + size.to_bytes(2, "big") + MASK
    return bytes((first, 0x80 | 127)) + size.to_bytes(8, "big") + MASK


def masked(octets: bytes) -> bytes:
    """The payload as it is on the wire."""
    size = len(octets)
    mask = (MASK * (size // 4 + 1))[:size]
    return (int.from_bytes(octets, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
