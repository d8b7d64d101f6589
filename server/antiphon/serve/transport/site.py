"""The listening addresses of aiohttp's server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from aiohttp import web

from antiphon.serve.transport.listening_sockets import ConnectionRules, ListeningSockets


class Site(web.BaseSite):
    """aiohttp's, on a :class:`ListeningSockets`."""

    def __init__(
        self,
        runner: web.AppRunner,
        sockets: Sequence[socket.socket],
        *,
        ssl_context: ssl.SSLContext | None = None,
        rules: ConnectionRules | None = None,
    ) -> None:
        """Serve on bound ``sockets``, which are this object's; ``rules`` bounds who connects."""
        super().__init__(runner, ssl_context=ssl_context)
        self._sockets, self._rules = list(sockets), rules

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
        listener = ListeningSockets(self._sockets, factory, self._ssl_context, self._rules)
        self._server = cast("asyncio.AbstractServer", listener)
