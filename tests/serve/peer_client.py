"""A caller by WebRTC for tests: aiortc as a browser's peer connection, with scripted sound."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av.audio.frame import AudioFrame

from antiphon.arrays import FloatArray
from antiphon.audio.pcm import s16le_from_float
from tests.serve.harness import Server

PATIENCE_S = 120.0
CALLS = "/v1/realtime/calls"
RATE = 24_000
BLOCK = 480
"""Samples of a packet, 20 ms."""
MOST_LATE_S = 0.2
"""Seconds after which the microphone continues at its normal rate: a busy machine makes no bursts."""


class Microphone(MediaStreamTrack):
    """Sound in real time: what :meth:`say` adds, else silence."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._blocks: deque[bytes] = deque()
        self._number, self._start_s = 0, asyncio.get_running_loop().time()

    def say(self, pcm: FloatArray) -> None:
        data = s16le_from_float(pcm)
        self._blocks += [data[start : start + 2 * BLOCK] for start in range(0, len(data), 2 * BLOCK)]

    async def recv(self) -> AudioFrame:
        now_s = asyncio.get_running_loop().time()
        if now_s > self._start_s + 0.02 * self._number + MOST_LATE_S:  # the server drops long bursts
            self._start_s = now_s - 0.02 * self._number
        await asyncio.sleep(max(0.0, self._start_s + 0.02 * self._number - now_s))
        block = self._blocks.popleft() if self._blocks else bytes(2 * BLOCK)
        frame = AudioFrame(format="s16", layout="mono", samples=BLOCK)
        frame.planes[0].update(block.ljust(2 * BLOCK, b"\0"))
        frame.sample_rate, frame.pts, frame.time_base = RATE, BLOCK * self._number, Fraction(1, RATE)
        self._number += 1
        return frame


class PeerClient:
    """One peer connection. ``events`` are all messages of its data channel, ``sound`` all blocks."""

    def __init__(self, *, has_channel: bool = True) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.connection.addTrack(self.microphone)
        self.events: list[Any] = []
        self.sound: list[FloatArray] = []
        self.location = ""
        self._news, self._opened = asyncio.Event(), asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self.connection.on("track", self._listen)
        if has_channel:
            self.channel = self.connection.createDataChannel("oai-events")
            self.channel.on("message", self._take)
            self.channel.on("open", self._opened.set)

    async def offer(self) -> str:
        """The offer, with all addresses of this machine."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    async def opened(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._opened.wait()

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something holds, which an event or sound brings."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    async def event(self, kind: str, number: int = 1) -> dict[str, Any]:
        """The event of this type, or the nth."""
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)[number - 1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [it for it in self.events if isinstance(it, dict) and it["type"] == kind]

    @property
    def heard(self) -> FloatArray:
        """All sound that came, mono at 48 kHz."""
        return np.concatenate([np.zeros(0, np.float32), *self.sound])

    def _take(self, message: str | bytes) -> None:
        self.events.append(json.loads(message) if isinstance(message, str) else message)
        self._news.set()

    def _listen(self, track: MediaStreamTrack) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._read(track))

    async def _read(self, track: MediaStreamTrack) -> None:
        try:
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                self.sound.append(frame.to_ndarray()[0, ::2].astype(np.float32) / np.float32(32768))
                self._news.set()
        except MediaStreamError:
            return

    async def close(self) -> None:
        await self.connection.close()
        if self._listening is not None:
            await self._listening


async def post(
    server: Server, path: str, body: Any, *, content_type: str | None = "application/sdp", **headers: str
) -> tuple[int, str, str]:
    """Status, body and Location of the answer to an offer."""
    sent = {**headers, **({} if content_type is None else {"Content-Type": content_type})}
    async with server.http.post(server.url(path), data=body, headers=sent) as response:
        return response.status, await response.text(), response.headers.get("Location", "")


async def no_connections(server: Server) -> None:
    """Wait until every connection of a peer is closed."""
    peers = server.services.peers
    assert peers is not None
    await server.eventually(lambda: len(peers) == 0)


@asynccontextmanager
async def peer_client(*, has_channel: bool = True) -> AsyncIterator[PeerClient]:
    """A peer that is closed at the end: aiortc's thread would keep the process."""
    client = PeerClient(has_channel=has_channel)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def calling_by_peer(
    server: Server,
    path: str = CALLS,
    *,
    has_channel: bool = True,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[PeerClient]:
    """A caller whose connection stands."""
    async with peer_client(has_channel=has_channel) as client:
        status, answer, client.location = await post(server, path, await client.offer(), **headers)
        assert status == 201, answer
        await client.accept(answer)
        if has_channel:
            await client.opened()
        yield client
