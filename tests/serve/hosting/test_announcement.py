"""The mDNS announcement of ports on loopback, discovered like Home Assistant does."""

from __future__ import annotations

import asyncio

from zeroconf.asyncio import AsyncZeroconf

from antiphon.serve.hosting.announcement import SERVICE, Announcement, address_of
from antiphon.tcp_port import TcpPort, TcpProtocol
from tests.serve.harness import PATIENCE_S

LOOPBACK = ["127.0.0.1"]


async def test_a_port_is_found_once_it_is_open() -> None:
    opened, port = asyncio.Event(), TcpPort(TcpProtocol.WYOMING, 10300, "127.0.0.1")
    announcement = Announcement([port], interfaces=LOOPBACK)
    async with announcement.announcing(opened):
        await asyncio.sleep(0)
        assert announcement.names == []
        opened.set()
        await asyncio.wait_for(announcement.made.wait(), PATIENCE_S)
        home = AsyncZeroconf(interfaces=LOOPBACK)
        try:
            info = await home.async_get_service_info(
                SERVICE, announcement.names[0], timeout=round(1000 * PATIENCE_S)
            )
            assert info is not None
            assert (info.port, info.parsed_addresses()) == (10300, LOOPBACK)
        finally:
            await home.async_close()


def test_an_address_of_its_own_is_named() -> None:
    assert address_of("127.0.0.1") == "127.0.0.1"
