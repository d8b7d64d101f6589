"""Links between front ends: neither side gets further ahead of the other than a buffer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import cast

from antiphon.serve.hosting.front_end_links import BUFFER_BYTES, FrontEndLinks, Outgoing
from antiphon.supervisor.messages import Link
from tests.serve.harness import PATIENCE_S, serving

MOST_PIECES = 2000
"""Of 4 KiB: more than any kernel keeps of a link."""


class Client:
    """The transport of a client: what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_resumed = asyncio.Event()

    def set_write_buffer_limits(self, high: int) -> None:
        self.asked.append(f"{high} bytes")

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")
        self.is_resumed.set()

    def is_closing(self) -> bool:
        return False


async def test_a_client_is_not_read_while_its_link_takes_nothing() -> None:
    ours, theirs = socket.socketpair()
    _, link = await asyncio.open_unix_connection(sock=ours)
    link.transport.set_write_buffer_limits(high=BUFFER_BYTES)
    other, their_side = await asyncio.open_unix_connection(sock=theirs, limit=BUFFER_BYTES)
    client = Client()
    outgoing = Outgoing(cast("asyncio.Transport", client), link)
    piece, sent = bytes(range(256)) * 16, 0
    try:
        while "pause" not in client.asked and sent < MOST_PIECES:
            assert outgoing.feed_data(piece) == (False, b"")
            sent += 1
            await asyncio.sleep(0)  # the loop passes on what the link takes
        assert client.asked == [f"{BUFFER_BYTES} bytes", "pause"]
        assert outgoing.feed_data(piece) == (False, b"")  # was on its way
        async with asyncio.timeout(PATIENCE_S):
            assert await other.readexactly((sent + 1) * len(piece)) == piece * (sent + 1)
            await client.is_resumed.wait()
        outgoing.feed_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await other.read() == b""
    finally:
        their_side.close()
        link.transport.abort()


UPGRADE = (
    b"GET /api/chat?ext=1&resume=again&worker=~1 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    """The call's front end sends more than the network keeps; the client reads the head of the answer."""
    floods = list[asyncio.Task[None]]()

    async def flood(link: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=link)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(BUFFER_BYTES))
                await writer.drain()

    def send(_link: Link, descriptors: Sequence[int]) -> None:
        link = socket.socket(fileno=os.dup(descriptors[0]))
        floods.append(asyncio.get_running_loop().create_task(flood(link)))

    limits = {"liveness_timeout_s": 0.2, "close_timeout_s": 0.1}
    async with serving(limits=limits) as server, asyncio.timeout(PATIENCE_S):
        server.services.links = FrontEndLinks(2, send, server.services.config.limits)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setblocking(False)
            loop, head = asyncio.get_running_loop(), b""
            await loop.sock_sendall(client, UPGRADE)
            while b"\r\n\r\n" not in head:
                head += await loop.sock_recv(client, 1)
            (only,) = floods
            await only
            handler = server.runner.server
            assert handler is not None
            await server.eventually(lambda: not handler.connections)
