"""Sockets that listen, and accept one connection in a turn of the event loop.

Every loop has rules of its own for a burst of connections and for want of open files: asyncio accepts as many
at once as its queue is long and fails as often, each time with a timer of its own; uvloop closes what it
cannot accept, silently. Here both wait in the kernel's queue, and a failure is reported once a second.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from antiphon.serve.transport.tls import PortTls
from antiphon.supervisor.address import listen
from antiphon.supervisor.connection_bounds import ConnectionBounds

LISTEN_BACKLOG: Final = 1024
"""Connections that wait in the kernel to be accepted: a flood of one address leaves room for the others."""

FULL_S: Final = 0.05
"""Until the next look when there are as many connections as there may be."""

LOOK_S: Final = 0.02
"""How often the connections that have closed are looked for, while others come."""

RETRY_S: Final = 1.0
"""How long nothing is accepted after a failure: files are freed by calls that end."""


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """Who may connect: ``bounds`` of connections, by the name under which an address counts.

    ``alive`` are the protocols of the connections that stand; ``turned_away`` is called for one that may not.
    """

    bounds: ConnectionBounds
    counted_address: Callable[[str], str]
    alive: Callable[[], Iterable[Any]]
    turned_away: Callable[[], None]
    connect_timeout_s: float


class ListeningSockets:
    """Accepts connections on one address, until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], Any],
        tls: PortTls | None = None,
        rules: ConnectionRules | None = None,
    ) -> None:
        """Listen on bound ``sockets``, which are this object's from now on.

        ``factory`` makes the protocol of each connection, which has the TLS of its port. Without ``rules``
        every peer may connect.

        Raises:
            OSError: the port of one was taken meanwhile.
        """
        self._rules = rules
        self._open: dict[Any, str] = {}
        self._looked_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.sockets = sockets
        self._factory = factory
        self._tls = tls or PortTls()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for one in sockets:
            listen(one, LISTEN_BACKLOG)
            self._watch(one)

    def close(self) -> None:
        """Accept nothing more."""
        self._is_closed = True
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()
        for task in self._tasks:
            task.cancel()

    def _watch(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        wait_s = self._wait_s()
        if wait_s > 0:
            self._loop.remove_reader(listening)
            self._loop.call_later(wait_s, self._watch, listening)
            return
        try:
            connection, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            context = {"message": "no connection was accepted", "exception": error, "socket": listening}
            self._loop.call_exception_handler(context)
            self._loop.remove_reader(listening)
            self._loop.call_later(RETRY_S, self._watch, listening)
            return
        connection.setblocking(False)
        address, rules = "", self._rules
        if rules is not None:
            address = rules.counted_address(str(peer[0]))
            if rules.bounds.let_in(address):
                connection.close()
                rules.turned_away()
                return
        task = self._loop.create_task(self._begin(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait_s(self) -> float:
        """How long the next connection has to wait."""
        rules, now_s = self._rules, self._loop.time()
        if rules is None:
            return 0.0
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            alive = set(rules.alive())
            gone = [protocol for protocol in self._open if protocol not in alive]
            rules.bounds.forget([self._open.pop(protocol) for protocol in gone])
        return rules.bounds.wait_s(now_s, FULL_S)

    async def _begin(self, connection: socket.socket, address: str) -> None:
        rules, tls = self._rules, self._tls.of(connection)
        limit_s = None if rules is None or tls is None else rules.connect_timeout_s
        try:
            _, protocol = await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError:  # a peer that left, or its TLS, which ConnectionFaults counts
            connection.close()
            if rules is not None:
                rules.bounds.forget([address])
        else:
            if rules is not None:
                self._open[protocol] = address
