"""Where aiohttp's server listens."""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web

from antiphon.serve.transport.listening import Entrance, Listener


class Site(web.TCPSite):
    """aiohttp's, on a :class:`Listener`; ``entrance`` is to be set before it starts."""

    entrance: Entrance | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: nothing can listen there.
        """
        await web.BaseSite.start(self)
        factory = self._runner.server
        assert factory is not None
        listener = await Listener.open(
            factory, self._host, self._port, ssl_context=self._ssl_context, entrance=self.entrance
        )
        self._server = cast("asyncio.AbstractServer", listener)
