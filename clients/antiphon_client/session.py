"""One paced conversation with a server: connect, wait for admission, send in real time, receive, close."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from antiphon.errors import AudioError, ProtocolError
from antiphon.protocol import events, kyutai, moshi
from antiphon_client.chat_receiver import ChatReceiver
from antiphon_client.clip import EncodedClip
from antiphon_client.encoding import FRAME_SAMPLES, SAMPLE_RATE
from antiphon_client.pacing import Pacer
from antiphon_client.record import ConnectionCut, FrameRecorder, SessionOutcome, SessionRecord
from antiphon_client.transcript import LAST_MARKER, TranscriptReceiver

MAX_MESSAGE_BYTES = 1 << 20
CLOSE_TIMEOUT_S = 1.0
_UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class ProbeState(StrEnum):
    """State of a probe session."""

    WAITING = "waiting"  # waits for its time to connect
    CONNECTING = "connecting"
    QUEUED = "queued"  # connected, not admitted yet
    SPEAKING = "speaking"
    LISTENING = "listening"  # all audio is sent, replies are outstanding
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Plan of one session.

    The session connects ``connect_after_s`` into the run, waits up to ``ready_timeout_s`` for admission,
    sends its first message ``phase_s`` later, and after its last message waits at most ``grace_s`` for
    replies. ``is_extended``: the server stamps replies and sends events, which a stock server does not.
    ``is_transcript``: the server sends words instead of audio. ``is_unpaced``: audio is sent as fast as the
    server reads it. With ``cut_every_s`` the connection is cut about once in this time, and the call is
    resumed.
    """

    session: int
    url: str
    connect_after_s: float
    phase_s: float
    is_extended: bool = True
    delay_frames: int = 0
    ready_timeout_s: float = 10.0
    grace_s: float = 2.0
    keeps_audio: bool = False
    is_transcript: bool = False
    is_unpaced: bool = False
    cut_every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionResult:
    """The record of a session and, if kept, the audio payloads that it received."""

    record: SessionRecord
    payloads: tuple[bytes, ...] = ()


class EndedError(Exception):
    """The conversation ended early; the message gives the reason."""


