"""A caller that sends prepared audio in real time over the WebSocket and records the replies with times."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from numpy.typing import NDArray

from antiphon.audio.pcm import float_from_s16le, s16le_from_float
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.address import ServerAddress

FRAME_SAMPLES = 1920
FRAME_S = 0.08
SAMPLE_RATE = 24_000
GRACE_S = 20.0
"""For the last reply, from a server that is late with it."""
LOUD = 0.015
"""The root mean square of 20 ms from which a reply can be heard."""
STEP_SAMPLES = 480


@dataclass(slots=True)
class Heard:
    """A call: ``pcm`` float32 is the reply, sample for sample beside what was said.

    ``said_s`` and ``heard_s`` are when each frame was sent and answered, in seconds of one clock; ``words``
    are pieces of text with the number of the frame that came next.
    """

    pcm: NDArray[np.float32]
    said_s: list[float] = field(default_factory=list)
    heard_s: dict[int, float] = field(default_factory=dict)
    words: list[tuple[int, str]] = field(default_factory=list)

    def text(self, start: int, stop: int) -> str:
        """What was said in text from frame ``start`` up to ``stop``."""
        return "".join(piece for frame, piece in self.words if start <= frame < stop).strip()

    def said_at_s(self, sample: int) -> float:
        """When a sample was spoken: a frame is sent once its last one is."""
        return self.said_s[sample // FRAME_SAMPLES] - FRAME_S + sample % FRAME_SAMPLES / SAMPLE_RATE

    def heard_at_s(self, sample: int) -> float:
        """When a sample of the reply sounded, played as it came; infinite for one that never did."""
        received_s = self.heard_s.get(sample // FRAME_SAMPLES, float("inf"))
        return received_s + sample % FRAME_SAMPLES / SAMPLE_RATE


def loud_at(pcm: NDArray[np.float32]) -> NDArray[np.int64]:
    """The starts, in samples, of all stretches of 20 ms that can be heard."""
    steps = pcm[: pcm.size // STEP_SAMPLES * STEP_SAMPLES].reshape(-1, STEP_SAMPLES)
    return np.flatnonzero(np.sqrt(np.mean(steps**2, axis=1)) > LOUD) * STEP_SAMPLES


async def call(server: str, pcm: NDArray[np.float32], *, seed: int | None = None) -> Heard:
    """Speak float32 ``pcm [frames * 1920]`` in real time and listen until its last frame is answered.

    With a ``seed`` the same model answers the same frames with the same tokens every time.

    Raises:
        aiohttp.ClientError: the call could not be made.
        RuntimeError: the server ended it, or answered with an error.
    """
    frames = pcm.size // FRAME_SAMPLES
    heard = Heard(np.zeros(pcm.size, np.float32))
    query = {"ext": "1", "format": AudioFormat.PCM_S16LE.value, "wait": "30"}
    if seed is not None:
        query |= {"text_seed": str(seed), "audio_seed": str(seed)}
    url = ServerAddress.parse(server).chat(query)
    async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=1 << 20) as socket:
        ready = asyncio.Event()
        listener = asyncio.create_task(_listen(socket, heard, ready))
        waiter = asyncio.create_task(ready.wait())
        await asyncio.wait({waiter, listener}, return_when=asyncio.FIRST_COMPLETED)
        start_s = time.monotonic()
        for frame in range(frames):
            await asyncio.sleep(max(0.0, start_s + (frame + 1) * FRAME_S - time.monotonic()))
            if listener.done():
                break
            piece = pcm[frame * FRAME_SAMPLES : (frame + 1) * FRAME_SAMPLES]
            heard.said_s.append(time.monotonic())
            await socket.send_bytes(moshi.encode(moshi.Audio(s16le_from_float(piece))))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while not listener.done() and frames - 1 not in heard.heard_s:  # noqa: ASYNC110 (two ends)
                    await asyncio.sleep(FRAME_S)
        listener.cancel()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        if not listener.cancelled() and not listener.cancelling():
            listener.result()
    return heard


async def _listen(socket: aiohttp.ClientWebSocketResponse, heard: Heard, ready: asyncio.Event) -> None:
    coming = 0
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY:
            break
        match moshi.decode(message.data):
            case moshi.Event(type="ready"):
                ready.set()
            case moshi.Event(type="error", fields=fields):
                raise RuntimeError(f"the server answered with an error: {fields}")
            case moshi.Text(text=text):
                heard.words.append((coming, text))
            case moshi.StampedAudio(frame=frame, data=data):
                sound = float_from_s16le(data)
                at = frame * FRAME_SAMPLES
                heard.pcm[at : at + sound.size] = sound[: heard.pcm.size - at]
                heard.heard_s[frame] = time.monotonic()
                coming = frame + 1
    raise RuntimeError(f"the server closed the call with {socket.close_code}")
