"""Sockets that listen, and accept one connection in a turn of the event loop.

Every loop has rules of its own for a burst of connections and for want of open files: asyncio accepts as many
at once as its queue is long and fails as often, each time with a timer of its own; uvloop closes what it
cannot accept, silently. Here both wait in the kernel's queue, and a failure is reported once a second.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from antiphon.supervisor.address import listen

LISTEN_BACKLOG: Final = 128
"""Connections that wait in the kernel to be accepted: aiohttp's own default."""

RETRY_S: Final = 1.0
"""How long nothing is accepted after a failure: files are freed by calls that end."""


class Listener:
    """Accepts connections on one address, until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], Any],
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Listen on bound ``sockets``, which are this object's from now on.

        ``factory`` makes the protocol of each connection.

        Raises:
            OSError: the port of one was taken meanwhile.
        """
        self._loop = asyncio.get_running_loop()
        self.sockets = sockets
        self._factory = factory
        self._ssl_context = ssl_context
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
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            context = {"message": "no connection was accepted", "exception": error, "socket": listening}
            self._loop.call_exception_handler(context)
            self._loop.remove_reader(listening)
            self._loop.call_later(RETRY_S, self._watch, listening)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._begin(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, ssl=self._ssl_context)
        except OSError:  # a peer that left, or its TLS, which ConnectionFaults counts
            connection.close()