class ProbeSession:
    """Runs one plan; a server fault becomes the record's outcome, never an exception."""

    def __init__(
        self, plan: SessionPlan, clip: EncodedClip, *, start_s: float, clock: Callable[[], float]
    ) -> None:
        """Prepare a session of a run that began at ``start_s`` on ``clock``."""
        self.state = ProbeState.WAITING
        self._plan = plan
        self._clip = clip
        self._start_s = start_s
        self._clock = clock
        self._hearing = (
            TranscriptReceiver()
            if plan.is_transcript
            else ChatReceiver(
                clip.format,
                is_extended=plan.is_extended,
                delay_frames=plan.delay_frames,
                keeps_audio=plan.keeps_audio,
            )
        )
        self._begin = asyncio.Event()  # admitted, or stopped
        self._answered = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_stopped = False
        self.has_vanished = False
        self._first_sent_s: float | None = None
        self._dropped_messages = self._bytes_out = 0
        self._next_message = 0
        self._recorded_messages = 0
        self._cuts: list[ConnectionCut] = []
        self._frame_s = FRAME_SAMPLES / SAMPLE_RATE
        self._close_timeout = aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S)

    @property
    def recorder(self) -> FrameRecorder:
        """The session's frames so far."""
        return self._hearing.recorder

    def stop(self) -> None:
        """Send no more audio; the session waits for the outstanding replies, then closes."""
        self._is_stopped = True
        self._begin.set()

    def cut_connection(self) -> None:
        """Cut the connection without a close frame, as a network failure does; no effect if there is no
        connection.
        """
        if self._socket is not None and not self._socket.closed:
            self.has_vanished = True
            # Both directions at once, so that no close frame can be sent.
            self._socket.get_extra_info("socket").shutdown(sockets.SHUT_RDWR)

    async def run(self, http: aiohttp.ClientSession) -> SessionResult:
        """Run the conversation and return its record."""
        await self._begun_within(self._start_s + self._plan.connect_after_s - self._clock())
        connect_s = self._clock()
        detail = ""
        try:
            await self._converse(http)
        except EndedError as error:
            detail = str(error)
        self.state = ProbeState.CLOSED
        ended = SessionOutcome.FAILED if detail else SessionOutcome.ANSWERED
        outcome = SessionOutcome.REJECTED if self._hearing.ready_s is None else ended
        return SessionResult(self._record(connect_s, outcome, detail), tuple(self._hearing.payloads))

    async def _converse(self, http: aiohttp.ClientSession) -> None:
        if self._is_stopped:
            raise EndedError("stopped before it connected")
        self.state = ProbeState.CONNECTING
        try:
            await self._connect(http)
        except aiohttp.WSServerHandshakeError as error:
            raise EndedError(await describe_refusal(http, self._plan.url, error)) from error
        except (aiohttp.ClientError, OSError) as error:
            words = self._hearing.error or f"connection lost: {error or type(error).__name__}"
            raise EndedError(words) from error

    async def _connect(self, http: aiohttp.ClientSession) -> None:
        async with http.ws_connect(
            self._plan.url, compress=0, max_msg_size=MAX_MESSAGE_BYTES, timeout=self._close_timeout
        ) as socket:
            self.state = ProbeState.QUEUED
            self._socket = socket
            await until_either_ends(self._speak(socket), self._listen(socket))

    # Sending.

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._let_in()
        self.state = ProbeState.SPEAKING
        await (self._send_all(socket) if self._plan.is_unpaced else self._send_clip(socket))
        if self._plan.is_transcript:
            await socket.send_bytes(kyutai.encode(kyutai.Marker(LAST_MARKER)))
        self.state = ProbeState.LISTENING
        self._check_answered()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.grace_s):
                await self._answered.wait()
        if self._plan.is_extended:
            await socket.send_bytes(moshi.encode(events.bye()))

    async def _let_in(self) -> None:
        await self._begun_within(self._plan.ready_timeout_s)
        if self._hearing.ready_s is not None:
            return
        if self._is_stopped:
            raise EndedError("stopped before admission")
        hint = "; use --stock for a stock Moshi server" if self._hearing.has_handshake else ""
        raise EndedError(f"not admitted within {self._plan.ready_timeout_s:g} s{hint}")

    async def _send_clip(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        clip = self._clip
        origin_s = self._clock() + self._plan.phase_s
        first = self._next_message
        pacer = Pacer(origin_s=origin_s, period_s=clip.message_s, messages=len(clip.messages) - first)
        while not pacer.is_done:
            await asyncio.sleep(pacer.wait_s(self._clock()))
            now_s = self._clock()
            if self._is_stopped or (turn := pacer.take(now_s)) is None:
                break
            if self._first_sent_s is None:
                self._first_sent_s = now_s
            number = first + turn.message
            message = clip.messages[number]
            if number >= self._recorded_messages:  # otherwise it was lost with an earlier connection
                self._recorded_messages = number + 1
                # Recorded before send_bytes(), since the wait for room in the socket counts as latency.
                self.recorder.sent(clip.message_samples, now_s, turn.late_s)
            self._bytes_out += len(message)
            await socket.send_bytes(message)
        self._dropped_messages = pacer.dropped

    async def _send_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send without pacing; the server reads no faster than its model takes audio."""
        for message in self._clip.messages:
            if self._is_stopped:
                break
            now_s = self._clock()
            self._first_sent_s = now_s if self._first_sent_s is None else self._first_sent_s
            self.recorder.sent(self._clip.message_samples, now_s, 0.0)
            self._bytes_out += len(message)
            await socket.send_bytes(message)

    async def _begun_within(self, seconds: float) -> None:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._begin.wait()

    # Receiving.

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            try:
                await self._heed(socket, message.data)
            except (ProtocolError, AudioError) as error:
                raise EndedError(f"the server sent an unusable message: {error}") from error
            if self.state is ProbeState.QUEUED and self._hearing.ready_s is not None:
                self._begin.set()
            elif self.state is ProbeState.LISTENING:
                self._check_answered()
        raise EndedError(self._hearing.error or f"the server closed with code {socket.close_code}")

    async def _heed(self, _socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
        """Process one message."""
        self._hearing.hear(data, self._clock())

    def _check_answered(self) -> None:
        if self._hearing.is_answered:
            self._answered.set()

    def _record(self, connect_s: float, outcome: SessionOutcome, detail: str) -> SessionRecord:
        hearing = self._hearing
        return SessionRecord(
            session=self._plan.session,
            outcome=outcome,
            detail=detail,
            planned_frames=self._clip.frames,
            delay_frames=self._plan.delay_frames,
            frame_samples=FRAME_SAMPLES,
            sample_rate=SAMPLE_RATE,
            connect_s=connect_s,
            ready_s=hearing.ready_s,
            first_sent_s=self._first_sent_s,
            ended_s=self._clock(),
            timeline=hearing.recorder.timeline(),
            misplaced=hearing.recorder.misplaced,
            interruptions=hearing.interruptions,
            dropped_messages=self._dropped_messages,
            bytes_out=self._bytes_out,
            bytes_in=hearing.bytes_in,
            server_late=hearing.server_late,
            server_dropped=hearing.server_dropped,
            text=hearing.text,
            word_latencies_ms=hearing.word_latencies_ms(),
            cuts=tuple(self._cuts),
        )


async def until_either_ends(first: Coroutine[None, None, None], second: Coroutine[None, None, None]) -> None:
    """Run both coroutines until one ends, then cancel the other. If the ended one failed, raise its
    exception; ``first`` has priority if both have ended.
    """
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def describe_refusal(
    http: aiohttp.ClientSession, url: str, error: aiohttp.WSServerHandshakeError
) -> str:
    """Describe a WebSocket upgrade that was refused with an HTTP status. aiohttp hides the response's body,
    so the request is repeated to read it.
    """
    retry_after = error.headers.get("Retry-After") if error.headers else None
    words = f"refused with HTTP {error.status}" + (f", retry after {retry_after} s" if retry_after else "")
    if error.status not in (400, 401, 403, 404, 421):  # others may be answered otherwise a moment later
        return words
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with http.get(url.replace("ws", "http", 1), headers=_UPGRADE) as response:
            text = (await response.text())[:300].strip()
            if response.status == error.status and text:
                words += f": {text}"
    return words + ("; give it by --api-key-file FILE" if error.status == 401 else "")
