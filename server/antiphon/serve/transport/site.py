"""Where aiohttp's server listens."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from aiohttp import web

from antiphon.serve.transport.listening import Listener


class Site(web.BaseSite):
    """aiohttp's, on a :class:`Listener`."""

    def __init__(
        self,
        runner: web.AppRunner,
        sockets: Sequence[socket.socket],
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Serve on bound ``sockets``, which are this object's from now on."""
        super().__init__(runner, ssl_context=ssl_context)
        self._sockets = list(sockets)

    @property
    def name(self) -> str:
        """What aiohttp calls it."""
        host, port = self._sockets[0].getsockname()[:2]
        return f"{'http' if self._ssl_context is None else 'https'}://{host}:{port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port was taken meanwhile.
        """
        await super().start()
        factory = self._runner.server
        assert factory is not None
        listener = Listener(self._sockets, factory, self._ssl_context)
        self._server = cast("asyncio.AbstractServer", listener)
