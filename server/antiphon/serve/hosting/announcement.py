"""Announces Wyoming ports in the local network by mDNS, so that Home Assistant finds them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from antiphon.errors import MissingExtraError
from antiphon.log import Log
from antiphon.tcp_port import TcpPort

SERVICE: Final = "_wyoming._tcp.local."
GROUP: Final = ("224.0.0.251", 5353)
"""An address of mDNS. Connecting a socket to it yields this machine's address and sends no packet."""

ANY: Final = ("0.0.0.0", "::")


class Announcement:
    """The ports of a server that mDNS announces; ``options`` are options of zeroconf.

    ``names`` has the names of the services, once they are announced.
    """

    def __init__(self, ports: Sequence[TcpPort], **options: Any) -> None:
        """Prepare.

        Raises:
            MissingExtraError: the extra ``zeroconf`` is not installed.
        """
        try:
            from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf
        except ImportError as error:
            raise MissingExtraError("announcing ports", extra="zeroconf", module="zeroconf") from error
        self._make_info, self._make, self._options = AsyncServiceInfo, AsyncZeroconf, options
        self._ports, self.names, self.made = ports, list[str](), asyncio.Event()

    @contextlib.asynccontextmanager
    async def announcing(self, opened: asyncio.Event) -> AsyncIterator[None]:
        """Announce the ports for the block, once they are open."""
        announcing = asyncio.create_task(self._announce(opened))
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])

    async def _announce(self, opened: asyncio.Event) -> None:
        await opened.wait()
        host = socket.gethostname().partition(".")[0] or "antiphon"
        network = None
        try:
            network = self._make(**self._options)
            for port in self._ports:
                name = f"Antiphon {host} {port.port}.{SERVICE}"
                addresses = [address_of(port.host)]
                info = self._make_info(
                    SERVICE, name, port=port.port, parsed_addresses=addresses, server=f"{host}.local."
                )
                await network.async_register_service(info, allow_name_change=True)
                self.names.append(info.name)
                Log().info("port announced", service=info.name, address=addresses[0])
            self.made.set()
            await asyncio.Event().wait()
        except Exception as error:  # a boundary: the server runs despite any error of its network
            Log().error("port not announced", error=type(error).__name__, reason=str(error))
        finally:
            if network is not None:
                await asyncio.shield(network.async_close())


def address_of(host: str) -> str:
    """The address at which other machines reach ``host``. If ``host`` means all addresses of this machine,
    the result is the machine's address in its network.

    Raises:
        OSError: there is no network.
    """
    if host not in ANY:
        return socket.gethostbyname(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(GROUP)
        address: str = one.getsockname()[0]
    return address
