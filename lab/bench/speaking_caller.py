"""A caller that speaks in real time, follows the call to another worker, and records the replies."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.protocol import moshi
from antiphon_client.thread import CallThread
from tests.serve.harness import FRAME_SAMPLES

FRAME_S = 0.08
IN_FLIGHT_FRAMES = 10
"""Most frames sent and not answered: on a busy machine the caller waits, and loses nothing."""


@dataclass
class Spoken:
    """One call as its caller receives it; ``frames`` has the sound of each frame."""

    text: list[str] = field(default_factory=list)
    frames: dict[int, bytes] = field(default_factory=dict)
    heard_s: list[float] = field(default_factory=list)
    resumed_ms: float | None = None
    missed: int = 0
    thread: CallThread = field(default_factory=CallThread)
    moved_s: float | None = None

    @property
    def gap_ms(self) -> float:
        """The longest time between two answers minus one frame; 0 for fewer than two answers."""
        pauses = np.diff(np.array(self.heard_s))
        return 1000 * max(0.0, float(pauses.max(initial=0.0)) - FRAME_S)


class SpeakingCaller:
    """A caller that sends speech in real time, keeps its recent audio, and follows its call to other
    workers."""

    def __init__(self, http: aiohttp.ClientSession, url: str, pcm: FloatArray, delay_frames: int) -> None:
        """Prepare to speak whole frames."""
        self._http, self._url = http, url
        self._frames = pcm.reshape(-1, FRAME_SAMPLES)
        self._last = len(self._frames) - 1 - delay_frames
        self.spoken, self.reached = Spoken(), asyncio.Event()
        self.alarm_frame = -1
        self._next = 0
        self._began_s = 0.0

    async def run(self) -> None:
        """Run the call until the last frame is answered."""
        url, claim = self._url, b""
        thread = self.spoken.thread
        while True:
            try:
                async with self._http.ws_connect(url, max_msg_size=0) as socket:
                    if claim:
                        await socket.send_bytes(claim)
                    if await self._hold(socket):
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
            if thread.reason:
                return
            if not thread.is_resumable:  # the load balancer has no worker at this moment
                continue
            url, claim = thread.resuming_url(self._url), thread.claim(0)

    async def _hold(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        speaking: asyncio.Task[None] | None = None
        try:
            async for message in socket:
                resumptions = self.spoken.thread.resumptions
                if message.type is aiohttp.WSMsgType.BINARY and self._heed(message.data):
                    return True
                is_let_in = self.spoken.thread.resumptions > resumptions
                if speaking is None and self.spoken.thread.is_resumable and (is_let_in or not resumptions):
                    speaking = asyncio.ensure_future(self._speak(socket))
        finally:
            if speaking is not None:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)
        return False

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        self._began_s = self._began_s or loop.time()
        while self._next < len(self._frames):
            await asyncio.sleep(max(0.0, self._began_s + (self._next + 1) * FRAME_S - loop.time()))
            while self._next - len(self.spoken.frames) > IN_FLIGHT_FRAMES:  # noqa: ASYNC110 (one caller)
                await asyncio.sleep(FRAME_S / 8)
            data = np.asarray(self._frames[self._next], "<f4").tobytes()
            self._next += 1
            await socket.send_bytes(moshi.encode(moshi.Audio(data)))

    def _heed(self, data: bytes) -> bool:
        """Process a message; returns whether the last frame is answered."""
        spoken, now_s = self.spoken, time.monotonic()
        thread = spoken.thread
        resumptions, moves = thread.resumptions, thread.moves
        inner = thread.unwrap(data)
        if thread.moves > moves:
            spoken.moved_s = now_s
        if thread.resumptions > resumptions:
            self._next, spoken.missed = thread.input_frame, thread.missed_frames
            if spoken.moved_s is not None:
                spoken.resumed_ms = 1000 * (now_s - spoken.moved_s)
        message = None if inner is None else moshi.decode(inner)
        if isinstance(message, moshi.Text):
            spoken.text.append(message.text)
        elif isinstance(message, moshi.StampedAudio):
            if message.frame not in spoken.frames:
                spoken.frames[message.frame] = message.data
                spoken.heard_s.append(now_s)
            if message.frame >= self.alarm_frame >= 0:
                self.reached.set()
            return message.frame >= self._last
        return False
