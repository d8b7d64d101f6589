"""A whole server inside a test: real sockets, the null backend, clients of the protocol."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import numpy as np
from aiohttp import WSMsgType, web
from prometheus_client import CollectorRegistry

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.null import NullFaults
from antiphon.config import ServerConfig
from antiphon.engine.engine import Engine
from antiphon.engine.front_ends import LocalFrontEnd
from antiphon.engine.metrics import EngineMetrics
from antiphon.ipc.engine_group import EngineGroup
from antiphon.limits import Limits
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import ModelSpec
from antiphon.protocol import events, moshi
from antiphon.serve.access.callers import Access
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.app import build_app, make_runner
from antiphon.serve.hosting.hand_over_plan import hand_over_plan
from antiphon.serve.hosting.served import ServedModel, serve_model
from antiphon.serve.hosting.services import SERVICES, Services
from antiphon.serve.transport.socket import Socket
from tests.support.calm import calm
from tests.support.null_backend import NullBackend
from tests.support.null_models import CODEC, null_checkpoint

FRAME_SAMPLES = 1920
PATIENCE_S = 120.0
"""No test waits longer for anything: reached only when something is broken."""

STOCK_QUERY = (
    "worker_auth_id=&email=a%40b.c&text_temperature=0.7&text_topk=25&audio_temperature=0.8&audio_topk=250"
    "&pad_mult=0&text_seed=6543&audio_seed=123&repetition_penalty_context=64&repetition_penalty=1.0"
    "&image_resolution=400"
)
"""What the web client of kyutai-labs/moshi asks for."""


class Steps:
    """What the steps of a null backend wait for: their time, and the step ``held_at`` for :meth:`go_on`."""

    def __init__(self) -> None:
        self.taken = 0
        self.held_at: int | None = None
        self._goes_on = threading.Event()

    def sleep(self, seconds: float) -> None:
        if self.taken == self.held_at:
            assert self._goes_on.wait(PATIENCE_S)
        self.taken += 1
        time.sleep(seconds)

    def go_on(self) -> None:
        self._goes_on.set()


@dataclass
class Closed:
    """How a connection ended."""

    code: int | None
    reason: str


def response_to(ws: aiohttp.ClientWebSocketResponse) -> aiohttp.ClientResponse:
    """The answer to the upgrade of a WebSocket, which aiohttp keeps to itself."""
    return ws._response


def transport_of(ws: aiohttp.ClientWebSocketResponse) -> asyncio.Transport:
    """The transport of a connection that stands."""
    connection = response_to(ws).connection
    assert connection is not None
    return cast("asyncio.Transport", connection.transport)


def cut(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Break a connection, as a network does, if the server has not done so before."""
    connection = response_to(ws).connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


