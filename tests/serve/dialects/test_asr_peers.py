"""Hostile peers of ``/api/asr-streaming``, also without reads: they get an error, others no effect."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc

import msgpack
import numpy as np
import pytest

from antiphon.audio.ogg import OggOpusWriter
from antiphon.protocol import kyutai
from antiphon.protocol.kyutai import Audio, Error, Marker, OggOpus, Ready, Step
from tests.serve.asr_client import Scribe, scribe, sentence, spoken, transcribing
from tests.serve.harness import PATIENCE_S, Closed

AUDIO_HEAD = b"\x82\xa4type\xa5Audio\xa3pcm"

OPUS = OggOpusWriter(1)

HOSTILE = {
    "no msgpack": (b"\xc1\xc1", "no msgpack"),
    "text where a map belongs": (b"\xa3abc", "a map is needed"),
    "a giant array": (AUDIO_HEAD + b"\xdd\xff\xff\xff\xff", "incomplete input"),
    "a giant map": (b"\xdf\xff\xff\xff\xff", "incomplete input"),
    "deep nesting": (b"\x91" * 100_000, "no msgpack"),
    "nothing": (b"", "no msgpack"),
    "a sample that is no number": (AUDIO_HEAD + b"\x91\xca\x7f\xc0\x00\x00", "Audio.pcm[0] is nan"),
    "what servers say": (msgpack.packb({"type": "Word", "text": "a", "start_time": 0.0}), "not known here"),
    "an endless marker": (msgpack.packb({"type": "Marker", "id": 2**63}), "Marker.id is 9223372036854775808"),
    "opus that is not Ogg": (msgpack.packb({"type": "OggOpus", "data": b"x" * 200_000}), "bytes"),
    "a packet that is not Opus": (
        msgpack.packb({"type": "OggOpus", "data": OPUS.headers() + OPUS.page([b"\x03\x00"], 960)}),
        "libopus",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_means_nothing_is_named_to_its_sender_and_nobody_else(name: str) -> None:
    data, says = HOSTILE[name]
    tokens, texts = sentence(3)
    async with transcribing() as (server, _), scribe(server) as good, scribe(server) as bad:
        await good.speak(spoken(tokens)[:4000])
        await bad.ws.send_bytes(data)
        error = await bad.until(Error)
        assert says in error.message
        closed = await bad.receive()
        assert isinstance(closed, Closed)
        assert closed.code == 1007
        await good.speak(spoken(tokens)[4000:])
        await good.send(Marker(1))
        await good.until(Marker)
        assert good.texts == texts


async def test_init_after_audio_is_out_of_order() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        await client.send(Audio(np.zeros(10, np.float32)))
        await client.send(kyutai.Init())
        assert "Init came after audio" in (await client.until(Error)).message


async def test_a_message_that_is_too_large_closes_with_1009() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        await client.ws.send_bytes(bytes(300_000))
        while not isinstance(message := await client.receive(), Closed):
            pass
        assert message.code == 1009


async def test_samples_beyond_full_scale_are_clipped() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        await client.speak(spoken([0, 7]))
        await client.send(Audio(np.full(1920, 1e30, np.float32)))
        await client.send(Marker(1))
        await client.until(Marker)
        assert client.texts == ["7"], "1000 thousandths spell a boundary"


async def test_no_more_markers_than_anybody_needs() -> None:
    limits = {"max_messages_per_s": 100_000}
    async with transcribing(step_s=0.5, limits=limits) as (server, _), scribe(server) as client:
        await client.send(Audio(np.zeros(40_000, np.float32)))
        for marker in range(4000):
            if client.ws.closed:
                break
            await client.send(Marker(marker))
        assert "1024 markers are pending" in (await client.until(Error)).message


def ogg_of_silence(seconds: int) -> bytes:
    """A stream whose packets of one byte stand for 60 ms each: little to send, much to hear."""
    writer = OggOpusWriter(7)
    pages = [writer.headers()]
    pages += [writer.page([b"\x18"] * 250, 250 * 1440) for _ in range(seconds // 15)]
    return b"".join(pages)


async def test_a_giant_ogg_is_slowed_and_costs_no_memory() -> None:
    stream = ogg_of_silence(seconds=900)
    async with transcribing() as (server, steps), scribe(server) as bomb, scribe(server) as good:
        await bomb.send(OggOpus(stream[:4000]))
        await bomb.until(Step)
        gc.collect()
        tracemalloc.start()
        try:
            await bomb.send(OggOpus(stream[4000:]))
            tokens, texts = sentence(5)
            await good.speak(spoken(tokens))
            await good.send(Marker(1))
            await good.until(Marker)
            assert good.texts == texts
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # Decoded at once it would be 86 MB.
        assert peak < 30_000_000
        assert steps.taken > 0


async def test_a_peer_that_does_not_read_is_let_go_and_holds_up_nobody() -> None:
    limits = {"max_unsent_bytes": 4096, "liveness_timeout_s": 2.0, "max_messages_per_s": 100_000}
    async with (
        transcribing(limits=limits, slots=2) as (server, _),
        scribe(server) as deaf,
        scribe(server) as good,
    ):
        assert await deaf.receive() == Ready()
        deaf.transport.pause_reading()
        connection = deaf.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # or the kernel reads for it

        async def flood() -> None:
            while True:
                await deaf.send(Audio(np.zeros(24_000, np.float32)))
                await asyncio.sleep(0.01)

        flooding = asyncio.create_task(flood())
        tokens, texts = sentence(5)
        await good.speak(spoken(tokens))
        await good.send(Marker(1))
        await good.until(Marker)
        assert good.texts == texts
        async with asyncio.timeout(PATIENCE_S):  # a thousand steps fill what the kernels hold between the two
            while server.engine.health().active > 1:  # noqa: ASYNC110 (another thread's doing)
                await asyncio.sleep(0.02)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        deaf.transport.abort()


async def test_who_is_slowed_by_us_is_not_called_silent() -> None:
    limits = {"liveness_timeout_s": 2.0, "idle_timeout_s": 2.0, "max_message_bytes": 1 << 20}
    async with transcribing(step_s=0.05, limits=limits) as (server, _), scribe(server) as client:
        tokens, texts = sentence(20)
        for half in np.split(spoken(tokens), 2):  # 4 s of steps, for most of which we do not read
            await client.send(Audio(half))
        await client.send(Marker(1))
        await client.until(Marker)
        assert client.texts == texts


async def test_who_falls_silent_is_let_go() -> None:
    limits = {"idle_timeout_s": 0.4, "liveness_timeout_s": 0.4}
    async with transcribing(limits=limits) as (server, _), scribe(server) as client:
        await client.send(Audio(np.zeros(1920, np.float32)))
        error = await client.until(Error)
        assert "no audio for" in error.message or "no sign of life" in error.message
        assert await client.receive() == Closed(1008, "")


async def test_random_bytes_never_hurt_a_neighbour() -> None:
    rng = np.random.default_rng(0)
    async with transcribing(slots=2) as (server, _), scribe(server) as good:
        tokens, texts = sentence(20)
        speaking = asyncio.create_task(good.speak(spoken(tokens), pause_s=0.002))
        for _ in range(20):
            async with scribe(server) as bad:
                await _babble(bad, rng)
        await speaking
        await good.send(Marker(1))
        await good.until(Marker)
        assert good.texts == texts
        assert not good.told(Error)


async def _babble(bad: Scribe, rng: np.random.Generator) -> None:
    """Nonsense until the server has had enough; its last words are an error."""
    for _ in range(20):
        size = int(rng.integers(0, 60))
        await bad.ws.send_bytes(rng.bytes(size))
    last = None
    while not isinstance(message := await bad.receive(), Closed):
        last = message
    assert bad.closed is not None
    assert isinstance(last, Error)
    assert bad.closed.code in (1007, 1013)
