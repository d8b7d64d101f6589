"""Fifty callers that connect, leave and vanish: each gets its own frames, in order."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import numpy as np

from antiphon.audio.codecs import make_encoder
from antiphon.backends.base import FloatArray
from antiphon.backends.null import WordArray, extend_history, hash_frames
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from tests.serve.harness import FRAME_SAMPLES, Client, Server, serving, speech
from tests.support.null_models import DUPLEX
from tests.support.stamp import read_stamp

CALLERS = 50
SLOTS = 8


async def one_call(server: Server, seed: int) -> int:
    """Call, speak some frames while hearing others, leave in one of three ways; returns frames checked."""
    chance = random.Random(seed)
    await asyncio.sleep(chance.random() * 0.5)
    async with server.call("ext=1&format=pcm_f32le&wait=60") as client:
        await client.event("ready")
        frames = chance.randint(3, 10)
        pcm = speech(frames, seed).reshape(frames, FRAME_SAMPLES)
        sender = asyncio.create_task(send_paced(client, pcm, chance))
        heard = await hear(client, pcm, chance.randint(2, frames))
        ending = chance.choice(["close", "cut_connection", "stay"])
        if ending == "stay":
            await sender
            heard += await hear(client, pcm, frames - heard, first=heard)
        sender.cancel()
        if ending == "cut_connection":
            client.cut()
        return heard


async def send_paced(client: Client, pcm: FloatArray, chance: random.Random) -> None:
    for frame in pcm:
        cut = chance.randrange(FRAME_SAMPLES)
        for piece in (frame[:cut], frame[cut:]):
            await client.speak(piece)
            await asyncio.sleep(chance.random() * 0.02)


async def hear(client: Client, pcm: FloatArray, count: int, first: int = 0) -> int:
    """Check ``count`` replies from frame ``first`` on against what was said."""
    history: WordArray = np.zeros(1, np.uint32)
    hashes = hash_frames(pcm)
    for index in range(first):
        history = extend_history(history, hashes[index : index + 1])
    for index in range(first, first + count):
        stamped, heard = await client.reply()
        stamp = read_stamp(heard)
        history = extend_history(history, hashes[index : index + 1])
        assert (stamped.frame, stamp.frame) == (index, index)
        assert stamp.frame_hash == hashes[index]
        assert stamp.history == history[0]
    return count


async def test_fifty_callers_never_hear_one_another() -> None:
    async with serving(slots=SLOTS, step_ms=2) as server:
        checked = await asyncio.gather(*(one_call(server, seed) for seed in range(CALLERS)))
        assert len(checked) == CALLERS
        assert min(checked) >= 2
        await server.is_empty()
        assert server.engine.health().queued == 0
        text = (await server.get("/metrics"))[1]
        assert 'antiphon_lost_frames_total{model="null-echo"} 0.0' in text
        assert 'antiphon_open_sockets{model="null-echo"} 0.0' in text


async def test_callers_on_codec_threads_get_their_own_text() -> None:
    """Opus hides the stamps, but a duplex row's tokens are a function of all it heard."""

    async def texts(server: Server, seed: int) -> list[str]:
        async with server.call("text_temperature=0") as client:
            await client.receive()
            encoder = make_encoder(AudioFormat.OGG)
            pcm = speech(12, seed % 2)
            for start in range(0, pcm.size, FRAME_SAMPLES):
                for payload in encoder.encode(pcm[start : start + FRAME_SAMPLES]):
                    await client.send(moshi.Audio(payload))
                await asyncio.sleep(0.005)
            found: list[str] = []
            while len(found) < 10:
                found.append((await client.until(lambda it: isinstance(it, moshi.Text))).text)
            return found

    async with serving(slots=8, spec=DUPLEX) as server:
        alone = [await texts(server, seed) for seed in range(2)]
        together = await asyncio.gather(*(texts(server, seed) for seed in range(8)))
    assert alone[0] != alone[1]
    assert together == alone * 4


async def test_a_call_that_is_over_leaves_nothing_behind() -> None:
    """Not even until the next garbage collection: an Opus call holds a tenth of a megabyte."""
    async with serving(slots=2) as server:
        gc.disable()
        try:
            calls: list[weakref.ref[object]] = []
            for audio_format in ("ogg", "pcm_f32le"):
                async with server.call(f"ext=1&format={audio_format}") as client:
                    await client.event("ready")
                    calls += [weakref.ref(call) for call in server.calls]
                await server.is_empty()
            await server.eventually(lambda: not any(call() for call in calls))
            assert len(calls) == 2
        finally:
            gc.enable()
