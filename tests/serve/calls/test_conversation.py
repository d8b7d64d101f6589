"""Common rules of conversations over a WebSocket: an ended one does not delay others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar, cast

import aiohttp
import pytest

from antiphon.log import LINE_PERIOD_S
from antiphon.protocol import moshi
from antiphon.protocol.chat import parse_chat_query
from antiphon.serve.hosting.app import BURST_LINES
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.routes.chat import chat_call
from antiphon.serve.transport.socket import Socket
from tests.serve.harness import serving, speech

T = TypeVar("T")


class LateSocket:
    """A socket whose last message is handed over when the close that we began is already done."""

    seen_s = 0.0
    close_code: int | None = None

    def __init__(self) -> None:
        self.is_read = asyncio.Event()
        self.is_closed = asyncio.Event()

    async def receive_any(self) -> bytes:
        self.is_read.set()
        await self.is_closed.wait()
        return moshi.encode(moshi.Event("flush"))

    def taking_at_once(self, _taker: object) -> AbstractContextManager[None]:
        return nullcontext()

    def timed(self, work: Callable[[bytes], T], message: bytes) -> T:
        return work(message)

    async def close(self, code: int, _reason: str) -> None:
        self.close_code = code
        self.is_closed.set()

    async def wait_for(self, room: asyncio.Event) -> None:
        await room.wait()

    def silent_s(self) -> float:
        return 0.0

    def is_congested(self) -> bool:
        return True

    def send(self, messages: object) -> None:
        pass


async def test_a_message_that_comes_with_the_end_keeps_nobody_waiting_for_room() -> None:
    async with serving() as server:
        services = server.app[SERVICES]
        (model,) = services.models
        query = {"ext": "1", "format": "pcm_f32le"}
        call = chat_call(services, model, parse_chat_query(query, defaults=model.defaults, max_wait_s=600.0))
        call.dialect.policy = replace(call.dialect.policy, has_answers=True)
        await call.admit()
        socket = LateSocket()
        async with asyncio.timeout(120.0):
            running = asyncio.create_task(call.run(cast("Socket", socket)))
            await socket.is_read.wait()
            call.end()
            await running
        assert socket.close_code == 1000
        await server.is_empty()


async def test_what_breaks_in_the_server_while_it_reads_is_its_own_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server, server.caller() as client:
        (call,) = server.calls
        monkeypatch.setattr(call.dialect, "feed", lambda _message: 1 // 0)
        await client.speak(speech(1))
        closed = await client.closed()
        assert (closed.code, closed.reason) == (1011, "the server failed: ZeroDivisionError")
        await server.is_empty()


async def test_sockets_that_end_by_their_callers_fault_without_end_are_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start_s = time.monotonic()
    async with serving() as server:
        for _ in range(BURST_LINES + 20):
            async with server.http.ws_connect(server.url("/api/chat", "ws")) as ws:
                await ws.send_bytes(b"\x03\x09")
                while (await ws.receive()).type is aiohttp.WSMsgType.BINARY:
                    pass
    ends = [it for it in caplog.records if it.getMessage() == "session ends"]
    refilled = (time.monotonic() - start_s) / LINE_PERIOD_S
    assert BURST_LINES <= len(ends) <= BURST_LINES + refilled
    assert {"model", "session", "error", "reason"} <= set(vars(ends[0])["fields"])
