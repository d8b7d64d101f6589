"""Connections on TCP ports of protocols other than HTTP, from their acceptance to their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, cast

from antiphon.errors import AntiphonError
from antiphon.protocol.close_codes import CloseCode
from antiphon.serve.calls.connect import refuse
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.kinds import TCP_ROUTES
from antiphon.serve.routes.tcp import Serve, TcpRoute
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.stream import StreamReader
from antiphon.tcp_port import TcpPort

KEEPALIVE_S: Final = 30
"""Seconds of silence until the system probes the peer, and between two probes. These protocols have no pings
that clients must answer.
"""

KEEPALIVE_PROBES: Final = 3
"""Number of unanswered probes after which the connection ends."""


class TcpServer:
    """The TCP ports of a front end; ``connections`` are the open connections."""

    def __init__(self, services: Services, ports: Sequence[TcpPort]) -> None:
        """Prepare to serve ``ports``, which other code opens."""
        self.connections: set[TcpConnection] = set()
        self._services = services
        self._ports = {
            port.port: (port, route, route.make(services, port))
            for port, route in ((port, TCP_ROUTES[port.protocol]) for port in ports)
        }

    def accept(self, connection: socket.socket) -> TcpConnection | None:
        """The protocol object for one connection; None if its port is not a TCP port of this front end."""
        found = self._ports.get(connection.getsockname()[1]) if self._ports else None
        return None if found is None else TcpConnection(self, self._services, *found)

    async def close(self) -> None:
        """Cut all connections, whose calls have already ended."""
        tasks = [it for it in (connection.cut() for connection in tuple(self.connections)) if it is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


class TcpConnection(asyncio.Protocol):
    """One connection; ``transport`` is None until it is connected."""

    transport: asyncio.Transport | None = None

    def __init__(
        self, server: TcpServer, services: Services, port: TcpPort, route: TcpRoute, serve: Serve
    ) -> None:
        """Prepare."""
        self._server, self._services = server, services
        self._port, self._route, self._serve = port, route, serve
        self._reader = StreamReader(route.size_of, route.farewell)
        self._socket: Socket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def idle_since_s(self) -> float | None:
        """The time since which no request has been in progress; None during a request, and before the
        connection is made.
        """
        return None if self._socket is None else self._socket.idle_since_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve the connection."""
        self.transport = made = cast("asyncio.Transport", transport)
        services, limits = self._services, self._services.config.limits
        own = made.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.max_unsent_bytes)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        self._socket = Socket(made, limits, services.clock, self._reader)
        self._server.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._run(self._socket))

    def data_received(self, data: bytes) -> None:
        """Take bytes from the network."""
        assert self._socket is not None
        self._socket.feed_data(data)

    def eof_received(self) -> None:
        """Handle a disconnect of the client, which is allowed at any time."""
        assert self._socket is not None
        self._socket.close_code = self._socket.close_code or CloseCode.NORMAL
        self._socket.feed_eof()

    def connection_lost(self, _error: Exception | None) -> None:
        """Handle the end of the connection."""
        self._server.connections.discard(self)
        if self._socket is not None:
            self._socket.feed_eof()

    def cut(self) -> asyncio.Task[None] | None:
        """Cut the connection."""
        if self._task is not None:
            self._task.cancel()
        if self.transport is not None:
            self.transport.abort()
        return self._task

    async def _run(self, own: Socket) -> None:
        services, protocol = self._services, self._port.protocol
        peer = cast("asyncio.Transport", self.transport).get_extra_info("peername")
        with services.metrics.sockets.track_inprogress():
            try:
                caller = services.access.holder(self._port.key, str(peer[0]) if peer else "")
                await self._serve(own, caller)
            except AntiphonError as error:
                kind = type(error).__name__
                services.provoked.info(
                    "session refused", of=kind, path=protocol, error=kind, reason=str(error)
                )
                await refuse(own, services.metrics, error, self._route.refusal)
            except Exception as error:  # a boundary: an error of one connection ends only that one
                services.log.error("connection failed", path=protocol, exc_info=error)
            finally:
                cast("asyncio.Transport", self.transport).close()
