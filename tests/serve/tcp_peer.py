"""TCP ports of an in-process server, and a plain connection to one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from antiphon.serve.hosting.tcp import TcpConnection, TcpServer
from antiphon.tcp_port import read_tcp_ports
from tests.serve.harness import PATIENCE_S, Server


@asynccontextmanager
async def listening(server: Server, address: str) -> AsyncIterator[int]:
    """A port of a server; ``address`` has {} in the place of its number."""
    async with tcp_serving(server, address) as (port, _):
        yield port


@asynccontextmanager
async def tcp_serving(server: Server, address: str) -> AsyncIterator[tuple[int, TcpServer]]:
    """The same, with the server of the port."""
    loop, config = asyncio.get_running_loop(), server.services.config
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        number = listener.getsockname()[1]
        ports = read_tcp_ports((address.format(number),), has_keys=config.api_keys is not None, taken=())
        tcp = TcpServer(server.services, ports)

        async def accept() -> None:
            while True:
                connection, _ = await loop.sock_accept(listener)
                try:
                    await loop.connect_accepted_socket(partial(handler_of, connection), connection)
                except BaseException:
                    connection.close()
                    raise

        def handler_of(connection: socket.socket) -> TcpConnection:
            handler = tcp.accept(connection)
            assert handler is not None
            return handler

        accepting = asyncio.create_task(accept())
        try:
            yield number, tcp
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            await tcp.close()
            assert not tcp.connections


@dataclass
class Peer:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytes = field(default=b"")

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(size)

    async def ended(self) -> bytes:
        """What still came until the server closed."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Peer]:
    """A connection to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
