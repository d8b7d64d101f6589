"""Watchers of a session of OpenAI Live: their events, permissions and end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.routes.live_watcher import MAX_WATCHERS
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.upgrade import open_socket
from tests.serve.harness import FRAME_SAMPLES, Client, Closed, serving
from tests.serve.live_client import PATH, live_client, parrot, watchers_of


async def test_a_watcher_sees_a_session_and_may_command_it() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        session = await client.start(audio={"format": {"type": "audio/pcmu"}})
        async with live_client(server, f"{PATH}/{session['id']}/attach") as watcher:
            await watcher.send("session.input_audio.mute", event_id="w")
            for it in (client, watcher):
                assert (await it.event("session.input_audio.muted"))["client_event_id"] == "w"
            await watcher.send("session.input_audio.unmute")
            await client.event("session.input_audio.unmuted")
            tone = (0.4 * np.sin(2 * np.pi * 500 * np.arange(8000) / 8000)).astype(np.float32)
            await client.append(g711.encode(tone, Law.MU))
            heard = np.zeros(0, np.int16)
            while heard.size < 23_800:  # in the steps of its decoder
                piece = (await watcher.event("session.input_audio.append"))["audio"]
                heard = np.concatenate([heard, np.frombuffer(base64.b64decode(piece), "<i2")])
            assert heard.size == pytest.approx(24_000, abs=200)
            assert 0.38 < np.abs(heard).max() / 32768 < 0.42
            said = await watcher.until(
                lambda it: it["type"] == "session.output_audio.delta" and any(base64.b64decode(it["delta"]))
            )
            assert said["end_ms"] - said["start_ms"] == 80
            assert len(base64.b64decode(said["delta"])) == 2 * FRAME_SAMPLES
            await watcher.append(b"\0\0", event_id="a")
            assert await watcher.error() == {
                "type": "invalid_request_error",
                "code": "unsupported_event",
                "message": "type is not for a connection that is attached",
                "param": "type",
                "client_event_id": "a",
            }
            assert not client.of("error")
            await watcher.send("session.close")
            assert (await client.event("session.closed"))["reason"] == "close_requested"
            assert (await watcher.event("session.closed"))["session"]["id"] == session["id"]
            assert await watcher.closed() == Closed(1000, "done")
        await server.is_empty()


async def test_a_watcher_learns_that_the_client_has_vanished() -> None:
    async with serving() as server, live_client(server) as client:
        session = await client.start()
        async with live_client(server, f"{PATH}/{session['id']}/attach") as watcher:
            (call,) = server.calls
            await server.eventually(lambda: len(watchers_of(call)) == 1)
            await client.audio()
            Client(client.ws).transport.abort()
            closed = await watcher.event("session.closed")
            assert (closed["reason"], closed["session"]["id"]) == ("connection_lost", session["id"])
            assert closed["usage"]["seconds"] > 0
            assert await watcher.closed() == Closed(1000, "done")
        await server.is_empty()


async def test_a_watcher_that_leaves_harms_nothing() -> None:
    async with serving() as server, live_client(server) as client:
        session = await client.start()
        (call,) = server.calls
        async with live_client(server, f"{PATH}/{session['id']}/attach"):
            await server.eventually(lambda: len(watchers_of(call)) == 1)
        await server.eventually(lambda: not watchers_of(call))
        await client.audio()


async def test_sessions_that_are_not_there_and_too_many_watchers(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    lines = [format_key(KeyEntry(name, digest_of(f"key-of-{name}"))) + "\n" for name in ("alice", "bob")]
    keys.write_text("".join(lines))
    alice, bob = ({"x-api-key": f"key-of-{name}"} for name in ("alice", "bob"))
    async with serving(api_keys=str(keys)) as server, live_client(server, **alice) as client:
        session = await client.start()
        path = f"{PATH}/{session['id']}/attach"
        for other, headers in ((path, bob), (f"{PATH}/live_none/attach", alice)):
            async with live_client(server, other, **headers) as watcher:
                error = await watcher.error()
                assert (error["code"], error["message"]) == ("session_not_found", "no such session here")
                assert (await watcher.closed()).code == 1008
        async with AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(live_client(server, path, **alice)) for _ in range(5)]
            assert (await watchers[-1].error())["message"] == "the session has 4 of 4 watchers"


@asynccontextmanager
async def slow_upgrades(monkeypatch: pytest.MonkeyPatch, waiting: int) -> AsyncIterator[asyncio.Event]:
    """So many WebSockets wait until the event is set, once they are to be opened."""
    may_open, are_there, now = asyncio.Event(), asyncio.Event(), 0

    async def late(*args: Any, **options: Any) -> tuple[Socket, Any]:
        nonlocal now
        now += 1
        if now >= waiting:
            are_there.set()
        await may_open.wait()
        return await open_socket(*args, **options)

    with monkeypatch.context() as patched:
        for module in ("routes.live_watcher", "calls.connect"):
            patched.setattr(f"antiphon.serve.{module}.open_socket", late)
        yield are_there
    may_open.set()


async def test_watchers_that_attach_at_once_are_no_more_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server, live_client(server) as client, AsyncExitStack() as stack:
        session = await client.start()
        path = f"{PATH}/{session['id']}/attach"
        async with slow_upgrades(monkeypatch, 8) as are_there:
            attaching = [
                asyncio.create_task(stack.enter_async_context(live_client(server, path))) for _ in range(8)
            ]
            await are_there.wait()
        watchers = [await it for it in attaching]
        (call,) = server.calls
        await server.eventually(lambda: len(watchers_of(call)) == MAX_WATCHERS)
        await client.send("session.input_audio.mute")
        told = [
            await it.until(lambda event: "muted" in event["type"] or event["type"] == "error")
            for it in watchers
        ]
        assert [it["type"] for it in told].count("error") == 8 - MAX_WATCHERS
        await client.send("session.close")
        for watcher in watchers:
            await watcher.closed()


async def test_a_watcher_that_attaches_while_the_call_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, live_client(server) as client, AsyncExitStack() as stack:
        session = await client.start()
        async with slow_upgrades(monkeypatch, 1) as is_there:
            attaching = asyncio.create_task(
                stack.enter_async_context(live_client(server, f"{PATH}/{session['id']}/attach"))
            )
            await is_there.wait()
            await client.send("session.close")
            await client.closed()
            await server.is_empty()
        assert await (await attaching).closed() == Closed(1000, "done")


async def test_a_session_of_another_front_end_is_refused_with_the_reason() -> None:
    async with (
        serving(front_ends=2) as server,
        live_client(server, f"{PATH}/live_of_another/attach") as watcher,
    ):
        error = await watcher.error()
        assert error["code"] == "session_not_found"
        assert error["message"] == (
            "no such session here; this is one of several front ends, and a session is watched through "
            "the one that holds it: --front-ends 0, or 1, has only one"
        )
        assert (await watcher.closed()).code == 1008
