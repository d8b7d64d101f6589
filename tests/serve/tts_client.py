"""A synthesiser whose audio spells its words, and a client with Kyutai's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlencode

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from antiphon.backends.base import FloatArray
from antiphon.backends.null import LEVELS, NullFaults, NullRows
from antiphon.backends.tts import TtsBackend
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.script import SPEAKER
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.protocol import kyutai, kyutai_tts
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Closed, Server, Steps, serving, transport_of
from tests.support.null_models import MIMI, null_checkpoint

Kind = TypeVar("Kind")
SENTENCE = 'a be <break time="0.4s"/> cat'
SAID = [1, 2, 2, 3, 3, 3]
"""The tokens that are heard when SENTENCE is said, a frame each: a word's letters, as many as it has."""

WIDTH, FRAMES = 4, 3
LM = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=16, n_q=8, dep_q=8, card=64, text_card=100, delays=(0,) * 9,
    text_padding_id=99,
    config={"conditioners": {"speaker_wavs": {"type": "tensor", "tensor": {"dim": WIDTH}}}},
)  # fmt: skip
TTS = ModelSpec(
    "speaker", PipelineKind.TTS, "tts", MIMI, LM,
    generation={"tts_config": {"audio_delay": 0.16, "speaker_frames": FRAMES}},
)  # fmt: skip
ONE_VOICE = replace(TTS, lm=replace(LM, config={}))


def count_frames(text: str) -> int:
    """All frames of words: a pause, the name of the voice, silence before each word, and an end."""
    return 2 + 1 + sum(1 + len(word) for word in text.split()) + 4


SAID_FRAMES = count_frames("a be cat") + 5


def levels(pcm: FloatArray, voice: int | None = 0) -> list[int]:
    """The tokens that were said, by frame, without silence and the token that announces a voice.

    ``voice`` is the level of silence; None: the model has one voice, which nothing announces.
    """
    assert pcm.size % FRAME_SAMPLES == 0
    said = [round(LEVELS * float(sample)) for sample in pcm[FRAME_SAMPLES - 1 :: FRAME_SAMPLES]]
    spoken = [level for level in said if level != (voice or 0)]
    if voice is not None and spoken:
        assert spoken.pop(0) == voice + SPEAKER
    return spoken


class Listener:
    """A client of ``/api/tts_streaming``; ``messages`` is everything received, raw bytes in raw formats."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, *, is_packed: bool) -> None:
        self.ws, self.is_packed = ws, is_packed
        self.messages: list[kyutai_tts.ServerMessage | bytes] = []
        self.closed: Closed | None = None

    @property
    def transport(self) -> asyncio.Transport:
        return transport_of(self.ws)

    async def send(self, message: kyutai_tts.ClientMessage) -> None:
        await self.ws.send_bytes(kyutai_tts.encode_client(message))

    async def receive(self) -> kyutai_tts.ServerMessage | bytes | Closed:
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.ws.receive()).type is WSMsgType.PING:
                pass  # a client without autoping that gives no sign of life
        if message.type is WSMsgType.BINARY:
            decoded = kyutai_tts.decode_server(message.data) if self.is_packed else message.data
            self.messages.append(decoded)
            return decoded
        is_close = message.type is WSMsgType.CLOSE
        self.closed = Closed(message.data if is_close else self.ws.close_code, str(message.extra or ""))
        return self.closed

    async def until(self, kind: type[Kind]) -> Kind:
        while not isinstance(message := await self.receive(), kind):
            assert not isinstance(message, Closed), f"closed with {message} after {self.messages[-3:]}"
        return message

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def audio(self) -> FloatArray:
        return np.concatenate([np.zeros(0, np.float32), *(it.pcm for it in self.told(kyutai.Audio))])


async def converse(client: Listener, *texts: str) -> Closed:
    """Say texts and their end; how the server closed then."""
    for text in texts:
        await client.send(kyutai_tts.Text(text))
    await client.send(kyutai_tts.Eos())
    closed: Closed = await client.until(Closed)
    return closed


@asynccontextmanager
async def listening(
    server: Server, format_: str = "PcmMessagePack", *, voice: str = "", autoping: bool = True, **headers: str
) -> AsyncIterator[Listener]:
    """A connected client that has not been told anything yet."""
    query = {"format": format_} | ({"voice": voice} if voice else {})
    url = server.url(f"{kyutai_tts.PATH}?{urlencode(query)}", "ws")
    async with server.http.ws_connect(url, headers=headers, max_msg_size=0, autoping=autoping) as ws:
        yield Listener(ws, is_packed=format_.endswith("MessagePack"))


def speaker(slots: int = 2, *, spec: ModelSpec = TTS, **options: Any) -> tuple[Checkpoint, TtsBackend]:
    """What ``serving`` takes as a model; ``options`` are those of the null backend's rows."""
    return null_checkpoint(spec), TtsBackend(spec, NullRows(spec, **options), slots=slots)


@asynccontextmanager
async def speaking(
    *, slots: int = 2, step_s: float = 0.0, spec: ModelSpec = TTS, poison: int | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Steps]]:
    """A server with a speaker in it, and its steps; a row that is to say the token ``poison`` fails."""
    steps = Steps()
    model = speaker(
        slots, spec=spec, step_ms=1000 * step_s, faults=NullFaults(poison=poison), sleep=steps.sleep
    )
    async with serving(model=model, slots=slots, **options) as server:
        yield server, steps
