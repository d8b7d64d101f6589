"""The parts of a protocol on a separate TCP port, and the checks of all calls on such ports."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.connect import Refusal
from antiphon.serve.hosting.services import Services
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.stream import SizeOf
from antiphon.tcp_port import TcpPort

Serve: TypeAlias = Callable[[Socket, Caller], Awaitable[None]]
"""Serves one connection until its client disconnects or its call is over. A SessionError, or an error in the
client's data, is answered with the protocol's refusal and ends the connection.
"""


@dataclass(frozen=True, slots=True)
class TcpRoute:
    """One protocol: the lengths of its messages, the refusal of its clients, and the server of a port."""

    size_of: SizeOf
    refusal: Refusal
    make: Callable[[Services, TcpPort], Serve]
    farewell: bytes = b""


@contextlib.asynccontextmanager
async def held(services: Services, socket: Socket, caller: Caller) -> AsyncIterator[None]:
    """For the block, count one more call of a caller, and mark its connection as in use.

    Raises:
        SessionLimitError, UsageLimitError, KeyRevokedError: a limit is reached, or the key is invalid.
    """
    await services.access.admit(caller)
    async with services.access.ledger.hold(caller, rows=services.models.rows):
        with socket.in_use():
            yield
