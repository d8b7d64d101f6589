"""Limits of connections to TCP ports, for every protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from aiohttp import web

from antiphon.ipc.message_socket import local_pair
from antiphon.serve.hosting.front_end import Connections
from antiphon.serve.transport.socket import READ_AHEAD_BYTES, Socket
from antiphon.serve.transport.transport import Message
from tests.protocol.test_wyoming import event
from tests.serve.dialects.test_wyoming import AT_24_KHZ, WYOMING, at_home, home
from tests.serve.harness import socket_of
from tests.serve.tcp_peer import connected, listening, tcp_serving
from tests.serve.tts_client import speaking

LONG = " ".join(["a"] * 2000)


async def test_a_connection_between_requests_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest idle first, whatever it asks that is no request; none during a request."""
    monkeypatch.setattr("antiphon.serve.hosting.front_end.HEAD_S", 0.0)
    async with (
        at_home() as (server, _),
        tcp_serving(server, WYOMING) as (port, tcp),
        home(port) as new,
        home(port) as old,
        home(port) as used,
    ):
        used.send("synthesize-start")
        await server.eventually(lambda: bool(server.calls))
        for client in (old, new):
            client.send("synthesize", {"text": "a"})
            await client.until("audio-stop")
            await server.eventually(lambda: len(server.calls) == 1)
        old.send("ping")
        await old.until("pong")
        end, _ = local_pair()
        connections = Connections(end, web.Server(web.Request), tcp, 15.0)  # type: ignore[arg-type]
        connections.make_room(1)
        assert await old.peer.ended() == b""
        connections.make_room(2)
        assert await new.peer.ended() == b""
        used.send("synthesize-chunk", {"text": "a "})
        used.send("synthesize-stop")
        await used.until("synthesize-stopped")


async def test_a_client_that_reads_nothing_is_ended_and_keeps_no_memory() -> None:
    limits = {"liveness_timeout_s": 0.5, "max_unsent_bytes": 8192}
    async with (
        speaking(slots=1, limits=limits) as (server, _),
        listening(server, WYOMING) as port,
        connected(port) as peer,
    ):
        peer.writer.write(event("synthesize", {"text": LONG}))
        await server.eventually(lambda: bool(server.calls))
        (call,) = server.calls
        await server.eventually(lambda: call.exchange.congested_since_s is not None)
        assert socket_of(call).unsent_bytes < 200_000
        await server.eventually(lambda: call.error is not None)
        assert str(call.error) == "the client has read nothing for 0.5 s"
        await server.is_empty()


@pytest.mark.parametrize("begin", [b"", event("synthesize-start"), event("audio-start", AT_24_KHZ)])
async def test_a_client_that_asks_and_reads_nothing_is_ended_and_keeps_no_memory(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsent, send = [0], Socket.send

    def count(socket: Socket, messages: Sequence[Message]) -> None:
        send(socket, messages)
        unsent.append(socket.unsent_bytes)

    monkeypatch.setattr(Socket, "send", count)
    limits = {"liveness_timeout_s": 0.5, "max_unsent_bytes": 8192, "max_messages_per_s": 100_000}
    async with (
        at_home(limits=limits) as (server, _),
        tcp_serving(server, WYOMING) as (port, tcp),
        connected(port) as peer,
    ):
        peer.writer.write(begin)

        async def flood() -> None:
            while not peer.writer.is_closing():
                peer.writer.write(event("ping", {"text": "x" * 256}) * 20)
                await peer.writer.drain()

        flooding = asyncio.create_task(flood())
        await server.eventually(lambda: max(unsent) > 8192 and not tcp.connections)
        assert max(unsent) < 16_384
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_what_is_sent_before_it_can_be_read_is_bounded() -> None:
    async with at_home(step_ms=50.0, slots=1) as (server, port), home(port) as client:
        client.send("audio-start", AT_24_KHZ)

        async def flood() -> None:
            for _ in range(40):
                client.send("audio-chunk", AT_24_KHZ, bytes(96_000))
                await client.peer.writer.drain()

        flooding = asyncio.create_task(flood())
        await server.eventually(lambda: bool(server.calls))
        kept = socket_of(server.calls[0])
        await server.eventually(lambda: kept.ahead_bytes > READ_AHEAD_BYTES)
        assert kept.ahead_bytes < READ_AHEAD_BYTES + 100_000
        flooding.cancel()


async def test_a_fault_of_ours_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_home() as (_, port):
        async with home(port) as client:
            with monkeypatch.context() as patched:
                patched.setattr("antiphon.serve.routes.wyoming.voice_of", None)
                client.send("synthesize", {"text": "a"})
                assert await client.peer.ended() == b""
        assert [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR] == [
            "connection failed"
        ]
        async with home(port) as client:
            client.send("synthesize", {"text": "a"})
            await client.until("audio-stop")
