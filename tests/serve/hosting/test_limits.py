"""What one connection and one address may take: each bound of docs/reliability.md that has no other test."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon.config import Limits, ServerConfig
from antiphon.metrics import MetricFamilies
from antiphon.protocol import kyutai, kyutai_tts, moshi
from antiphon.serve.hosting.connection_limits import OTHER_FILES, connection_limits
from antiphon.serve.hosting.connection_rules import connection_rules
from antiphon.serve.transport.site import Site
from antiphon.serve.transport.tls import PortTls
from antiphon.supervisor.address import bound
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import PATIENCE_S, Closed, serving
from tests.serve.tts_client import listening as listening_to_speech
from tests.serve.tts_client import speaking

NEAR = {"X-Forwarded-For": "198.51.100.7"}


# Connections of a server that is one process.


@asynccontextmanager
async def listening(
    tls: ssl.SSLContext | None = None, **limits: float
) -> AsyncIterator[tuple[int, MetricFamilies]]:
    """A server that answers nothing, behind the connection rules of one process."""
    config = ServerConfig(limits=Limits(**limits))  # type: ignore[arg-type]
    runner, families = web.AppRunner(web.Application()), MetricFamilies(CollectorRegistry())
    await runner.setup()
    rules = connection_rules(config, runner, families, now_s=asyncio.get_running_loop().time())
    with bound("127.0.0.1", 0) as listeners:
        await Site(runner, listeners, tls=PortTls(tls), rules=rules).start()
        yield runner.addresses[0][1], families
        await runner.cleanup()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def answered(connection: Connection, within_s: float = 0.3) -> bool:
    """Whether a request is answered in time."""
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        async with asyncio.timeout(within_s):
            return (await reader.read(12)).startswith(b"HTTP/1.1 404")
    except (TimeoutError, ConnectionResetError):
        return False


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether a connection ends without a word: with bytes of its caller unread it is reset."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_connections_beyond_the_total_wait_for_one_to_close() -> None:
    async with listening(max_connections=2) as (port, _):
        one, two, three = [await connected(port) for _ in range(3)]
        assert await answered(one, PATIENCE_S)
        assert await answered(two, PATIENCE_S)
        assert not await answered(three)
        one[1].close()
        async with asyncio.timeout(PATIENCE_S):
            assert (await three[0].read(12)).startswith(b"HTTP/1.1 404")
        for _, writer in (two, three):
            writer.close()


async def test_connections_beyond_an_addresss_own_are_closed_and_counted() -> None:
    async with listening(max_connections_per_address=1) as (port, families):
        one, two = await connected(port), await connected(port)
        assert await answered(one, PATIENCE_S)
        assert await is_cut(two[0])
        assert families.registry.get_sample_value("antiphon_turned_away_connections_total") == 1.0
        one[1].close()
        two[1].close()
        async with asyncio.timeout(PATIENCE_S):
            while not await answered(three := await connected(port)):
                three[1].close()
        three[1].close()


async def test_new_connections_beyond_the_rate_wait() -> None:
    async with listening(max_new_connections_per_s=10) as (port, _):
        begun_s = time.monotonic()
        connections = [await connected(port) for _ in range(15)]
        assert all([await answered(it, PATIENCE_S) for it in connections[:10]])
        async with asyncio.timeout(PATIENCE_S):
            while not await answered(connections[-1]):  # asks again: it may be let in meanwhile
                pass
        assert time.monotonic() - begun_s >= 0.4
        for _, writer in connections:
            writer.close()


def test_connections_stay_below_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.connection_limits.open_file_limit", lambda: 4096)
    assert connection_limits(ServerConfig()).connections == 4096 - OTHER_FILES
    assert connection_limits(ServerConfig(), processes=4).connections == 10_000
    assert connection_limits(ServerConfig(limits=Limits(max_connections=7))).connections == 7


@pytest.mark.parametrize("piece", [b"", b"a", b"X: 1\r\n"], ids=["silence", "bytes", "lines"])
async def test_a_header_that_does_not_end_is_cut_however_it_trickles(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.app.KEEPALIVE_TIMEOUT_S", 0.3)
    async with serving() as server:
        reader, writer = await connected(server.port)
        writer.write(b"GET / HTTP/1.1\r\n" if piece else b"")
        reading = asyncio.ensure_future(is_cut(reader))
        async with asyncio.timeout(PATIENCE_S):
            while not reading.done():
                writer.write(piece)
                await asyncio.sleep(0.05)
        assert reading.result()
        writer.close()


@TLS_GOODBYE
async def test_a_tls_handshake_that_does_not_end_is_cut() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "test-cert.pem", TLS / "test-key.pem")
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with listening(context, connect_timeout_s=0.3) as (port, _):
        begun_s = time.monotonic()
        reader, writer = await connected(port)
        writer.write(b"\x16\x03\x01")  # the beginning of a handshake
        assert await is_cut(reader)
        assert time.monotonic() - begun_s > 0.2
        writer.close()


# Connections that stand.


async def test_bytes_beyond_the_rate_are_read_later() -> None:
    limits = {"max_bytes_per_s": 65_536}
    async with serving(limits=limits) as server, server.caller() as client:
        begun_s = time.monotonic()
        for _ in range(6):
            await client.send(moshi.Unknown(0x77, bytes(32_768)))
        await client.send(moshi.Ping())
        await client.until(lambda it: isinstance(it, moshi.Ping))
        assert time.monotonic() - begun_s > 0.9  # of 192 KiB two seconds' worth waited


async def test_a_message_may_be_larger_where_it_may_hold_a_voice() -> None:
    limits = {"max_message_bytes": 2048, "max_voice_bytes": 8192}
    async with speaking(limits=limits) as (server, _), listening_to_speech(server) as client:
        await client.send(kyutai_tts.Text("word " * 1000))
        await client.until(kyutai.Audio)
        await client.ws.send_bytes(bytes(9000))
        assert (await client.until(Closed)).code == 1009


# Addresses.


async def test_an_address_has_a_quarter_of_the_rows_and_this_machine_any_number() -> None:
    async with serving(slots=20, trusted_proxy=("127.0.0.1",)) as server:
        clients = []
        try:
            for _ in range(5):
                ws = await server.http.ws_connect(server.url("/api/chat?ext=1", "ws"), headers=NEAR)
                clients.append(ws)
            async with server.call("ext=1", **NEAR) as sixth:
                error = await sixth.event("error")
                assert error.fields["message"] == "your address 198.51.100.7 has 5 of 5 sessions"
            here = server.url("/api/chat?ext=1", "ws")
            clients += [await server.http.ws_connect(here) for _ in range(7)]
            assert len(server.calls) == 12
        finally:
            for ws in clients:
                await ws.close()


async def test_a_small_server_gives_an_address_four() -> None:
    async with serving(slots=6, trusted_proxy=("127.0.0.1",)) as server:
        held = [await server.http.ws_connect(server.url("/api/chat", "ws"), headers=NEAR) for _ in range(4)]
        async with server.http.get(server.url("/api/chat"), headers=NEAR) as response:
            assert response.status == 429
        for ws in held:
            await ws.close()
