"""HAProxy's limits for one address, next to a caller from another one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from antiphon.protocol import moshi
from tests.serve.harness import PATIENCE_S, Client, Server, serving, speech
from tests.support.launch import free_port
from tests.support.stack.composefile import services
from tests.support.stack.names import name_server
from tests.support.stack.process import until
from tests.support.stack.stack import Balancer, answers, balancer_environment

STRANGER, CALLER = "127.0.0.2", "127.0.0.3"
"""Two addresses; the machine's own, 127.0.0.1, is not counted."""

WINDOW_S = 9.0
"""HAProxy counts over 10 s, the first of which begin with an address's first connection."""

TOO_MANY = (
    "your address has too many connections, or makes new ones or requests too fast; try again in 10 s\n"
)


@asynccontextmanager
async def behind_haproxy(folder: Path, tls: Path, **bounds: str) -> AsyncIterator[tuple[str, Server]]:
    """A server of this process behind HAProxy, and HAProxy's address; agent checks get no answer."""
    service = services({})["balancer"]
    async with (
        serving(trusted_proxy=("127.0.0.1",), slots=8) as server,
        name_server({"duplex": ["127.0.0.1"]}) as dns_port,
    ):
        ports = (free_port(), free_port(), free_port())
        environment = balancer_environment(service, tls, ports, (server.port, 9, dns_port))
        balancer = Balancer(service, {}, {**environment, **bounds}, folder / "balancer.log")
        balancer.start()
        try:
            url = f"http://127.0.0.1:{ports[0]}"
            await answers(server.http, f"{url}/api/build_info", balancer.process)
            yield url, server
        finally:
            await balancer.stop()


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Connects from an address, anew for each request."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield http


async def status(http: aiohttp.ClientSession, url: str) -> tuple[int, str, Mapping[str, str]]:
    async with http.get(f"{url}/api/build_info") as response:
        return response.status, await response.text(), response.headers


@pytest.mark.parametrize(
    ("bounds", "requests"),
    [({"ADDRESS_CONNECTIONS_10S": "10"}, 11), ({"ADDRESS_REQUESTS_10S": "10"}, 11)],
    ids=["new connections", "requests"],
)
async def test_an_address_over_its_rate_is_refused_while_another_talks(
    tmp_path: Path, certificate: Path, bounds: dict[str, str], requests: int
) -> None:
    async with (
        behind_haproxy(tmp_path, certificate, **bounds) as (url, server),
        client_of(STRANGER) as stranger,
        client_of(CALLER) as caller,
    ):
        ws = await caller.ws_connect(f"{url.replace('http', 'ws', 1)}/api/chat?ext=1&format=pcm_f32le")
        client = Client(ws)
        await client.event("ready")
        begun_s = time.monotonic()
        found = [(await status(stranger, url))[0] for _ in range(requests)]
        assert set(found[:-1]) == {200}
        if time.monotonic() - begun_s < WINDOW_S:
            assert found[-1] == 429
        await eventually(429, stranger, url)  # on a machine so slow that the first 10 s are over
        code, words, headers = await status(stranger, url)
        assert (code, words, headers["Retry-After"]) == (429, TOO_MANY, "10")
        for index in range(3):
            await client.speak(speech(1, index))
            await client.reply()
        assert (await status(caller, url))[0] == 200
        assert (await status(server.http, url))[0] == 200  # this machine itself
        await client.send(moshi.Event("bye"))
        await ws.close()


async def connected(port: int, stack: contextlib.AsyncExitStack) -> asyncio.StreamReader | None:
    """A connection of the stranger that asks for nothing; None where it is cut at once."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(STRANGER, 0))
    except ConnectionError:
        return None
    stack.callback(writer.close)
    return reader


async def is_cut(reader: asyncio.StreamReader | None) -> bool:
    """Wait until HAProxy has closed a connection; whether it did so without a word."""
    if reader is None:
        return True
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_an_address_with_too_many_connections_is_refused_then_cut(
    tmp_path: Path, certificate: Path
) -> None:
    async with (
        behind_haproxy(tmp_path, certificate, ADDRESS_CONNECTIONS="3") as (url, _),
        client_of(STRANGER) as stranger,
        client_of(CALLER) as caller,
    ):
        port = int(url.rpartition(":")[2])
        async with contextlib.AsyncExitStack() as stack:
            held = [await connected(port, stack) for _ in range(3)]
            await eventually(429, stranger, url)  # HAProxy's threads take connections in any order
            held += [await connected(port, stack) for _ in range(7)]
            ends = [asyncio.ensure_future(is_cut(reader)) for reader in held]
            await until(lambda: sum(end.done() for end in ends) >= 4, PATIENCE_S)
            assert (await status(caller, url))[0] == 200
            cut = [end.done() and end.result() for end in ends]
            assert not any(cut[:3])
            assert 4 <= sum(cut) <= 5  # six are twice the bound; the refused one may still count
            for end in ends:
                end.cancel()
        await eventually(200, stranger, url)


async def eventually(wanted: int, http: aiohttp.ClientSession, url: str) -> None:
    """Ask until the answer has this status."""
    async with asyncio.timeout(PATIENCE_S):
        while await status_or_cut(http, url) != wanted:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)


async def status_or_cut(http: aiohttp.ClientSession, url: str) -> int:
    """0 where the connection is cut."""
    try:
        return (await status(http, url))[0]
    except (aiohttp.ClientError, ConnectionError):
        return 0
