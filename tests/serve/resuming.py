"""A client that keeps its recording and resumes its call after every cut."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.backends.null import STAMP_SAMPLES
from antiphon.protocol import moshi
from antiphon_client.thread import CallThread
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, cut, response_to, transport_of
from tests.support.stamp import read_stamp

IN_FLIGHT_FRAMES = 5
"""Sent and not answered: as many as the server says again, so that a cut at any speed costs none."""

QUERY = "ext=1&format=pcm_f32le&resume=1"


@dataclass
class Heard:
    """What one call brought: whole text, and the audio of each frame as often as it came."""

    text: list[str] = field(default_factory=list)
    audio: dict[int, list[FloatArray]] = field(default_factory=dict)


class ResumingCaller:
    """Speaks ``pcm``, whole frames, as fast as it is answered; :meth:`cut` breaks its connection."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        pcm: FloatArray,
        *,
        patience_s: float = 4 * PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self.outages_ms: list[float] = []
        self.gaps_ms: list[float] = []
        self._cut_s: float | None = None
        self._heard_s = 0.0
        self.thread, self.heard = CallThread(), Heard()
        self._http, self._url = http, url
        self._frames = pcm.reshape(-1, FRAME_SAMPLES)
        self._next = self._answered = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._progress = asyncio.Event()
        self._is_over = False
        self.refused: list[str] = []
        self.sends_until = len(self._frames)

    def address_of(self, thread: CallThread) -> str:
        """Where the call is resumed."""
        return thread.resuming_url(self._url)

    @property
    def answered(self) -> int:
        """Frames up to which everything is answered."""
        return self._answered

    def go_on(self, until: int | None = None) -> None:
        """Send up to this frame, or everything, where only ``sends_until`` frames were to be sent before."""
        self.sends_until = len(self._frames) if until is None else until
        self._progress.set()

    def cut(self) -> None:
        """Break the connection, as a network does."""
        if self._socket is not None and response_to(self._socket).connection is not None:
            self._cut_s = time.monotonic()
            cut(self._socket)

    def stop_reading(self) -> None:
        """Leave what the server says unread, until the connection is cut."""
        assert self._socket is not None
        transport_of(self._socket).pause_reading()

    async def until_answered(self, frame: int) -> None:
        """Wait until everything before this frame is answered, and the last cut made good, or all is over."""
        while (self._answered < frame or self._cut_s is not None) and not self._is_over:  # noqa: ASYNC110 (it looks at a few tests' calls)
            await asyncio.sleep(0.001)

    async def run(self) -> None:
        """Until the last frame is answered, over as many connections as it takes."""
        url, first = self._url, None
        async with asyncio.timeout(self._patience_s):
            while self._answered < len(self._frames) and not self.thread.reason:
                try:
                    await self._connection(url, first)
                except (aiohttp.ClientError, OSError) as error:
                    self.refused.append(repr(error))
                    await asyncio.sleep(0.02)
                if not self.thread.is_moved:
                    await asyncio.sleep(0.02)
                if self.thread.is_resumable:
                    url, first = self.address_of(self.thread), self.thread.claim(0)

        self._is_over = True

    async def _connection(self, url: str, first: bytes | None) -> None:
        async with self._http.ws_connect(url, max_msg_size=0) as socket:
            self._socket = socket
            if first is not None:
                await socket.send_bytes(first)
            sending = asyncio.ensure_future(self._send(socket, first is None))
            try:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        await self._heed(socket, message.data)
                    if self._answered >= len(self._frames):
                        await socket.close()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, is_first: bool) -> None:
        self._next = 0 if is_first else len(self._frames)  # until the server says where
        while True:
            self._progress.clear()
            ahead = self._answered + IN_FLIGHT_FRAMES
            while self.thread.is_resumable and self._next < min(self.sends_until, ahead, len(self._frames)):
                self._next += 1
                data = np.asarray(self._frames[self._next - 1], "<f4").tobytes()
                await socket.send_bytes(moshi.encode(moshi.Audio(data)))
            await self._progress.wait()

    async def _heed(self, socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        resumptions = self.thread.resumptions
        inner = self.thread.unwrap(data)
        now_s = time.monotonic()
        if self.thread.resumptions > resumptions:
            self._next = self.thread.input_frame
            if self._cut_s is not None:
                self.outages_ms.append(1000 * (now_s - self._cut_s))
        if (ack := self.thread.ack(asyncio.get_running_loop().time())) is not None:
            await socket.send_bytes(ack)
        self._progress.set()
        if inner is None:
            return
        message = moshi.decode(inner)
        if isinstance(message, moshi.Text):
            self.heard.text.append(message.text)
        elif isinstance(message, moshi.StampedAudio):
            pcm = np.frombuffer(message.data, "<f4").astype(np.float32)
            self.heard.audio.setdefault(message.frame, []).append(pcm)
            if self._cut_s is not None and len(self.outages_ms) > len(self.gaps_ms):
                self.gaps_ms.append(1000 * (now_s - self._heard_s))
                self._cut_s = None
            self._heard_s = now_s
            self._answered = max(self._answered, message.frame + 1)


class MovingCaller(ResumingCaller):
    """Finds the worker that has its call by name, as the load balancer does."""

    workers: dict[str, str]

    def address_of(self, thread: CallThread) -> str:
        url = super().address_of(thread)
        return url.replace(self._url.partition("/api/")[0], self.workers[thread.worker])


def assert_same(cut: ResumingCaller, whole: ResumingCaller) -> None:
    assert cut.thread.reason == ""
    assert "".join(cut.heard.text) == "".join(whole.heard.text)
    assert all(len(pieces) == 1 for pieces in cut.heard.audio.values())
    assert list(cut.heard.audio) == sorted(cut.heard.audio)
    for frame, (pcm,) in cut.heard.audio.items():
        again = whole.heard.audio[frame][0]
        assert read_stamp(pcm).frame == read_stamp(again).frame  # rows differ, what they heard does not
        np.testing.assert_array_equal(pcm[STAMP_SAMPLES:], again[STAMP_SAMPLES:])


def records(path: Path) -> list[dict[str, Any]]:
    """The records of a usage file; a line may be on its way."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]
