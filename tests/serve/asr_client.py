"""A recogniser whose words are a function of the audio, and a client with Kyutai's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from antiphon.backends.base import FloatArray
from antiphon.backends.null import LEVELS, NullFaults
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.protocol import kyutai
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Closed, Server, Steps, serving, transport_of
from tests.support.null_backend import NullBackend
from tests.support.null_models import MIMI, null_checkpoint

Kind = TypeVar("Kind")
DELAY_FRAMES = 6
PAUSES = (0.5, 0.25, 0.125, 0.0625)
LM = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=16, n_q=8, dep_q=0, card=64, text_card=100, delays=(0,) * 9,
    extra_heads=4,
)  # fmt: skip
STT = ModelSpec(
    "scribe", PipelineKind.STT, "stt", MIMI, LM,
    generation={
        "stt_config": {"audio_delay_seconds": 0.08 * DELAY_FRAMES, "audio_silence_prefix_seconds": 0.0}
    },
)  # fmt: skip


def spoken(tokens: Iterable[int]) -> FloatArray:
    """Audio that spells tokens, one a frame; silence is padding, so that a boundary is a whole vocabulary."""
    levels = [{3: 0, 0: LM.text_card}.get(token, token) for token in tokens]
    return np.repeat(np.array(levels, np.float32) / LEVELS, FRAME_SAMPLES)


def sentence(words: int, first: int = 0) -> tuple[list[int], list[str]]:
    """Tokens of so many words, all different, and how they are spelled."""
    tokens: list[int] = []
    texts = []
    for word in range(first, first + words):
        ids = [5 + word % 40, 50 + word // 40]
        tokens += [0, *ids, 3]
        texts.append("-".join(map(str, ids)))
    return tokens, texts


class Scribe:
    """A client of ``/api/asr-streaming``; ``messages`` collects everything received."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.messages: list[kyutai.ServerMessage] = []
        self.closed: Closed | None = None

    @property
    def transport(self) -> asyncio.Transport:
        return transport_of(self.ws)

    async def send(self, message: kyutai.ClientMessage) -> None:
        await self.ws.send_bytes(kyutai.encode(message))

    async def speak(self, pcm: FloatArray, chunk: int = FRAME_SAMPLES, pause_s: float = 0.0) -> None:
        for start in range(0, pcm.size, chunk):
            await self.send(kyutai.Audio(pcm[start : start + chunk]))
            if pause_s:
                await asyncio.sleep(pause_s)

    async def receive(self) -> kyutai.ServerMessage | Closed:
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.ws.receive()).type is WSMsgType.PING:
                pass  # a client without autoping that gives no sign of life
        if message.type is WSMsgType.BINARY:
            decoded = kyutai.decode_server(message.data)
            self.messages.append(decoded)
            return decoded
        self.closed = Closed(message.data if message.type is WSMsgType.CLOSE else self.ws.close_code, "")
        return self.closed

    async def until(self, kind: type[Kind]) -> Kind:
        while not isinstance(message := await self.receive(), kind):
            assert not isinstance(message, Closed), f"closed with {message} after {self.messages[-3:]}"
        return message

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.told(kyutai.Word)]


@asynccontextmanager
async def scribe(server: Server, query: str = "", **headers: str) -> AsyncIterator[Scribe]:
    """A connected client that has not been told anything yet."""
    url = server.url(f"{kyutai.PATH}?{query}", "ws")
    async with server.http.ws_connect(url, headers=headers, max_msg_size=0) as ws:
        yield Scribe(ws)


@asynccontextmanager
async def transcribing(
    *,
    slots: int = 2,
    step_s: float = 0.0,
    spec: ModelSpec = STT,
    poison: int | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Server, Steps]]:
    """A server with a recogniser in it, and its steps; a row that hears the token ``poison`` fails."""
    steps = Steps()
    backend = NullBackend(
        spec, slots, step_ms=1000 * step_s, faults=NullFaults(poison=poison), sleep=steps.sleep
    )
    async with serving(model=(null_checkpoint(spec), backend), **options) as server:
        yield server, steps
