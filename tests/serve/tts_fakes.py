"""A speaker whose audio spells its words, and a client that speaks as Kyutai's do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    FloatArray,
    HostArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
    TextEntry,
)
from antiphon.errors import StepError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.protocol import kyutai, kyutai_tts
from tests.serve.asr_fakes import Hold
from tests.serve.harness import FRAME_SAMPLES, MIMI, PATIENCE_S, Closed, Server, serving

Kind = TypeVar("Kind")
SENTENCE = 'a be <break time="0.4s"/> cat'
SAID = [1, 2, 2, *[0] * 5, 3, 3, 3]
"""The levels that are heard when SENTENCE is said, a frame each, in thousandths."""

WIDTH, FRAMES = 4, 3
LM = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=16, n_q=8, dep_q=8, card=64, text_card=100, delays=(0,) * 9,
    config={"conditioners": {"speaker_wavs": {"type": "tensor", "tensor": {"dim": WIDTH}}}},
)  # fmt: skip
TTS = ModelSpec(
    "speaker", PipelineKind.TTS, "tts", MIMI, LM,
    generation={"tts_config": {"audio_delay": 0.16, "speaker_frames": FRAMES}},
)  # fmt: skip
ONE_VOICE = replace(TTS, lm=replace(LM, config={}))


class Lengths:
    """A tokenizer of one token a letter, which is how long the word is."""

    def encode(self, text: str) -> list[int]:
        return [len(text)] * len(text)


class SpeakerCheckpoint(Checkpoint):
    """A checkpoint without files."""

    def text_tokenizer(self) -> Any:
        return Lengths()


@dataclass
class SpeakerRow:
    """What a row is yet to say, by frame: (level, index of the entry that begins)."""

    frames: list[tuple[int, int]] = field(default_factory=list)
    entries: int = 0
    voice: float = 0.0
    is_complete: bool = False


class SpeakerBackend:
    """Says a word of N tokens in N frames of level N / 1000 and a pause in silence, after its voice."""

    def __init__(self, slots: int = 2, *, step_s: float = 0.0, spec: ModelSpec = TTS) -> None:
        can_prime = spec is not ONE_VOICE
        self.info = BackendInfo("speaker", "cpu", spec, slots, can_prime=can_prime)
        self.rows = [SpeakerRow() for _ in range(slots)]
        self.step_s = step_s
        self.steps = 0
        self.failing_rows: set[int] = set()
        self.named: list[int] = []  # the rows of the last tick
        self.hold = Hold()

    def warm_up(self, progress: Progress) -> None:
        progress(1, 1, "speaker")

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        pass

    def step(self, inputs: StepInputs) -> StepOutputs:
        if self.step_s:
            time.sleep(self.step_s)
        self.hold.pass_by(self.steps)
        self.steps += 1
        n, rows = inputs.count, inputs.rows.tolist()
        self.named = rows
        consumed, emitted, finished = (np.zeros(n, np.bool_) for _ in range(3))
        words, pcm = np.full(n, NO_TOKEN, np.int32), np.zeros((n, FRAME_SAMPLES), np.float32)
        for place, row in enumerate(rows):
            if inputs.reset[place]:
                self.rows[row] = SpeakerRow()
            state = self.rows[row]
            consumed[place] = self._take(state, inputs.text[place])
            if state.frames:
                level, words[place] = state.frames.pop(0)
                pcm[place] = level / 1000 + state.voice
                emitted[place] = True
            finished[place] = state.is_complete and not state.frames
        failed = self.failing_rows & set(rows)
        if failed:
            self.failing_rows = set()
            raise StepError("a voice broke", rows=failed)
        return StepOutputs(consumed, emitted, pcm, words, finished=finished)

    def _take(self, state: SpeakerRow, entries: tuple[TextEntry, ...]) -> bool:
        if not entries or len(state.frames) > 20:
            return False
        for entry in entries:
            level = entry.tokens[-1] if entry.tokens else 0
            if length := level or entry.padding_frames:
                state.frames += [(level, state.entries)] + [(level, NO_TOKEN)] * (length - 1)
                state.entries += 1
            state.is_complete = entry.is_last
        return True

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        assert prompt.speakers is not None
        self.rows[row] = SpeakerRow(voice=float(prompt.speakers[0, 0, 0]))
        return PrimeProgress(1, 1)

    def snapshot(self, row: int) -> RowSnapshot:
        return RowSnapshot("speaker", {"row": replace(self.rows[row])}, 1)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        self.rows[row] = replace(snapshot.tensors["row"])

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        return self.info.slots if is_fixed else int(rows.size)

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        raise NotImplementedError

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        raise NotImplementedError

    def state_bytes(self) -> int:
        return len(self.rows)

    def close(self) -> None:
        pass


def levels(pcm: FloatArray) -> list[int]:
    """What was said, by frame."""
    assert pcm.size % FRAME_SAMPLES == 0
    return [round(1000 * float(sample)) for sample in pcm[::FRAME_SAMPLES]]


class Listener:
    """A client of ``/api/tts_streaming``; ``messages`` is everything received, raw bytes in raw formats."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, *, is_packed: bool) -> None:
        self.ws, self.is_packed = ws, is_packed
        self.messages: list[kyutai_tts.ServerMessage | bytes] = []
        self.closed: Closed | None = None

    @property
    def transport(self) -> asyncio.Transport:
        connection = self.ws._response.connection
        assert connection is not None
        return cast("asyncio.Transport", connection.transport)

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


@asynccontextmanager
async def speaking(
    *, slots: int = 2, step_s: float = 0.0, spec: ModelSpec = TTS, **options: Any
) -> AsyncIterator[tuple[Server, SpeakerBackend]]:
    """A server with a speaker in it."""
    backend = SpeakerBackend(slots, step_s=step_s, spec=spec)
    checkpoint = SpeakerCheckpoint(spec, spec.name, Path("/nowhere"), {})
    async with serving(model=(checkpoint, backend), slots=slots, **options) as server:
        yield server, backend
