"""Between a call's messages and its session: decode and push on the way in, take and encode on the way out.

A transcoder is owned by one lane (:mod:`antiphon.serve.hosting.lanes`), whose turns are
:meth:`Transcoder.turn`; the event loop gives it input and collects its output. Between the two lie bounded
queues:

* Input: at most ``MAX_PENDING`` pieces. Beyond, the loop stops reading the socket, and the peer's own network
  stack holds the rest: bytes of an Ogg stream cannot be dropped in its middle.
* Output: at most ``MAX_BATCHES`` batches, and none while the socket is congested. Then replies stay in the
  engine's queue, which drops the oldest before they are encoded: an Opus stream must not lose packets either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.audio.formats import AudioDecoder, AudioEncoder
from antiphon.audio.opus import SAMPLE_RATE
from antiphon.audio.packets import packet_ms
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, AudioError, SessionFailedError
from antiphon.ipc.session import Session
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat, ChatRequest
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.recording import Recording
from antiphon.serve.transport.frames import frame

MAX_PENDING = 32
"""Pieces of input: 0.64 s of 20 ms packets, more than any hiccup of a codec thread."""

MAX_BATCHES = 8
"""Batches of output: 0.64 s at one frame a batch, more than any hiccup of the event loop."""

PIECE_BYTES = 4096
"""A longer Ogg message is decoded in pieces of about a second, so that no turn is long."""

PCM_FORMATS = frozenset({AudioFormat.PCM_S16LE, AudioFormat.PCM_F32LE})
"""Formats that cost less to convert than to hand to a thread."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Audio bytes, or None for a flush; when the last of them had been read; whether not to be heard.

    ``samples`` is what it counts for until a frame is whole: what its packet says, or a whole frame.
    """

    data: bytes | None
    received_s: float
    is_muted: bool
    samples: int


@dataclass(frozen=True, slots=True)
class Batch:
    """WebSocket frames to write at once, and the replies that are thereby sent."""

    frames: bytes
    replies: tuple[FrameReply, ...]


class Transcoder:
    """The codec side of one call. ``announce`` is called when the loop has something to collect.

    ``error`` ends the call; ``is_done`` means that the session took all the steps it may, and every reply
    can be collected.
    """

    def __init__(
        self, services: Services, model: ServedModel, request: ChatRequest, *, announce: Callable[[], None]
    ) -> None:
        """Make a decoder and an encoder of the request's format."""
        self.session: Session | None = None
        self.recording: Recording | None = None
        self.error: AntiphonError | None = None
        self.is_congested = False
        self.is_muted = False
        self.is_room_wanted = False
        self.is_done = False
        self._is_extended = request.extended
        self._is_stamped = request.extended and request.format is not AudioFormat.OGG
        self._slices = request.format is AudioFormat.OGG
        self._decoder = AudioDecoder(request.format)
        self._encoder = AudioEncoder(request.format)
        self._tokenizer = model.tokenizer
        self._tracer = services.tracer
        self._clock = services.clock
        self._log = services.log
        self._announce = announce
        self._inbox: deque[Piece] = deque()
        # Packets of 20 ms: four are decoded at once, when the last of a frame is here. Until then nobody can
        # do anything with the others.
        self._gathers = request.format is AudioFormat.OPUS
        self._frame_samples = model.engine.info.spec.frame_samples
        self._put_samples = self._taken_samples = self._heard_samples = 0
        self._missing_samples = 0
        self._outbox: deque[Batch] = deque()
        self._flushed_at_frame: int | None = None
        self._is_held = False
        self._is_closed = False
        self._seen_state: SessionState | None = None

    # The event loop's side.

    @property
    def is_full(self) -> bool:
        """Whether the loop should stop reading the socket."""
        return len(self._inbox) >= MAX_PENDING

    def put(self, data: bytes | None, received_s: float) -> bool:
        """Queue a message's audio, or a flush (None); true when the lane is to be woken."""
        if data is None or not self._slices or len(data) <= PIECE_BYTES:
            self._queue(data, received_s)
        else:
            for start in range(0, len(data), PIECE_BYTES):
                self._queue(data[start : start + PIECE_BYTES], received_s)
        return self._has_input()

    def _queue(self, data: bytes | None, received_s: float) -> None:
        samples = self._frame_samples
        if self._gathers and data is not None:
            samples = round(packet_ms(data) * SAMPLE_RATE / 1000) or samples
        self._inbox.append(Piece(data, received_s, self.is_muted, samples))
        self._put_samples += samples

    def _has_input(self) -> bool:
        """Whether what is queued is worth a turn; asked after each put and, by the lane, after each turn."""
        if not self._gathers or self.is_room_wanted:
            return bool(self._inbox)
        return bool(self._inbox) and self._put_samples - self._taken_samples >= self._missing_samples

    def collect(self) -> Batch | None:
        """All output so far as one batch."""
        batches: list[Batch] = []
        while self._outbox:
            batches.append(self._outbox.popleft())
        if len(batches) < 2:
            return batches[0] if batches else None
        return Batch(
            b"".join(batch.frames for batch in batches),
            tuple(reply for batch in batches for reply in batch.replies),
        )

    def is_waiting(self) -> bool:
        """Whether replies were left in the engine's queue and may be taken now: the lane is to be woken."""
        return self._is_held and not self.is_congested and len(self._outbox) < MAX_BATCHES

    def close(self) -> None:
        """Do no more work; the lane's last turn releases the codecs and ends the recording."""
        self._is_closed = True

    def take_in_now(self, data: bytes | None, received_s: float) -> None:
        """Do at once what :meth:`put` queues; for a lane on the event loop."""
        session = self.session
        if session is None or self.error is not None:
            return
        try:
            piece = Piece(data, received_s, self.is_muted, self._frame_samples)
            has_output = self._take_in(session, [piece])
        except AntiphonError as error:
            self.fail(error)
            return
        if has_output:
            self._announce()

    # The lane's side.

    def turn(self) -> bool:
        """Send what is ready, then take in what makes a frame whole, or one piece; true when more waits."""
        session = self.session
        if self._is_closed:
            self._decoder.close()
            self._encoder.close()
            if self.recording is not None:
                self.recording.close()
            return False
        if session is None or self.error is not None:
            return False
        has_output = self._reply(session)
        if self._has_input():
            has_output |= self._take_in(session, self._gather())
        state = session.state
        is_news = state is not self._seen_state or state is SessionState.QUEUED
        self._seen_state = state
        if session.is_done and not self._is_held:
            self.is_done = is_news = True
        if has_output or is_news or (self.is_room_wanted and len(self._inbox) <= MAX_PENDING // 2):
            self._announce()
        return self._has_input()

    def fail(self, error: Exception) -> None:
        """Keep the error that ends the call: the peer's fault when we have a word for it, else ours."""
        if isinstance(error, AntiphonError):
            self.error = error
        else:
            self._log.error("transcoding failed", exc_info=error)
            self.error = SessionFailedError(f"the server could not transcode: {type(error).__name__}")
        self._announce()

    def _gather(self) -> list[Piece]:
        """The next piece and, of packets that are joined, those after it that the frame still needs."""
        pieces = [self._inbox.popleft()]
        samples = pieces[0].samples
        while self._gathers and self._inbox and samples < self._missing_samples:
            following = self._inbox[0]
            if following.data is None or following.is_muted is not pieces[0].is_muted:
                break
            pieces.append(self._inbox.popleft())
            samples += following.samples
        self._taken_samples += samples
        return pieces

    def _take_in(self, session: Session, pieces: Sequence[Piece]) -> bool:
        """Decode and push, or flush; true when that made output."""
        data = [piece.data for piece in pieces if piece.data is not None]
        if not data:
            # Told with the next replies, which may have to wait: of many flushes only the last is news.
            self._flushed_at_frame = session.flush()
            return self._reply(session)
        start_s = 0.0 if self._tracer is None else self._clock()
        pcm = self._decoder.feed_all(data)
        self._trace("decode", start_s, session)
        # Before admission the decoder only follows the stream: its headers come once.
        if pcm.size and not pieces[-1].is_muted and session.state is SessionState.ACTIVE:
            if self.recording is not None:
                self.recording.heard(pcm)
            session.push(pcm, pieces[-1].received_s)
            self._heard_samples += pcm.size
            self._missing_samples = self._frame_samples - self._heard_samples % self._frame_samples
        return False

    def _reply(self, session: Session) -> bool:
        """Encode and frame what the engine has for us; true when there was any."""
        self._is_held = True  # before looking: who makes room meanwhile has to see that it is wanted
        if self.is_congested or len(self._outbox) >= MAX_BATCHES:
            return False
        self._is_held = False
        parts: list[bytes] = []
        replies, at_frame = session.take_with_gap()
        self._interrupt(at_frame, parts)
        start_s = 0.0 if self._tracer is None else self._clock()
        for reply in replies:
            self._frame_reply(reply, parts)
        if parts:
            self._trace("encode", start_s, session)
            self._outbox.append(Batch(b"".join(parts), tuple(replies)))
        return bool(parts)

    def _interrupt(self, dropped_at_frame: int | None, parts: list[bytes]) -> None:
        """Say once from which frame on replies may still come, after drops and flushes together."""
        known = [it for it in (dropped_at_frame, self._flushed_at_frame) if it is not None]
        self._flushed_at_frame = None
        if known and self._is_extended:
            parts.append(self._event(events.interrupted(max(known))))

    def _frame_reply(self, reply: FrameReply, parts: list[bytes]) -> None:
        """Audio first, then its text, as upstream's server sends them."""
        if reply.pcm is not None and self.recording is not None:
            self.recording.said(reply.pcm)
        if reply.pcm is not None:
            for payload in self._encode(reply.pcm):
                message = (
                    moshi.StampedAudio(reply.frame, reply.step_ms, reply.wait_ms, payload)
                    if self._is_stamped
                    else moshi.Audio(payload)
                )
                parts.append(frame(moshi.encode(message)))
        if reply.text_token is not None and self._tokenizer is not None:
            text = self._tokenizer.piece(reply.text_token)
            if text:
                parts.append(frame(moshi.encode(moshi.Text(text))))

    def _encode(self, pcm: FloatArray) -> list[bytes]:
        try:
            return self._encoder.encode(pcm)
        except AudioError as error:  # as a word for what a peer sends it would be blamed on the peer
            raise SessionFailedError(f"the model's audio cannot be encoded: {error}") from error

    def _trace(self, name: str, start_s: float, session: Session) -> None:
        if self._tracer is not None:
            track = threading.current_thread().name
            self._tracer.span(name, start_s, self._clock(), track=track, session=session.id)

    @staticmethod
    def _event(event: moshi.Event) -> bytes:
        return frame(moshi.encode(event))
