"""Calls without resume stay on a worker that hands over its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.log import Log
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from antiphon.serve.hosting import front_end
from antiphon.serve.operator import drain
from tests.serve.harness import FRAME_SAMPLES, STOCK_QUERY, Client, Server, serving, speech
from tests.serve.resuming import QUERY, MovingCaller
from tests.support.null_models import DUPLEX

FRAMES = 16
STEP = 6
"""Frames that are sent at once: no bound of the server is reached at any speed."""


class StockCaller:
    """Speaks Ogg/Opus as Moshi's own clients do, and hears the audio that answers it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._encoder, self._decoder = make_encoder(AudioFormat.OGG), make_decoder(AudioFormat.OGG)
        self._sent_frames = self._heard_samples = 0

    async def speak(self) -> None:
        """Send some frames, and wait for the answer to all but the last, which the codec holds."""
        for frame in speech(STEP).reshape(STEP, FRAME_SAMPLES):
            for payload in self._encoder.encode(frame):
                await self.client.send(moshi.Audio(payload))
        self._sent_frames += STEP
        while self._heard_samples < (self._sent_frames - DUPLEX.delay_frames - 1) * FRAME_SAMPLES:
            message = await self.client.until(lambda it: isinstance(it, moshi.Audio))
            self._heard_samples += self._decoder.feed(message.data).size


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncIterator[tuple[Server, Server]]:
    """Servers that share a secret."""
    (folder / "secret").write_text("a secret of two workers\n")
    common: dict[str, Any] = {"spec": DUPLEX, "slots": 3, "hand_over_secret": str(folder / "secret")}
    async with serving(**common, worker="a") as a, serving(**common, worker="b") as b:
        yield a, b


@asynccontextmanager
async def draining(a: Server, b: Server, folder: Path, limit_s: float) -> AsyncIterator[asyncio.Task[None]]:
    """``antiphon drain --hand-over`` has been typed for the first of two; the task is its end."""
    begun: list[asyncio.Task[None]] = []

    def begin(target: str, _engine: str) -> None:
        leaving = front_end.drain(a.app, limit_s, is_cut=lambda: False, log=Log(), target=target)
        begun.append(asyncio.create_task(leaving))

    a.services.begin_drain = begin
    said = [a.url(""), "--hand-over", b.url(""), "--secret", str(folder / "secret")]
    assert await asyncio.to_thread(drain.main, said) == 0
    (ending,) = begun
    yield ending


async def test_a_stock_call_stays_until_it_ends_while_one_that_can_be_resumed_goes(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (a, b), a.call(STOCK_QUERY) as client:
        stock = StockCaller(client)
        await stock.speak()
        moving = MovingCaller(a.http, a.url(f"/api/chat?{QUERY}"), speech(FRAMES))
        moving.workers = {"a": a.url(""), "b": b.url("")}
        moving.sends_until = FRAMES // 2
        running = asyncio.create_task(moving.run())
        await moving.until_answered(FRAMES // 2 - DUPLEX.delay_frames)
        async with draining(a, b, tmp_path, limit_s=600.0) as ending:
            await b.eventually(lambda: moving.thread.resumptions == 1)
            moving.go_on()
            await running
            await stock.speak()
            await a.eventually(lambda: len(a.calls) == 1)  # the other one has left
            assert not ending.done()
            await client.ws.close()
            await ending
    assert moving.thread.worker == "b"
    assert {type(it) for it in client.messages} == {moshi.Handshake, moshi.Audio, moshi.Text}
    assert b.engine.health().active == 0


async def test_a_stock_call_that_does_not_end_is_closed_at_the_limit(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (a, b), a.call(STOCK_QUERY) as client:
        stock = StockCaller(client)
        await stock.speak()
        async with draining(a, b, tmp_path, limit_s=0.1) as ending:
            closed = await client.closed()
            await ending
        assert b.engine.health().active == 0
    assert (closed.code, closed.reason) == (1001, "the server is shutting down; calls had 0.1 s to finish")
