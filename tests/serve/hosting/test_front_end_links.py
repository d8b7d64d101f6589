"""Links between front ends: neither side gets further ahead of the other than a buffer."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from antiphon.serve.hosting.front_end_links import BUFFER_BYTES, Outgoing
from tests.serve.harness import PATIENCE_S

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
