"""A caller that hangs up while the server does not read: its row is free at once, drains complete."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.limits import Limits
from antiphon.log import Log
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.serve.hosting.front_end import drain
from antiphon.serve.hosting.ports import tls_context
from antiphon.serve.transport.frames import BINARY, FrameReader
from antiphon.serve.transport.socket import READ_AHEAD_BYTES, Socket
from tests.serve.asr_client import transcribing
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import PATIENCE_S, Server, socket_of, transport_of
from tests.serve.tts_client import speaking

STEP_S = 0.25
"""With this, what is sent below would take a minute, and more."""

FREE_S = 2.0
"""Within a second, the documents say; the engine counts its steps, so that a loaded machine has a margin."""

WORDS = kyutai_tts.encode_client(kyutai_tts.Text("abcdefgh " * 1500))
SECONDS = kyutai.encode(kyutai.Audio(np.zeros(48_000, np.float32)))


async def close_frame(ws: aiohttp.ClientWebSocketResponse) -> None:
    """As a client does that has had enough."""
    await ws.close()


async def fin(ws: aiohttp.ClientWebSocketResponse) -> None:
    """No more comes, and no word of it."""
    transport_of(ws).write_eof()


async def rst(ws: aiohttp.ClientWebSocketResponse) -> None:
    """As the kernel does for a process that was killed."""
    kept = transport_of(ws).get_extra_info("socket")
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport_of(ws).abort()


@asynccontextmanager
async def opened(serve: Any, path: str) -> AsyncIterator[tuple[Server, aiohttp.ClientWebSocketResponse]]:
    """A server and a caller of it."""
    async with (
        serve(slots=1, step_s=STEP_S) as (server, _),
        server.http.ws_connect(server.url(path, "ws"), max_msg_size=0) as ws,
    ):
        yield server, ws


def is_paused(server: Server) -> Callable[[], bool]:
    def look() -> bool:
        (call,) = server.calls
        return socket_of(call).is_paused

    return look


ROUTES = [(speaking, kyutai_tts.PATH, WORDS), (transcribing, kyutai.PATH, SECONDS)]


@pytest.mark.parametrize("hang_up", [close_frame, fin, rst])
@pytest.mark.parametrize(("serve", "path", "message"), ROUTES)
@pytest.mark.parametrize("messages", [2, 8])
async def test_the_row_is_free_although_the_reader_pauses(
    serve: Any, path: str, message: bytes, messages: int, hang_up: Callable[..., Any]
) -> None:
    async with serve(slots=1, step_s=STEP_S) as (server, steps):
        async with server.http.ws_connect(server.url(path, "ws"), max_msg_size=0) as ws:
            for _ in range(messages):
                await ws.send_bytes(message)
            await server.eventually(is_paused(server))
            started = steps.taken
            await hang_up(ws)
            await server.is_empty()
        is_behind_more = hang_up is close_frame and messages * len(message) > READ_AHEAD_BYTES
        # What is behind more is read at the pace at which it is decoded, which is that of the machine.
        assert steps.taken - started < (10 * FREE_S if is_behind_more else FREE_S) / STEP_S


@TLS_GOODBYE
@pytest.mark.parametrize("hang_up", [close_frame, rst])
async def test_the_row_is_free_behind_tls_too(hang_up: Callable[..., Any]) -> None:
    tls = tls_context(str(TLS / "test-cert.pem"), str(TLS / "test-key.pem"))
    async with speaking(slots=1, step_s=STEP_S, tls=tls) as (server, steps):
        url = server.url(kyutai_tts.PATH, "wss")
        async with server.http.ws_connect(url, ssl=False) as ws:
            for _ in range(2):
                await ws.send_bytes(WORDS)
            await server.eventually(is_paused(server))
            started = steps.taken
            await hang_up(ws)
            await server.is_empty()
        assert steps.taken - started < FREE_S / STEP_S


@pytest.mark.parametrize("hang_up", [fin, rst])
@pytest.mark.parametrize(("serve", "path", "message"), ROUTES)
async def test_a_connection_that_ends_behind_more_than_is_read_ahead_is_seen(
    serve: Any, path: str, message: bytes, hang_up: Callable[..., Any]
) -> None:
    """What the kernel holds is not read, but it knows that the connection is over."""
    async with opened(serve, path) as (server, ws):
        for _ in range(1 + 3 * READ_AHEAD_BYTES // (2 * len(message))):
            await ws.send_bytes(message)
        await server.eventually(is_paused(server))
        await hang_up(ws)
        await server.is_empty()


@pytest.mark.parametrize("hang_up", [close_frame, fin, rst])
async def test_a_drain_does_not_wait_for_a_caller_that_has_left(hang_up: Callable[..., Any]) -> None:
    async with opened(speaking, kyutai_tts.PATH) as (server, ws):
        for _ in range(2):
            await ws.send_bytes(WORDS)
        await server.eventually(is_paused(server))
        await hang_up(ws)
        async with asyncio.timeout(PATIENCE_S):
            await drain(server.app, 600.0, is_cut=lambda: False, log=Log())


class ScriptTransport(asyncio.Transport):
    """A transport that leads nowhere."""

    _is_closing = False

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def write(self, data: object) -> None:
        pass


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """As a client sends it, with a mask that changes nothing."""
    return bytes((0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0)) + payload


async def test_what_was_read_ahead_is_forgotten_when_the_peer_leaves_although_there_is_room() -> None:
    limits, room = replace(Limits(), close_timeout_s=0.1), asyncio.Event()
    kept = Socket(ScriptTransport(), limits, time.monotonic, FrameReader(1000))
    waiting = asyncio.create_task(kept.wait_for(room))
    kept.feed_data(b"".join(masked_frame(BINARY, letter) for letter in (b"a", b"b", b"c")))
    room.set()
    await waiting
    assert await kept.receive_any() == b"a"
    kept.feed_eof()
    assert kept.has_ended
    assert await kept.receive_any() is None
    assert kept.ahead_bytes == 0


@pytest.mark.parametrize(("serve", "path", "message"), ROUTES)
async def test_what_is_read_ahead_is_bounded(serve: Any, path: str, message: bytes) -> None:
    async with opened(serve, path) as (server, ws):
        sending = asyncio.create_task(flood(ws, message))
        await server.eventually(is_paused(server))
        (call,) = server.calls
        kept = socket_of(call)
        await server.eventually(lambda: kept.ahead_bytes > READ_AHEAD_BYTES)
        await asyncio.sleep(0.3)
        assert kept.ahead_bytes <= READ_AHEAD_BYTES + len(message) + 1000
        sending.cancel()
        await rst(ws)
        await server.is_empty()


async def flood(ws: aiohttp.ClientWebSocketResponse, message: bytes) -> None:
    while True:
        await ws.send_bytes(message)
