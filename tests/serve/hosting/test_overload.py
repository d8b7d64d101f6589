"""Overload: event loop lag is measured and stops admission; handlers run in short steps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import aiohttp
import numpy as np
import pytest

from antiphon.audio.codecs import make_encoder
from antiphon.audio.ogg import OggOpusWriter
from antiphon.protocol import kyutai, moshi
from antiphon.serve.hosting.event_loop import LOOKS, WORST_S, LoopLag
from tests.serve.asr_client import transcribing
from tests.serve.harness import PATIENCE_S, Server, serving, speech

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

HANDLER_S = 0.02
"""A quarter of a frame: what one handler may keep every other session waiting."""

BURST = 200
"""Connections at once."""

LAG_MS = 100.0


def test_the_lag_is_a_median_of_the_last_looks_and_the_worst_is_forgotten() -> None:
    now_s, told = 100.0, list[float]()
    lag = LoopLag(lambda: now_s, told.append)
    assert (lag.lag_s, lag.worst_s) == (0.0, 0.0)
    for look_s in [0.0] * LOOKS + [0.5]:
        lag.note(now_s, look_s)
    assert (lag.lag_s, lag.worst_s) == (0.0, 0.5)  # one slow look is no overload
    for _ in range(LOOKS):
        lag.note(now_s, 0.1)
    assert told[-1] == lag.lag_s == 0.1
    now_s += WORST_S + 0.1
    assert lag.worst_s == 0.0


@contextmanager
def busy_loop(share_s: float) -> Iterator[None]:
    """Handlers of ``share_s`` keep the loop from everything else, without end."""
    loop, is_over = asyncio.get_running_loop(), False

    def burn() -> None:
        end_s = time.perf_counter() + share_s
        while time.perf_counter() < end_s:
            pass
        if not is_over:
            loop.call_later(0.001, burn)

    burn()
    try:
        yield
    finally:
        is_over = True


async def is_ready(server: Server, status: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await server.get("/readyz"))[0] != status:  # noqa: ASYNC110 (what it waits for is a measure)
            await asyncio.sleep(0.05)


async def caller(server: Server, stack: AsyncExitStack) -> None:
    """Call until a call is admitted: a machine that is busy otherwise makes the loop late too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(aiohttp.WSServerHandshakeError):
                await (await stack.enter_async_context(server.call(""))).receive()
                return
            await asyncio.sleep(0.05)


async def test_a_loop_that_is_late_admits_nobody_and_soon_after_it_does() -> None:
    async with serving(engine={"host_lag_ms": LAG_MS}) as server, AsyncExitStack() as stack:
        await caller(server, stack)
        with busy_loop(3 * LAG_MS / 1000.0):
            await is_ready(server, 503)
            _, text, _ = await server.get("/readyz")
            assert text.partition(":")[0] == "late"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with server.call(""):
                    raise AssertionError("admitted")
            assert refused.value.status == 503
            _, text, _ = await server.get("/api/chat")
            assert "the server's event loop runs" in text
            assert "(admission stops above 100 ms)" in text
            _, text, _ = await server.get("/healthz", Accept="application/json")
            assert json.loads(text)["loop"]["lag_ms"] > LAG_MS
        await is_ready(server, 200)
        await caller(server, stack)


@pytest.fixture
def collected() -> Iterator[None]:
    """Of what other tests have left in this process nothing is collected within a handler."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watch:
    """The longest time of CPU that one handler of this thread's event loop took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest_s, self.what, thread = 0.0, "", threading.get_ident()
        run: Callable[[asyncio.Handle], None] = asyncio.Handle._run

        def watched(handle: asyncio.Handle) -> None:
            start_s = time.thread_time()
            run(handle)
            took_s = time.thread_time() - start_s
            if took_s > self.longest_s and threading.get_ident() == thread:
                self.longest_s, self.what = took_s, repr(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", watched)


async def assert_short(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[None]]) -> None:
    """No handler takes long, the first time either."""
    with monkeypatch.context() as patch:
        watch = Watch(patch)
        await work()
    assert 0.0 < watch.longest_s < HANDLER_S, watch.what


def tiny_packets() -> bytes:
    """As much audio as fits into a message of Ogg: half a minute a page, in 255 packets of two bytes."""
    writer = OggOpusWriter(1)
    pages = [writer.page([b"\x0b\x02"] * 255, 255 * 2880) for _ in range(20)]
    return writer.headers() + b"".join(pages)


async def send_all(server: Server, path: str, messages: list[bytes]) -> None:
    """Send from a thread of its own, and hear what comes for a second."""

    async def send() -> None:
        async with aiohttp.ClientSession() as http, http.ws_connect(server.url(path, "ws")) as ws:
            await ws.receive()
            for message in messages:
                await ws.send_bytes(message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while (await ws.receive()).type is aiohttp.WSMsgType.BINARY:
                        pass

    await asyncio.to_thread(asyncio.run, send())


OPUS = moshi.encode(moshi.Audio(make_encoder("opus").encode(speech(1))[0]))
OGG = make_encoder("ogg")
SPEECH = b"".join(page for start in range(300) for page in OGG.encode(speech(1, start)))
LIVE = {
    "pages of tiny packets": ("ogg", [moshi.encode(moshi.Audio(tiny_packets()))]),
    "half a minute of Ogg": ("ogg", [moshi.encode(moshi.Audio(SPEECH))]),
    "packets without a pause": ("opus", [OPUS] * 2000),
    "the longest 16-bit message": ("pcm_s16le", [moshi.encode(moshi.Audio(bytes(262_000)))]),
    "the longest float message": ("pcm_f32le", [moshi.encode(moshi.Audio(bytes(262_000)))]),
}


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("name", LIVE)
async def test_no_message_of_a_live_call_keeps_the_loop_long(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    audio_format, messages = LIVE[name]
    path = f"/api/chat?ext=1&format={audio_format}"
    async with serving(limits={"max_messages_per_s": 100_000}) as server:
        await assert_short(monkeypatch, lambda: send_all(server, path, messages))


@pytest.mark.usefixtures("collected")
async def test_a_burst_of_connections_keeps_the_loop_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_all(url: str) -> None:
        async def call(http: aiohttp.ClientSession) -> None:
            async with http.ws_connect(url) as ws:
                await ws.receive()
                await asyncio.sleep(1.0)

        async def call_together() -> None:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
                await asyncio.gather(*(call(http) for _ in range(BURST)))

        asyncio.run(call_together())

    async with serving(slots=2 * BURST) as server:

        async def burst() -> None:
            await asyncio.to_thread(call_all, server.url("/api/chat", "ws"))
            await server.is_empty()

        await assert_short(monkeypatch, burst)


HEARD: dict[str, kyutai.ClientMessage] = {
    "pages of tiny packets": kyutai.OggOpus(tiny_packets()),
    "half a minute of Ogg": kyutai.OggOpus(SPEECH),
    "the longest message of samples": kyutai.Audio(np.zeros(52_000, np.float32)),
}


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("name", HEARD)
async def test_no_message_of_a_recogniser_keeps_the_loop_long(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with transcribing(slots=1) as (server, _):
        message = kyutai.encode(HEARD[name])
        await assert_short(monkeypatch, lambda: send_all(server, kyutai.PATH, [message]))
