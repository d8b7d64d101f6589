"""The listening addresses of aiohttp's server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

from aiohttp import web

from antiphon.serve.transport.listening_sockets import ConnectionRules, ListeningSockets
from antiphon.serve.transport.tls import PortTls


class Site(web.BaseSite):
    """aiohttp's, on a :class:`ListeningSockets`."""

    def __init__(
        self,
        runner: web.AppRunner,
        sockets: Sequence[socket.socket],
        *,
        tls: PortTls | None = None,
        rules: ConnectionRules | None = None,
    ) -> None:
        """Serve on bound ``sockets``, which are this object's; ``rules`` bounds who connects."""
        self._tls = tls or PortTls()
        super().__init__(runner, ssl_context=self._tls.callers)
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
        listener = ListeningSockets(self._sockets, factory, self._tls, self._rules)
        self._server = cast("asyncio.AbstractServer", listener)
