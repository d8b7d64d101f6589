"""The end of a call follows all output and waits a bounded time for its answer."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.errors import SessionFailedError
from antiphon.protocol import kyutai, moshi
from antiphon.protocol.kyutai_tts import Text
from antiphon.serve.hosting.ports import tls_context
from antiphon.serve.transport import socket as socket_module
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import Client, Closed, Server, serving, speech
from tests.serve.tts_client import listening, speaking

PATIENT = {"close_timeout_s": 10.0}


def only_call(server: Server) -> Any:
    (call,) = server.calls
    return call


async def test_who_is_behind_hears_all_that_was_said_and_why_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = PATIENT | {"max_unsent_bytes": 16_384}
    async with speaking(limits=limits) as (server, _), listening(server) as client:
        await server.eventually(lambda: bool(server.calls))
        call, made = only_call(server), 0
        advance = call.participant.advance

        def noted(now_s: float, *, may_take: bool) -> list[Any]:
            nonlocal made
            pieces: list[Any] = advance(now_s, may_take=may_take)
            made += sum(piece.size for piece in pieces if isinstance(piece, np.ndarray))
            return pieces

        monkeypatch.setattr(call.participant, "advance", noted)
        client.transport.pause_reading()
        await client.send(Text("abcdefgh " * 1000))
        await server.eventually(
            lambda: call.exchange.transport.is_congested()
        )  # so that nothing is being encoded
        call.end(SessionFailedError("a voice broke"))
        await asyncio.sleep(0.2)  # time enough to cut the connection, for one who does not wait
        client.transport.resume_reading()
        assert (await client.until(kyutai.Error)).message == "a voice broke"
        assert await client.until(Closed) == Closed(1011, "a voice broke")
        assert client.audio.size == made


async def test_a_peer_has_a_share_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = iter((0.0, 0.2, 0.2, 1.2))
    async with serving() as server, server.caller():
        socket = only_call(server).exchange.transport
        monkeypatch.setattr(socket_module, "time", SimpleNamespace(thread_time=lambda: next(spent_s)))
        assert socket.timed(len, b"abc") == 3
        assert socket.is_paused, "0.2 s at once are 4 s of its share"
        with pytest.raises(TypeError):
            socket.timed(len, 3)
        monkeypatch.undo()
        await server.eventually(lambda: not socket.is_paused)


async def test_what_was_made_before_an_error_is_heard_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, server.caller() as client:
        call = only_call(server)
        # No turn finds the reply before the error is there.
        monkeypatch.setattr(server.services.turns, "put", lambda _: None)
        await client.speak(speech(1))
        await server.eventually(lambda: call.participant.session.reply_frames == 1)
        await client.send(moshi.Audio(b"three"))  # no whole number of samples
        _, heard = await client.reply()
        assert heard.size == 1920
        error = (await client.event("error")).fields
        assert error["code"] == 1007
        assert (await client.closed()).code == 1007


async def test_who_still_speaks_hears_the_end_too() -> None:
    async with serving(limits=PATIENT) as server, server.caller() as client:
        client.transport.pause_reading()
        only_call(server).end()
        for index in range(10):
            await client.speak(speech(1, index))
            await asyncio.sleep(0.02)
        client.transport.resume_reading()
        assert await client.closed() == Closed(1000, "done")
        await server.is_empty()


@TLS_GOODBYE
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("flood", [b"", 50_000 * b"\x89\x80\0\0\0\0"], ids=["silent", "pings"])
async def test_who_never_answers_a_close_is_cut_off(is_secure: bool, flood: bytes) -> None:
    """TLS would wait for half a minute, and the pings that are here already take longer still to be read."""
    tls = tls_context(str(TLS / "test-cert.pem"), str(TLS / "test-key.pem")) if is_secure else None
    async with serving(limits={"close_timeout_s": 0.3}, tls=tls) as server:
        url = server.url("/api/chat?ext=1", "wss" if is_secure else "ws")
        async with server.http.ws_connect(url, ssl=False) as ws:
            client = Client(ws)
            await client.event("ready")
            client.transport.pause_reading()
            client.transport.write(flood)
            await asyncio.sleep(0.1)
            start_s = time.monotonic()
            only_call(server).end()
            await server.is_empty()
            assert 0.25 <= time.monotonic() - start_s < 25.0
            client.cut()


async def test_who_says_goodbye_is_answered_at_once() -> None:
    async with serving(limits=PATIENT) as server, server.caller() as client:
        start_s = time.monotonic()
        await client.ws.close(code=1000)
        await server.is_empty()
        assert client.ws.close_code == 1000
        assert time.monotonic() - start_s < PATIENT["close_timeout_s"]
