"""A fake server that echoes audio, or misbehaves as a test requires."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.address import ServerAddress
from antiphon_client.replies import ReplyMeter

FRAME_SAMPLES = 1920


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the server does. Frames are counted from 0 in each session.

    ``delay_s`` gives each frame's time until its reply; None is no reply at all. ``slots`` callers are let
    in; the others are refused, or queue when they would wait. ``closes_at`` ends a session at that frame.
    """

    delay_s: Callable[[int], float | None] = lambda frame: 0.005
    slots: int = 1000
    delay_frames: int = 0
    is_stock: bool = False
    closes_at: int | None = None
    interrupts_at: int | None = None
    frame_samples: int = FRAME_SAMPLES
    says: tuple[bytes, ...] = ()
    refuses_with: int | None = None
    api_key: str | None = None
    models: dict[str, str] = field(default_factory=lambda: {"fake": "duplex"})


@dataclass(slots=True)
class FakeServer:
    """Its state, for tests to look at. ``heard`` is every audio payload of every session, in order."""

    behaviour: Behaviour
    address: ServerAddress = field(default_factory=lambda: ServerAddress("127.0.0.1", 0))
    active: int = 0
    sessions: int = 0
    goodbyes: int = 0
    close_codes: list[int | None] = field(default_factory=list)
    heard: list[tuple[int, bytes, float]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    def _check_key(self, request: web.Request) -> None:
        wanted = self.behaviour.api_key
        if wanted is not None and request.headers.get("Authorization") != f"Bearer {wanted}":
            raise web.HTTPUnauthorized(text="an API key is needed\n")

    async def build_info(self, request: web.Request) -> web.Response:
        self._check_key(request)
        if self.behaviour.is_stock:
            raise web.HTTPNotFound
        return web.json_response(
            {
                "model": {"name": "fake", "delay_frames": self.behaviour.delay_frames},
                "memory_bytes": {"process": (1 + self.sessions) * 2**20},
            }
        )

    async def list_models(self, request: web.Request) -> web.Response:
        self._check_key(request)
        if self.behaviour.is_stock:
            raise web.HTTPNotFound
        models = [{"name": name, "kind": kind} for name, kind in self.behaviour.models.items()]
        return web.json_response({"models": models})

    async def chat(self, request: web.Request) -> web.WebSocketResponse:
        self._check_key(request)
        behaviour = self.behaviour
        self.queries.append(dict(request.query))
        if behaviour.refuses_with is not None:
            raise _refuse(behaviour.refuses_with)
        is_extended = request.query.get("ext") == "1" and not behaviour.is_stock
        if self.active >= behaviour.slots and not is_extended:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "7"})
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        if is_extended and not await self._admit(socket, float(request.query.get("wait", "0"))):
            return socket
        self.active += 1
        session = self.sessions
        self.sessions += 1
        try:
            await self._converse(socket, session, request.query.get("format", "ogg"), is_extended)
        finally:
            self.close_codes.append(socket.close_code)
            self.active -= 1
            self.freed.set()
            self.freed = asyncio.Event()
        return socket

    async def _admit(self, socket: web.WebSocketResponse, wait_s: float) -> bool:
        if self.active >= self.behaviour.slots and wait_s > 0:
            await _say(socket, events.queued(position=0, ahead=0, retry_after_s=1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.freed.wait()
        if self.active < self.behaviour.slots:
            return True
        await _say(
            socket, moshi.Event("error", {"code": 1013, "message": "the server is full", "retry_after_s": 7})
        )
        await socket.close(code=1013)
        return False

    async def _converse(
        self, socket: web.WebSocketResponse, session: int, audio_format: str, is_extended: bool
    ) -> None:
        behaviour = self.behaviour
        await _say(socket, moshi.Handshake())
        if is_extended:
            await _say(
                socket,
                events.ready(
                    session=str(session),
                    model="fake",
                    sample_rate=24_000,
                    frame_samples=behaviour.frame_samples,
                    slots=behaviour.slots,
                    parameters={},
                ),
            )
        for raw in behaviour.says:
            await socket.send_bytes(raw)
        meter = ReplyMeter(AudioFormat(audio_format))
        pending: list[bytes] = []
        samples = 0
        replies: set[asyncio.Task[None]] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            said = moshi.decode(message.data)
            if isinstance(said, moshi.Event) and said.type == "bye":
                self.goodbyes += 1
                await socket.close()
            if not isinstance(said, moshi.Audio):
                continue
            self.heard.append((session, said.data, asyncio.get_running_loop().time()))
            pending.append(said.data)
            before, samples = samples, samples + meter.samples(said.data)
            for frame in range(before // FRAME_SAMPLES, samples // FRAME_SAMPLES):
                if frame == behaviour.closes_at:
                    await asyncio.gather(*replies)  # to the frames before it
                    await _say(socket, moshi.Event("error", {"code": 1011, "message": "the step failed"}))
                    await socket.close(code=1011)
                    return
                reply = asyncio.ensure_future(self.reply(socket, frame, pending, is_extended, audio_format))
                replies.add(reply)
                reply.add_done_callback(replies.discard)
                pending = []
        for reply in replies:
            reply.cancel()

    async def reply(
        self, socket: web.WebSocketResponse, frame: int, payloads: list[bytes], is_extended: bool, form: str
    ) -> None:
        delay_s = self.behaviour.delay_s(frame)
        if delay_s is None or frame < self.behaviour.delay_frames:
            return
        await asyncio.sleep(delay_s)
        if frame == self.behaviour.interrupts_at:
            await _say(socket, events.interrupted(frame))
        for payload in payloads:
            stamped = is_extended and form != AudioFormat.OGG
            message = (
                moshi.StampedAudio(frame, 1000 * delay_s, 1.5, payload) if stamped else moshi.Audio(payload)
            )
            await _say(socket, message)
        await _say(socket, moshi.Text(f" {frame}"))


async def _say(socket: web.WebSocketResponse, message: moshi.Message) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(moshi.encode(message))


def _refuse(status: int) -> web.HTTPException:
    class Refusal(web.HTTPException):
        status_code = status

    return Refusal(text="text_topk is 0, it must be 1 or more\n")


@contextlib.asynccontextmanager
async def fake_server(behaviour: Behaviour | None = None) -> AsyncIterator[FakeServer]:
    """A running server on a free port of this machine."""
    fake = FakeServer(behaviour or Behaviour())
    app = web.Application()
    app.router.add_get("/api/chat", fake.chat)
    app.router.add_get("/api/build_info", fake.build_info)
    app.router.add_get("/api/models", fake.list_models)
    async with TestServer(app) as server:
        fake.address = ServerAddress.parse(str(server.make_url("/")))
        yield fake


@contextlib.contextmanager
def fake_server_in_thread(behaviour: Behaviour | None = None) -> Iterator[FakeServer]:
    """The same on a thread of its own, for clients that run their own loop."""
    started: Future[FakeServer] = Future()
    stopping = threading.Event()

    async def serve() -> None:
        async with fake_server(behaviour) as fake:
            started.set_result(fake)
            await asyncio.to_thread(stopping.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield started.result(timeout=120)
    finally:
        stopping.set()
        thread.join(timeout=120)
