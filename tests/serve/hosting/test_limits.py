"""Limits of a connection and an address: the bounds of docs/reliability.md without another test."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Any, cast

import pytest
from aiohttp import web

from antiphon.config import ServerConfig
from antiphon.ipc.message_socket import local_pair
from antiphon.limits import Limits
from antiphon.protocol import kyutai, kyutai_tts, moshi
from antiphon.serve.hosting.front_end import Connections
from antiphon.serve.hosting.processes import OTHER_FILES, connection_limits
from antiphon.serve.hosting.services import Services
from antiphon.serve.hosting.tcp import TcpServer
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import PATIENCE_S, Closed, serving
from tests.serve.tts_client import listening as listening_to_speech
from tests.serve.tts_client import speaking

NO_TCP = TcpServer(cast("Services", None), ())
NEAR = {"X-Forwarded-For": "198.51.100.7"}


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether a connection ends without a word: with bytes of its caller unread it is reset."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_connections_stay_below_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.processes.open_file_limit", lambda: 4096)
    assert connection_limits(ServerConfig()).connections == (4096 - OTHER_FILES) * 4 // 5
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
    runner = web.AppRunner(web.Application())
    await runner.setup()
    assert runner.server is not None
    end, _ = local_pair()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    begun_s = time.monotonic()
    beginning = asyncio.create_task(Connections(end, runner.server, NO_TCP, 0.3).begin(1, ours, context))
    reader, writer = await asyncio.open_connection(sock=theirs)
    writer.write(b"\x16\x03\x01")  # the beginning of a handshake
    assert await is_cut(reader)
    assert time.monotonic() - begun_s > 0.2
    writer.close()
    await beginning
    await runner.cleanup()


async def test_a_connection_without_a_whole_request_makes_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest one first, whether it has sent nothing, a part of a header, or a part of its TLS."""
    monkeypatch.setattr("antiphon.serve.hosting.front_end.HEAD_S", 0.0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "test-cert.pem", TLS / "test-key.pem")
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    asked = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        asked.set()
        return web.Response()

    async def counted(request: Any) -> web.StreamResponse:
        return await connections.count(request, answer)

    server, (end, _) = web.Server(counted), local_pair()
    connections = Connections(end, server, NO_TCP, 15.0)
    peers = []
    for number, (first, tls) in enumerate(
        [(b"GET /", None), (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", None), (b"\x16", context)]
    ):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        peers.append(await asyncio.open_connection(sock=theirs))
        peers[-1][1].write(first)
        beginning = asyncio.create_task(connections.begin(number, ours, tls))
        await asyncio.sleep(0) if tls else await beginning
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        connections.make_room(1)
        assert await is_cut(peers[0][0])
        connections.make_room(2)
        assert await is_cut(peers[2][0])
        await beginning
    assert not peers[1][0].at_eof()
    for _, writer in peers:
        writer.close()
    await server.shutdown()


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
