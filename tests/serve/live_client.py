"""A client of OpenAI Live that collects its events, for tests."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from aiohttp import WSMsgType

from antiphon.backends.base import Backend, FloatArray, StepInputs, StepOutputs
from antiphon.backends.null import NullFaults
from antiphon.engine.engine import Engine
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import ModelSpec
from antiphon.serve.calls.call import Call
from antiphon.serve.dialects.live import LiveClient as LiveDialect
from antiphon.serve.dialects.live import Watcher
from tests.serve.asr_client import STT
from tests.serve.harness import PATIENCE_S, Closed, Server, Steps, serving
from tests.support.null_backend import NullBackend
from tests.support.null_models import CODEC, null_checkpoint

PATH = "/v1/live/sessions"


class Parrot(NullBackend):
    """Says exactly what it hears, without the null backend's stamps, which are loud."""

    def step(self, inputs: StepInputs) -> StepOutputs:
        outputs = super().step(inputs)
        assert inputs.pcm is not None
        return outputs._replace(pcm=inputs.pcm.copy())


def parrot(spec: ModelSpec = CODEC, slots: int = 2) -> tuple[Checkpoint, Backend]:
    """What ``serving`` takes as a model."""
    return null_checkpoint(spec), Parrot(spec, slots, step_ms=1.0)


def watchers_of(call: Call) -> set[Watcher]:
    """The connections that watch a session."""
    assert isinstance(call.dialect, LiveDialect)
    return call.dialect.watchers


class LiveClient:
    """One WebSocket; ``events`` are all that came."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.events: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send_str(json.dumps({"type": kind, **fields}))

    async def start(self, **session: Any) -> dict[str, Any]:
        """Start a session, and wait until it runs."""
        await self.send("session.start", event_id="start", session={"model": "null-echo", **session})
        started: dict[str, Any] = await self.event("session.started")
        return started["session"]  # type: ignore[no-any-return]

    async def speak(self, pcm: FloatArray) -> None:
        data = (np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes()
        await self.append(data)

    async def append(self, data: bytes, **fields: Any) -> None:
        await self.send("session.input_audio.append", audio=base64.b64encode(data).decode(), **fields)

    async def receive(self) -> dict[str, Any] | Closed:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.ws.receive()
        if message.type is WSMsgType.TEXT:
            event: dict[str, Any] = json.loads(message.data)
            self.events.append(event)
            return event
        if message.type is WSMsgType.CLOSE:
            return Closed(message.data, str(message.extra or ""))
        return Closed(self.ws.close_code, "")

    async def until(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next event for which ``is_it`` holds; fails when the connection ends before."""
        while True:
            event = await self.receive()
            assert not isinstance(event, Closed), f"closed with {event} after {self.events[-3:]}"
            if is_it(event):
                return event

    async def event(self, kind: str) -> dict[str, Any]:
        return await self.until(lambda it: it["type"] == kind)

    async def error(self) -> dict[str, Any]:
        return (await self.event("error"))["error"]  # type: ignore[no-any-return]

    async def audio(self) -> FloatArray:
        """The next audio, of a session with 16-bit samples."""
        delta = (await self.event("session.output_audio.delta"))["delta"]
        return np.frombuffer(base64.b64decode(delta), "<i2").astype(np.float32) / np.float32(32768)

    async def heard(self, frames: int) -> FloatArray:
        """So many frames from the first that is no silence: the server is silent while nothing comes."""
        while not (first := await self.audio()).any():
            pass
        return np.concatenate([first, *[await self.audio() for _ in range(frames - 1)]])

    async def closed(self) -> Closed:
        while not isinstance(event := await self.receive(), Closed):
            pass
        return event

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


@asynccontextmanager
async def live_client(server: Server, path: str = PATH, **headers: str) -> AsyncIterator[LiveClient]:
    async with server.http.ws_connect(server.url(path, "ws"), headers=headers, max_msg_size=0) as ws:
        yield LiveClient(ws)


@asynccontextmanager
async def beside_a_talker(
    *, rows: int = 2, step_s: float = 0.0, poison: int | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Steps]]:
    """A server with a talker that repeats what it hears, and a recogniser, whose row fails at ``poison``."""
    steps = Steps()
    faults = NullFaults(poison=poison)
    backend = NullBackend(STT, rows, step_ms=1000 * step_s, faults=faults, sleep=steps.sleep)
    async with serving(model=parrot(slots=4), beside=[(null_checkpoint(STT), backend)], **options) as server:
        yield server, steps


def recogniser_of(server: Server) -> Engine:
    """The recogniser's engine."""
    return server.engines["scribe"]
