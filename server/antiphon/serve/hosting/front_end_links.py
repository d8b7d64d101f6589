"""Links between the front ends of a server, for a connection that resumes a call of another one.

Such a call is in the process of one front end, and the connection, with its TLS, in the process of another.
The bytes of the connection's WebSocket pass through a pair of sockets to the call's front end, which serves
them like any other connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import web

from antiphon.errors import ServerFullError
from antiphon.limits import Limits
from antiphon.serve.transport.upgrade import is_upgrade, upgrade
from antiphon.supervisor.messages import Link

MARK: Final = "~"
"""Separates the name of a worker, which does not contain it, from the number of its front end."""

ANSWER_S: Final = 2.0
"""Seconds for the other front end to accept a connection."""

RETRY_AFTER_S: Final = 1
"""Seconds after which a client that was not accepted tries again."""

BUFFER_BYTES: Final = 16_384
"""Bytes of a link that wait for one of its sides, above which the other side is not read."""


class FrontEndLinks:
    """The links from the front end with this ``number`` to the other front ends of its server."""

    def __init__(self, number: int, send: Callable[[Link, Sequence[int]], None], limits: Limits) -> None:
        """Begin without links; ``send`` sends a link with its descriptor to the supervisor."""
        self._number, self._send, self._limits = number, send, limits

    def place(self, worker: str) -> str:
        """The name with which a client resumes a call of this front end, which belongs to ``worker``."""
        return f"{worker}{MARK}{self._number}"

    async def pass_on(self, request: web.Request) -> web.StreamResponse | None:
        """Serve a WebSocket through the front end that its query names, until it closes.

        The result is None if the query names no other front end. A client that reads nothing for
        ``liveness_timeout_s`` is cut off.

        Raises:
            ServerFullError: the other front end does not accept the connection.
        """
        number = self._named(request.query)
        if number is None or not is_upgrade(request):
            return None
        reader, link = await self._open(number, request.remote or "")
        try:
            link.write(head_of(request))
            await _accepted(reader)
            outgoing, response = await upgrade(request, self._limits, lambda it: Outgoing(it, link), {})
            with contextlib.suppress(ConnectionError, TimeoutError):
                while data := await reader.read(BUFFER_BYTES):
                    async with asyncio.timeout(self._limits.liveness_timeout_s):
                        await response.write(data)
                        await request.writer.drain()
            outgoing.end(self._limits.close_timeout_s)
            return response
        finally:
            link.close()

    def _named(self, query: Mapping[str, str]) -> int | None:
        _, mark, number = query.get("worker", "").rpartition(MARK)
        is_other = mark and number.isascii() and number.isdecimal() and int(number[:6]) != self._number
        return int(number[:6]) if is_other else None

    async def _open(self, number: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            self._send(Link(number, address), [theirs.fileno()])
        reader, link = await asyncio.open_unix_connection(sock=ours, limit=BUFFER_BYTES)
        link.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        return reader, link


class Outgoing:
    """Passes the bytes of a client to a link; while the link accepts no bytes, the client is not read."""

    def __init__(self, client: asyncio.Transport, link: asyncio.StreamWriter) -> None:
        """Begin after the upgrade."""
        client.set_write_buffer_limits(high=BUFFER_BYTES)
        self._client, self._link = client, link
        self._draining: asyncio.Task[None] | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes from the network."""
        self._link.write(data)
        if self._draining is None and self._link.transport.get_write_buffer_size() > BUFFER_BYTES:
            self._client.pause_reading()
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        return False, b""

    def feed_eof(self) -> None:
        """Handle the end of the connection."""
        self._link.close()

    def end(self, limit_s: float) -> None:
        """Cut the client off after ``limit_s`` seconds, in which it may read the bytes that wait for it."""
        asyncio.get_running_loop().call_later(limit_s, self._abort)

    def _abort(self) -> None:
        # A TLS transport of older Pythons (3.11.2) fails here when its connection is gone already.
        with contextlib.suppress(AttributeError):
            self._client.abort()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._link.drain()
        self._draining = None
        if not self._client.is_closing():
            self._client.resume_reading()


def head_of(request: web.Request) -> bytes:
    """The head of a request, as it was received."""
    first = f"{request.method} {request.raw_path} HTTP/1.1".encode("utf-8", "surrogateescape")
    return b"\r\n".join([first, *(b"%s: %s" % header for header in request.raw_headers), b"", b""])


async def _accepted(reader: asyncio.StreamReader) -> None:
    """Wait for the other front end's 101.

    Raises:
        ServerFullError: there is none. If its process has ended, the next one knows that the call has, too.
    """
    failures = (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
    answer = b""
    with contextlib.suppress(*failures):
        async with asyncio.timeout(ANSWER_S):
            answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 101 "):
        words = f"the call's front end does not take the connection; try again in {RETRY_AFTER_S} s"
        raise ServerFullError(words, retry_after_s=RETRY_AFTER_S)
