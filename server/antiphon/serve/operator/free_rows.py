"""The free-rows port: one line about free rows and state, for the proxy that chooses among workers.

HAProxy connects, reads one line and acts on it (see "agent-check" in its manual). The worker sends these
lines:

=====================  ======================================  ==============================
state of the worker    line                                    meaning for the proxy
=====================  ======================================  ==============================
3 free rows            ``up 3%``                               weight 3, where ``weight 100``
full, or late          ``up 0%``                               alive, no new connections
shutting down          ``stopped #draining: 2 sessions left``  down, for new calls
needs a restart        ``down #`` and the reason               down, for new calls
=====================  ======================================  ==============================

The words ``drain`` and ``ready`` are never sent: they would override an operator's command to the proxy.
``maxconn`` is not sent either: the proxy would then queue callers, which get no notice; a caller in this
server's queue is informed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from antiphon.ipc.health import Health
from antiphon.supervisor.address import bound, reuse

MAX_WEIGHT = 256
"""HAProxy's largest weight: above this number of free rows, workers count as equally free."""

WRITE_TIMEOUT_S = 2.0
"""Seconds for a peer to read one short line; the proxy asks again every second."""


def free_rows_line(health: Health) -> str:
    """The line for a worker with this health, without the line end."""
    if not health.is_healthy:
        return f"down #{' '.join(health.detail.split())}"
    if health.draining:
        return f"stopped #draining: {health.active} sessions left"
    return f"up {min(health.free if health.ready else 0, MAX_WEIGHT)}%"


@contextlib.asynccontextmanager
async def free_rows_port(host: str, port: int, read: Callable[[], Awaitable[Health]]) -> AsyncIterator[int]:
    """Answer on a TCP port of ``host`` for the block; yields the port (0 chooses a free one).

    Raises:
        ConfigError: the port cannot be opened.
    """

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):  # a disconnected peer needs no answer
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                writer.write(f"{free_rows_line(await read())}\n".encode(errors="replace"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        writer.transport.abort()

    with bound(host, port, "--free-rows-port") as sockets:
        servers = []
        for one in sockets:
            reuse(one)
            servers.append(await asyncio.start_server(answer, sock=one))
        yield sockets[0].getsockname()[1]
        for server in servers:
            server.close()
