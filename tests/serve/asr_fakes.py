"""A recogniser that reads its words off the audio, and a client that speaks as Kyutai's do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from antiphon.backends.base import (
    BackendInfo,
    FloatArray,
    HostArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.errors import StepError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.protocol import kyutai
from tests.serve.harness import FRAME_SAMPLES, MIMI, PATIENCE_S, Closed, Server, serving

Kind = TypeVar("Kind")
DELAY_FRAMES = 6
PAUSES = (0.5, 0.25, 0.125, 0.0)
LM = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=16, n_q=8, dep_q=0, card=64, text_card=100, delays=(0,) * 9,
    extra_heads=4,
)  # fmt: skip
STT = ModelSpec(
    "scribe", PipelineKind.STT, "stt", MIMI, LM,
    generation={"stt_config": {"audio_delay_seconds": 0.08 * DELAY_FRAMES}},
)  # fmt: skip


class SpelledWords:
    """A tokenizer whose words name their tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        return "-".join(map(str, ids))


class ScribeCheckpoint(Checkpoint):
    """A checkpoint without files."""

    def text_tokenizer(self) -> Any:
        return SpelledWords()


def scribe_checkpoint(spec: ModelSpec = STT) -> Checkpoint:
    return ScribeCheckpoint(spec, spec.name, Path("/nowhere"), {})


@dataclass
class ScribeRow:
    """The tokens a row has heard, the last ``DELAY_FRAMES`` of which it has not written."""

    unwritten: tuple[int, ...] = (3,) * DELAY_FRAMES


class Hold:
    """A backend stands still before its step ``at``, where there is one, until it may go on."""

    def __init__(self) -> None:
        self.at: int | None = None
        self._goes_on = threading.Event()

    def pass_by(self, step: int) -> None:
        if step == self.at:
            assert self._goes_on.wait(PATIENCE_S)

    def end(self) -> None:
        self._goes_on.set()


class ScribeBackend:
    """Writes the token that a frame's samples spell, ``DELAY_FRAMES`` later; one a frame of silence is 3."""

    def __init__(self, slots: int = 2, *, step_s: float = 0.0, spec: ModelSpec = STT) -> None:
        self.info = BackendInfo("scribe", "cpu", spec, slots)
        self.rows = [ScribeRow() for _ in range(slots)]
        self.step_s = step_s
        self.steps = 0
        self.breaks_at: int | None = None  # the step of a row that hears this fails, once
        self.hold = Hold()

    def warm_up(self, progress: Progress) -> None:
        progress(1, 1, "scribe")

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        assert parameters.text_temperature == 0.0

    def step(self, inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is not None
        if self.step_s:
            time.sleep(self.step_s)
        self.hold.pass_by(self.steps)
        self.steps += 1
        n, rows = inputs.count, inputs.rows.tolist()
        failed: set[int] = set()
        tokens = np.full(n, -1, np.int32)
        for place, row in enumerate(rows):
            state = ScribeRow() if inputs.reset[place] else self.rows[row]
            heard = round(1000 * abs(float(inputs.pcm[place, 0])))
            if heard == self.breaks_at:
                failed.add(row)
            tokens[place] = state.unwritten[0]
            self.rows[row] = ScribeRow((*state.unwritten[1:], said(heard)))
        if failed:
            self.breaks_at = None
            raise StepError("a pen broke", rows=failed)
        vad = np.tile(np.array(PAUSES, np.float32), (n, 1))
        every = np.ones(n, np.bool_)
        return StepOutputs(every, every.copy(), None, tokens, vad)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        raise NotImplementedError

    def snapshot(self, row: int) -> RowSnapshot:
        return RowSnapshot("scribe", {"row": replace(self.rows[row])}, 1)

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


def said(level: int) -> int:
    """The token of a frame this loud: 100 stands for the boundary."""
    return 3 if level == 0 else 0 if level == 100 else level


def spoken(tokens: Iterable[int]) -> FloatArray:
    """Audio that spells tokens, one a frame."""
    levels = [{3: 0, 0: 100}.get(token, token) for token in tokens]
    return np.repeat(np.array(levels, np.float32) / 1000, FRAME_SAMPLES)


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
        connection = self.ws._response.connection
        assert connection is not None
        return cast("asyncio.Transport", connection.transport)

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
    *, slots: int = 2, step_s: float = 0.0, **options: Any
) -> AsyncIterator[tuple[Server, ScribeBackend]]:
    """A server with a scribe in it."""
    backend = ScribeBackend(slots, step_s=step_s)
    async with serving(model=(scribe_checkpoint(), backend), **options) as server:
        yield server, backend
