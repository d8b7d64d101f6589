"""A session of the probe whose connection is cut and resumed repeatedly, for ``antiphon probe --cut``.

Without a connection the session sends no audio. It resumes at the frame that the server requests, so no audio
is lost.
"""

from __future__ import annotations

import asyncio
import random
import socket as sockets
from collections.abc import Callable
from typing import Final

import aiohttp

from antiphon_client.clip import EncodedClip
from antiphon_client.encoding import FRAME_SAMPLES
from antiphon_client.record import ConnectionCut
from antiphon_client.session import (
    MAX_MESSAGE_BYTES,
    EndedError,
    ProbeSession,
    ProbeState,
    SessionPlan,
    until_either_ends,
)
from antiphon_client.thread import CallThread

RETRY_S: Final = 0.05
"""Seconds between two attempts to connect again."""

SPREAD: Final = 0.5
"""Random shift of a cut before or after its scheduled time, as a fraction of the period."""


class CutSession(ProbeSession):
    """A probe session that cuts and resumes its connection, on average every ``cut_every_s`` of its plan."""

    def __init__(
        self, plan: SessionPlan, clip: EncodedClip, *, start_s: float, clock: Callable[[], float]
    ) -> None:
        """Prepare the session."""
        super().__init__(plan, clip, start_s=start_s, clock=clock)
        self._thread = CallThread()
        self._chance = random.Random(plan.session)
        self._resumed = asyncio.Event()
        self._cut_s: float | None = None
        self._back_s: float | None = None
        self._heard_s: float | None = None

    async def _connect(self, http: aiohttp.ClientSession) -> None:
        url, claim = self._plan.url, None
        tried_s = -RETRY_S
        while True:
            try:
                await asyncio.sleep(max(0.0, tried_s + RETRY_S - self._clock()))
                tried_s = self._clock()
                await self._connection(http, url, claim)
                return
            except (EndedError, aiohttp.ClientError, OSError):
                if self._cut_s is None or not self._thread.is_resumable:
                    raise
                if self._clock() > self._cut_s + self._thread.window_s:
                    raise
            url, claim = self._thread.resuming_url(self._plan.url), self._thread.claim(0)

    async def _connection(self, http: aiohttp.ClientSession, url: str, claim: bytes | None) -> None:
        self._resumed.clear()
        async with http.ws_connect(
            url, compress=0, max_msg_size=MAX_MESSAGE_BYTES, timeout=self._close_timeout
        ) as socket:
            self._socket = socket
            if claim is None:
                self.state = ProbeState.QUEUED
            else:
                await socket.send_bytes(claim)
            cutting = asyncio.ensure_future(self._cut_later(socket))
            try:
                await until_either_ends(self._speak(socket), self._listen(socket))
            finally:
                cutting.cancel()

    async def _cut_later(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Cut the connection as a network failure does, at a random time after it is established."""
        await self._begin.wait()
        await asyncio.sleep(self._plan.cut_every_s * self._chance.uniform(1 - SPREAD, 1 + SPREAD))
        if self.state is ProbeState.SPEAKING:
            self._cut_s, self._back_s = self._clock(), None
            socket.get_extra_info("socket").shutdown(sockets.SHUT_RDWR)

    async def _let_in(self) -> None:
        await super()._let_in()
        if self._thread.resumptions or self._cut_s is not None:
            await self._resumed.wait()
            self._next_message = self._thread.input_frame * FRAME_SAMPLES // self._clip.message_samples

    async def _heed(self, socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        resumptions, moves, pieces = self._thread.resumptions, self._thread.moves, self.recorder.pieces
        message = self._thread.unwrap(data)
        now_s = self._clock()
        if self._thread.moves > moves:  # a cut that the server announced
            self._cut_s, self._back_s = now_s, None
        if self._thread.resumptions > resumptions:
            self._back_s = now_s
            self._resumed.set()
        if (ack := self._thread.ack(now_s)) is not None:
            await socket.send_bytes(ack)
        if message is not None:
            await super()._heed(socket, message)
        if self.recorder.pieces > pieces:
            self._note_sound(now_s)

    def _note_sound(self, now_s: float) -> None:
        """Record received audio; the first after a cut ends a gap."""
        if self._cut_s is not None and self._back_s is not None and self._heard_s is not None:
            outage_ms = 1000 * (self._back_s - self._cut_s)
            gap_ms = 1000 * max(0.0, now_s - self._heard_s - self._frame_s)
            self._cuts.append(ConnectionCut(outage_ms, gap_ms))
            self._cut_s = None
        self._heard_s = now_s
