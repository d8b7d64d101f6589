"""JSON of the worst shapes on every route: no parser blocks the event loop.

The routes are those of the application's router, so a new one cannot be forgotten. What counts is processor
time of the loop's thread, in units of a fixed Python loop, of each message of a socket and each call of a
general parser: neither a busy machine nor the client, which has a thread of its own, changes it much.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.payload import MAX_JSON_BYTES
from antiphon.serve.access.shared_secret import HEADER, SharedSecret
from antiphon.serve.transport.socket import Socket
from tests.serve.harness import Server
from tests.serve.hostile import ATTACKS, Asked, Upgraded
from tests.serve.neighbours import assert_no_fault, everything
from tests.support.worst_inputs import audio_event, json_texts, unit_ms

MAX_UNITS = 10.0
"""6 ms where a unit takes 0.6: four times the most measured. A list of 350,000 lists took 1,200."""

SHAPES = (
    *("all []", "all {}", "all 1", "all 1.5", "keys", "many strings", "depth", "a long number"),
    *("text of '\\\\n'", "text of '\\\\u4e00'", "text of '\u4e00'"),
)
SIGNED = {"POST /api/hand-over": 2048, "POST /api/drain": 4096, "POST /api/canary": 256}
"""Routes that are there with a secret, and how much is read of a body."""

PARSERS: tuple[tuple[Any, str], ...] = (
    *((Socket, "timed"), (json, "loads")),
    *((base64, "b64decode"), (msgpack, "unpackb")),
)
SECRET = SharedSecret(b"a secret of two workers")


@cache
def texts(size: int, kind: str) -> tuple[str, ...]:
    found = {shape: text for shape, text in json_texts(size, kind) if shape in SHAPES}
    assert len(found) == len(SHAPES)
    return tuple(found.values())


@contextmanager
def parsers_timed() -> Iterator[list[float]]:
    """The processor time of each message of a socket and each call of a parser on this thread, in ms."""
    own, took_ms = threading.get_ident(), list[float]()

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            began_s = time.thread_time()
            try:
                return work(*args, **options)
            finally:
                if threading.get_ident() == own:
                    took_ms.append(1000 * (time.thread_time() - began_s))

        return run

    gc.collect()
    gc.disable()  # a collection belongs to no message
    try:
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in (
                (Socket, "timed"),
                (json, "loads"),
                (base64, "b64decode"),
                (msgpack, "unpackb"),
            ):
                patch.setattr(owner, name, timed(getattr(owner, name)))
            yield took_ms
    finally:
        gc.enable()


async def say(server: Server, url: str, messages: list[str | bytes]) -> None:
    """Each of these on a connection of its own, until it is read or refused."""
    async with aiohttp.ClientSession() as http:
        for message in messages:
            try:
                async with http.ws_connect(server.url(url, "ws"), max_msg_size=0) as ws:
                    await (ws.send_bytes(message) if isinstance(message, bytes) else ws.send_str(message))
                    await ws.close()
            except (aiohttp.ClientError, ConnectionError):
                pass  # refused before it was read whole


async def post(server: Server, path: str, bodies: list[bytes], headers: dict[str, str], most: int) -> None:
    async with aiohttp.ClientSession() as http:
        for body in bodies:
            data, signed = body, dict(headers)
            if most:
                header = SECRET.sign("POST", path, len(body), time.time(), worker="b")
                tag = SECRET.tag(header)
                tag.update(body)
                data, signed = body + tag.digest(), {HEADER: header}
            try:
                async with http.post(server.url(path), data=io.BytesIO(data), headers=signed) as response:
                    assert response.status < 500 or response.status == 503, (path, response.status)
                    await response.read()
            except (aiohttp.ClientError, ConnectionError):
                pass  # refused before it was read whole


def attack_on(route: str, server: Server) -> Any:
    """What says it all to a route, in a coroutine for another thread."""
    path = route.partition(" ")[2]
    attack = ATTACKS.get(route)
    if isinstance(attack, Upgraded):
        kinds = ("session.update", "input_audio_buffer.append")
        words: list[str | bytes] = [text for kind in kinds for text in texts(MAX_EVENT_CHARS, kind)]
        words += texts(MAX_EVENT_CHARS // 2, "session.update")
        words += map(audio_event, ("session.input_audio.append", "input_audio_buffer.append"))
        words += [b"\x10" + text.encode() for text in texts(MAX_JSON_BYTES - 10, "set")]
        samples: tuple[list[Any], ...] = ([1] * 24_000, [[]] * 9000)
        words += [bytes(msgpack.packb({"type": "Audio", "pcm": pcm})) for pcm in samples]
        return say(server, attack.urls[-1], words)
    most = SIGNED.get(route, 0)
    sizes = (most or MAX_JSON_BYTES, MAX_EVENT_CHARS)
    bodies = [text.encode() for size in sizes for text in texts(size, "x")]
    if most:
        bodies = [body[:most] for body in bodies]
    headers = dict(attack.headers) if isinstance(attack, Asked) else {}
    return post(server, path, bodies, headers or {"Content-Type": "application/json"}, most)


async def test_no_json_of_any_shape_holds_the_event_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_bytes(SECRET.key)
    unit = unit_ms()
    async with everything(hand_over_secret=str(tmp_path / "secret"), worker="b") as server:
        there = {
            f"{route.method} {route.resource.canonical.removeprefix('/m/{model}')}"
            for route in server.app.router.routes()
            if route.resource is not None
        }
        sockets = {route for route, attack in ATTACKS.items() if isinstance(attack, Upgraded)}
        routes = sorted(it for it in there if it in sockets or not it.startswith(("GET ", "HEAD ")))
        assert set(SIGNED) < set(routes)
        longest: dict[str, float] = {}
        for route in [*routes, *routes]:
            if longest.get(route, MAX_UNITS + 1) <= MAX_UNITS:
                continue  # of two attacks the lesser counts: a machine that stands still spoils one at most
            with parsers_timed() as took_ms:
                await asyncio.to_thread(asyncio.run, attack_on(route, server))
            longest[route] = round(max(took_ms, default=0.0) / unit, 1)
    assert {route: units for route, units in longest.items() if units > MAX_UNITS} == {}, longest
    assert_no_fault(caplog)
