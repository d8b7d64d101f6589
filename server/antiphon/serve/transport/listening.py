"""Listening sockets that are accepted from one connection at a time.

asyncio accepts up to ``backlog`` connections in a turn of its loop, and when open files run out it fails as
often, each time with a timer of its own that begins again: a burst that grows each second. With a batch of
one it fails once a second. The kernel's queue has its usual length all the same.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

ACCEPT_BATCH = 1
"""The ``backlog`` for asyncio: connections accepted in a turn of the loop."""

LISTEN_BACKLOG = 128
"""Connections that wait in the kernel to be accepted: aiohttp's own default."""


class Site(web.TCPSite):
    """aiohttp's, accepting one connection at a time."""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: nothing can listen there.
        """
        self._backlog = ACCEPT_BATCH
        await super().start()
        assert isinstance(self._server, asyncio.Server)
        lengthen_queue(self._server)


def lengthen_queue(server: asyncio.Server) -> None:
    """Give the sockets of a server made with ``ACCEPT_BATCH`` a queue of ``LISTEN_BACKLOG``."""
    for one in server.sockets:
        with one.dup() as twin:
            twin.listen(LISTEN_BACKLOG)
