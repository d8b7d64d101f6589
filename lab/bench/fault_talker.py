"""A caller in real time that counts the effects of a fault, and resumes its call if possible."""

from __future__ import annotations

import asyncio
import itertools
import socket as sockets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from antiphon.backends.null import hash_frames
from antiphon.errors import AudioError, ProtocolError
from antiphon.protocol import events, moshi
from antiphon_client.thread import CallThread
from tests.serve.harness import FRAME_SAMPLES, speech
from tests.support.stamp import read_stamp

FRAME_S = 0.08
HELD_FRAMES = 5
"""Frames of its own audio that a caller still has when a connection is restored: 400 ms."""

RETRY_S = 0.05
LAST_S = 2.0
"""Seconds to wait for replies after the last frame."""

POLL_S = 0.25
NOISES = 25
"""Frames of audio, sent repeatedly."""

QUERY = "ext=1&format=pcm_f32le"
RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing sends RST."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The result of one call.

    Of ``due`` frames, ``lost`` were never answered and ``late`` more than 80 ms after their last sample;
    ``foreign`` replies were not made from this call's own frame. ``silence_ms`` is the longest time between
    two replies, less a frame. ``ended`` is the reason why the call ended early, "" if it did not.
    """

    due: int
    answered: int
    late: int
    foreign: int
    resumed: int
    silence_ms: float
    ended: str

    @property
    def lost(self) -> int:
        """The number of frames without an answer."""
        return self.due - self.answered


@dataclass
class Talker:
    """A caller that makes one call of ``frames`` frames to a server of the null backend's codec."""

    http: aiohttp.ClientSession
    url: str
    seed: int
    frames: int
    query: str = QUERY + "&resume=1"
    on_reply: Callable[[float, float], None] = lambda _now_s, _latency_ms: None
    thread: CallThread = field(default_factory=CallThread)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Make the audio to send."""
        self._pcm = speech(NOISES, self.seed).reshape(NOISES, FRAME_SAMPLES)
        self._hashes = hash_frames(self._pcm).tolist()
        self._answered_s: dict[int, float] = {}
        self._late = self._foreign = 0
        self._start_s = self._heard_s = 0.0
        self._next = 0
        self._ended = self.refusal = ""
        self._lost_s = 0.0
        self.socket: aiohttp.ClientWebSocketResponse | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The current transport of the call; None without a connection."""
        found: asyncio.Transport | None = None
        if self.socket is not None and self.socket._response.connection is not None:
            found = self.socket._response.connection.transport
        return found

    @property
    def silent_s(self) -> float:
        """Seconds since the last answer."""
        return time.monotonic() - (self._heard_s or self._start_s or time.monotonic())

    def reset(self) -> None:
        """End the connection with RST instead of a close."""
        transport = self.transport
        if transport is not None:
            raw = transport.get_extra_info("socket")
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, RESET)
            transport.abort()

    async def run(self) -> Fate:
        """Talk until all frames are sent, over as many connections as needed; returns the result of the
        call."""
        base = f"{self.url}/api/chat?{self.query}"
        url, claim = base, None
        while True:
            resumptions = self.thread.resumptions
            try:
                await self._connection(url, claim)
            except (aiohttp.ClientError, OSError, ProtocolError, ValueError) as error:
                self._ended = f"{type(error).__name__}: {error}".partition(" ssl:")[0][:80]
            now_s = time.monotonic()
            if self.thread.resumptions > resumptions or not self._lost_s:
                self._lost_s = now_s
            if self._is_over() or not self.thread.is_resumable or now_s > self._lost_s + self.thread.window_s:
                return self._fate()
            await asyncio.sleep(RETRY_S)
            url, claim = self.thread.resuming_url(base), self.thread.claim(max(0, self._due() - HELD_FRAMES))

    def _due(self) -> int:
        """Frames whose last sample was sent."""
        elapsed_s = time.monotonic() - self._start_s if self._start_s else 0.0
        return min(self.frames, int(elapsed_s / FRAME_S))

    def _is_over(self) -> bool:
        is_late = bool(self._start_s) and time.monotonic() > self._start_s + self.frames * FRAME_S + LAST_S
        return len(self._answered_s) >= self.frames or is_late

    async def _connection(self, url: str, claim: bytes | None) -> None:
        patience = aiohttp.ClientWSTimeout(ws_close=1.0)
        async with self.http.ws_connect(url, max_msg_size=0, timeout=patience) as ws:
            self.socket = ws
            if claim is not None:
                self.resumed.clear()  # its answer determines the next frame to send
                await ws.send_bytes(claim)
            sending = asyncio.ensure_future(self._send(ws, is_first=claim is None))
            try:
                await self._listen(ws)
            finally:
                self.socket = None
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _listen(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        while not self._is_over():
            try:
                message = await ws.receive(timeout=POLL_S)
            except TimeoutError:
                continue
            if message.type is not aiohttp.WSMsgType.BINARY:
                self._ended = f"closed with {ws.close_code}"
                return
            await self._heed(ws, message.data)
        self._ended = ""
        await ws.send_bytes(moshi.encode(events.bye()))

    async def _send(self, ws: aiohttp.ClientWebSocketResponse, *, is_first: bool) -> None:
        await (self.begun if is_first else self.resumed).wait()
        while self._next < self.frames:
            due_s = self._start_s + (self._next + 1) * FRAME_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            data = self._pcm[self._next % NOISES].tobytes()
            self._next += 1
            await ws.send_bytes(moshi.encode(moshi.Audio(data)))

    async def _heed(self, ws: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        resumptions = self.thread.resumptions
        inner = self.thread.unwrap(data)
        now_s = time.monotonic()
        if self.thread.resumptions > resumptions:
            self._next = self.thread.input_frame
            self.resumed.set()
        if (ack := self.thread.ack(now_s)) is not None:
            await ws.send_bytes(ack)
        if inner is None:
            return
        message = moshi.decode(inner)
        if isinstance(message, moshi.Event) and message.type == "ready":
            self._start_s = now_s
            self.begun.set()
        elif isinstance(message, moshi.Event) and message.type in ("error", "resume_failed"):
            said = message.fields
            self.refusal = f"{said.get('code', message.type)} {said.get('message', said.get('reason'))}"
        elif isinstance(message, moshi.StampedAudio):
            self._hear(message, now_s)

    def _hear(self, message: moshi.StampedAudio, now_s: float) -> None:
        frame = message.frame
        try:
            stamp = read_stamp(np.frombuffer(message.data, "<f4").astype(np.float32))
            is_own = stamp.frame_hash == self._hashes[frame % NOISES]
        except AudioError:
            is_own = False
        self._foreign += not is_own
        if frame not in self._answered_s:
            self._answered_s[frame] = self._heard_s = now_s
            latency_ms = 1000 * (now_s - self._start_s - (frame + 1) * FRAME_S)
            self._late += latency_ms > 1000 * FRAME_S
            self.on_reply(now_s, latency_ms)

    def _fate(self) -> Fate:
        heard_s = sorted(self._answered_s.values())
        ends = (self._start_s, *heard_s)
        longest_s = max((b - a for a, b in itertools.pairwise(ends)), default=0.0)
        return Fate(
            due=self.frames if self._start_s else 0,
            answered=len(self._answered_s),
            late=self._late,
            foreign=self._foreign,
            resumed=self.thread.resumptions,
            silence_ms=1000 * max(0.0, longest_s - FRAME_S),
            ended=(self.refusal or self._ended) if self._ended else "",
        )