class Client:
    """One WebSocket client; ``messages`` collects everything received."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.messages: list[moshi.Message] = []

    async def send(self, message: moshi.Message) -> None:
        await self.ws.send_bytes(moshi.encode(message))

    @property
    def transport(self) -> asyncio.Transport:
        return transport_of(self.ws)

    def cut(self) -> None:
        """Vanish without a word."""
        cut(self.ws)

    async def speak(self, pcm: FloatArray) -> None:
        await self.send(moshi.Audio(np.asarray(pcm, "<f4").tobytes()))

    async def receive(self) -> moshi.Message | Closed:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.ws.receive()
        if message.type is WSMsgType.BINARY:
            decoded = moshi.decode(message.data)
            self.messages.append(decoded)
            return decoded
        if message.type is WSMsgType.CLOSE:
            return Closed(message.data, str(message.extra or ""))
        return Closed(self.ws.close_code, "")

    async def until(self, is_it: Callable[[Any], bool]) -> Any:
        """The next message for which ``is_it`` holds; fails when the connection ends before."""
        while True:
            message = await self.receive()
            if is_it(message):
                return message
            assert not isinstance(message, Closed), f"closed with {message} after {self.messages[-3:]}"

    async def event(self, kind: str) -> moshi.Event:
        found: moshi.Event = await self.until(lambda it: isinstance(it, moshi.Event) and it.type == kind)
        events.check_event(found, sender=events.Sender.SERVER)
        return found

    async def reply(self) -> tuple[moshi.StampedAudio, FloatArray]:
        found: moshi.StampedAudio = await self.until(lambda it: isinstance(it, moshi.StampedAudio))
        return found, np.frombuffer(found.data, "<f4").astype(np.float32)

    async def closed(self) -> Closed:
        found: Closed = await self.until(lambda it: isinstance(it, Closed))
        return found


class Server:
    """A running server and a session to call it with."""

    def __init__(
        self, port: int, http: aiohttp.ClientSession, runner: web.AppRunner, engines: dict[str, Engine]
    ) -> None:
        self.port = port
        self.http = http
        self.runner, self.app = runner, runner.app
        self.engines = engines
        self.engine = next(iter(engines.values()))

    @property
    def services(self) -> Services:
        return self.app[SERVICES]

    @property
    def calls(self) -> list[Call]:
        """The calls under way."""
        return [call for call in self.services.calls if isinstance(call, Call)]

    def url(self, path: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        async with self.http.get(self.url(path), headers=headers) as response:
            return response.status, await response.text(), response.headers

    @asynccontextmanager
    async def call(
        self, query: str = "", *, path: str = "/api/chat", **headers: str
    ) -> AsyncIterator[Client]:
        async with self.http.ws_connect(
            self.url(f"{path}?{query}", "ws"), headers=headers, max_msg_size=0
        ) as ws:
            yield Client(ws)

    @asynccontextmanager
    async def caller(self, query: str = "") -> AsyncIterator[Client]:
        """An admitted extended client that speaks float PCM."""
        async with self.call(f"ext=1&format=pcm_f32le&{query}") as client:
            await client.event("ready")
            yield client

    async def eventually(self, is_so: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 (what it waits for happens on other threads)
                await asyncio.sleep(0.01)

    async def is_empty(self) -> None:
        """Wait until every row is free and every socket gone."""
        await self.eventually(lambda: self.engine.health().active == 0 and not self.services.calls)


def socket_of(call: Call) -> Socket:
    """The WebSocket of a call."""
    assert isinstance(call.exchange.transport, Socket)
    return call.exchange.transport


def unsent_bytes(call: Call) -> int:
    """What is written to its client and not yet taken by the network."""
    return socket_of(call).unsent_bytes


@asynccontextmanager
async def serving(
    *,
    slots: int = 2,
    step_ms: float = 1.0,
    spec: ModelSpec = CODEC,
    faults: NullFaults | None = None,
    model: tuple[Checkpoint, Backend] | None = None,
    engine: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    allow_origin: tuple[str, ...] = (),
    page: Path | None = None,
    voices: Path | None = None,
    also: Sequence[tuple[str, ModelSpec]] = (),
    beside: Sequence[tuple[Checkpoint, Backend]] = (),
    tls: ssl.SSLContext | None = None,
    client: SupervisorClient | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server on a free port, ended with everything it holds.

    ``also`` are further models by name, each with a backend like the first one's, ``beside`` others with
    backends of their own; ``settings`` are fields of the ServerConfig.
    """
    config = ServerConfig(
        port=0,
        voices=None if voices is None else str(voices),
        allow_origin=allow_origin,
        engine=calm(**(engine or {})),
        limits=replace(Limits(), **{"close_timeout_s": 0.5, **(limits or {})}),
        **settings,
    )
    checkpoint, backend = model or (
        null_checkpoint(spec),
        NullBackend(spec, slots, step_ms=step_ms, faults=faults),
    )
    families = MetricFamilies(CollectorRegistry())
    given = [(checkpoint.spec.name, checkpoint, backend)] + [
        (name, null_checkpoint(other), NullBackend(other, slots, step_ms=step_ms)) for name, other in also
    ]
    given += [(files.spec.name, files, rows) for files, rows in beside]
    served: list[ServedModel] = []
    cores: dict[str, Engine] = {}
    for name, files, rows in given:
        plan = hand_over_plan(config, name, files)
        core = Engine(rows, config.engine, metrics=EngineMetrics(families, model=name), hand_over=plan)
        core.start()
        cores[name] = core
        front_end = LocalFrontEnd({name: core}, asyncio.get_running_loop())
        group = EngineGroup([front_end.client.engines[name]])
        served.append(serve_model(config.served[0], name, files, group, families))
    app = build_app(served, config, families, page=page, access=Access(config, client))
    runner = make_runner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        async with aiohttp.ClientSession() as http:
            yield Server(runner.addresses[0][1], http, runner, cores)
    finally:
        await runner.cleanup()
        for core in cores.values():
            core.stop(5.0)


def speech(frames: int, seed: int = 0) -> FloatArray:
    """Noise that no two seeds share, float32 ``[frames * 1920]``."""
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, frames * FRAME_SAMPLES)
    return noise.astype(np.float32)
