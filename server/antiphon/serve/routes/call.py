"""One /api/chat conversation: audio in, audio and text out, live.

What comes is decoded and pushed where it is read. What the engine has to say is taken, encoded and written in
a turn of the call's waker, and stays in the engine's queue while the socket is congested: the oldest gives
way there, before it is encoded, since an Opus stream must not lose packets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.audio.formats import AudioEncoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, AudioError, SessionFailedError
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat, ChatRequest, parse_set
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.dialogue import RECHECK_S, REPLIES_A_TURN, SocketConversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.input_decoder import InputDecoder
from antiphon.serve.media.recording import CallRecording
from antiphon.serve.routes import notices
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket

STATS_PERIOD_S = 1.0
"""How often extended clients get statistics."""

AUDIO_TAG = bytes((moshi.Tag.AUDIO,))
EXTENSION_TAGS = (bytes((moshi.Tag.EVENT,)), bytes((moshi.Tag.STAMPED_AUDIO,)))


class ChatCall(SocketConversation):
    """A live conversation: what one side cannot take in time is dropped, and said to be."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: ChatRequest,
        prompt: Prompt | None = None,
        *,
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        super().__init__(services, model, caller=caller)
        self._request, self._prompt = request, prompt
        self._ear = InputDecoder(request.format, model.engine.info.spec.frame_samples)
        self._encoder = AudioEncoder(request.format)
        self._at_end += [self._ear.close, self._encoder.close]
        self._is_stamped = request.extended and request.format is not AudioFormat.OGG
        self._recording: CallRecording | None = None
        self._tracer = services.tracer
        self._is_muted = False
        self._taken: deque[FrameReply] = deque()
        self._words = 0
        self._kept_from: int | None = None  # replies to earlier frames never come, which is still to be said
        self._told_ahead: int | None = None
        self._stats_due_s = self._opened_s + STATS_PERIOD_S

    async def admit(self) -> None:
        """Ask the engine for a session.

        Raises:
            ServerFullError, DrainingError: there is no row, and no place in the queue.
        """
        session = await self._submit(
            self._request.parameters,
            wait_s=self._request.wait_s,
            prompt=self._prompt,
            format=self._request.format,
            ext=self._request.extended,
        )
        self._record(session.id)

    def _record(self, name: str) -> None:
        """Record from now on, where there is a recorder and the caller agreed."""
        recorder = self._services.recorder
        if recorder is not None and self._request.may_record:
            self._recording = recorder.open(name)
            self._at_end.append(self._recording.close)

    @property
    def words(self) -> int:
        """Words of the model so far."""
        return self._words

    def announce_draining(self, deadline_s: float) -> None:
        """Say it to an extended client."""
        self._say(events.draining(deadline_s))

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        with socket.taking_at_once(self._take_audio):
            while self._ending is None and (data := await socket.receive()) is not None:
                if self._is_heeded(data):
                    await self._take(moshi.decode(data), socket)

    async def _take(self, message: moshi.Message, socket: Socket) -> None:
        """Do what a message asks for. Unknown tags and those that say nothing to a server are passed over."""
        if isinstance(message, moshi.Audio):
            if message.data:
                self._ear.put(message.data)
            received_s, has_more = socket.seen_s, self._hear(socket.seen_s)
            while has_more and not socket.has_ended:
                await asyncio.sleep(0)
                has_more = self._hear(received_s)
        elif isinstance(message, moshi.Control):
            self._control(message.action)
        elif isinstance(message, moshi.Event) and self._request.extended:
            self._handle_event(message)
        elif isinstance(message, moshi.Ping) and self._request.extended and not socket.is_congested():
            self._send(message)  # a browser neither sees nor sends pings of the WebSocket itself
        elif isinstance(message, moshi.Unknown):
            self._heed(message)
        if self._is_others_turn():
            await asyncio.sleep(0)

    def _take_audio(self, message: bytes | str) -> bytes | str | None:
        """Hear a message of audio where it is read; what takes more than a step is left for a turn."""
        if self._socket is None or self._ending is not None or isinstance(message, str):
            return message
        if message[:1] != AUDIO_TAG or len(message) == 1 or not self._is_heeded(message):
            return message
        self._ear.put(message[1:])
        return AUDIO_TAG if self._hear(self._socket.seen_s) else None

    def _is_heeded(self, data: bytes) -> bool:
        """Whether a message means anything; to a client without the extension its tags are unknown ones."""
        return self._request.extended or data[:1] not in EXTENSION_TAGS

    def _heed(self, message: moshi.Unknown) -> None:
        """Take a message that means something to some calls only."""

    def _hear(self, received_s: float, *, all_of_it: bool = False) -> bool:
        """Decode and push one step of what came; true when there may be more."""
        session = self._session
        start_s = 0.0 if self._tracer is None else self._clock()
        pcm = self._ear.step(all_of_it=all_of_it)
        if pcm is None or session is None:
            return False
        self._trace("decode", start_s, session=session.id)
        if pcm.size:
            self._patience.heard(received_s, pcm.size / self._model.engine.info.spec.sample_rate)
        # Before admission the decoder only follows the stream: its headers come once.
        if pcm.size and not self._is_muted and session.state is SessionState.ACTIVE:
            if self._recording is not None:
                self._recording.heard(pcm)
            session.push(pcm, received_s)
            self._ear.heard(pcm.size)
        return self._ear.has_more

    def _control(self, action: moshi.ControlAction) -> None:
        """Obey a control message, as far as full duplex gives it a meaning.

        pause: what is said until start is not heard; restart: forget what is queued both ways, and hear
        again; start: hear again; endTurn: nothing, since this server has no turns.
        """
        if action is moshi.ControlAction.RESTART:
            self._flush()
        if action is not moshi.ControlAction.END_TURN:
            self._hear(self._clock(), all_of_it=True)  # what came before it
            self._is_muted = action is moshi.ControlAction.PAUSE

    def _flush(self) -> None:
        """Forget what is queued both ways, behind what came before."""
        if self._session is None:
            return
        self._hear(self._clock(), all_of_it=True)
        self._taken.clear()
        # Told with the next replies, which may have to wait: of many flushes only the last is news.
        self._kept_from = self._session.flush()
        self._waker.wake()

    def _handle_event(self, event: moshi.Event) -> None:
        session = self._session
        if session is None:
            return
        events.check_event(event, sender=events.Sender.CLIENT)
        if event.type == "set":
            session.set_parameters(parse_set(event.fields, session.parameters))
        elif event.type == "flush":
            self._flush()
        elif event.type == "bye":
            self.end()

    # What goes out.

    def _advance(self, socket: Socket, session: CallSession) -> bool:
        # Asked before writing: what was made before the end is written, whatever comes in between.
        is_closed = session.state is SessionState.CLOSED
        if not self._is_ready:
            self._follow_admission(session)
        has_more = self._is_ready and self._write(socket, session)
        if has_more:
            return True
        if is_closed:
            self.end(session.error)
        elif session.is_done and not self._taken:
            self.end()
        return False

    def _follow_admission(self, session: CallSession) -> None:
        """Tell the place in the queue when it changes; once there is a row, begin."""
        if session.state is SessionState.ACTIVE:
            self._is_ready = True
            self._patience.begin(self._clock())
            self._send(moshi.Handshake())
            self._tell_ready(session)
        elif (ahead := session.position) is not None and ahead != self._told_ahead:
            self._told_ahead = ahead
            self._say(notices.queued(session, ahead))

    def _tell_ready(self, session: CallSession, resume: Mapping[str, Any] | None = None) -> None:
        is_recorded, info = self._recording is not None, self._model.engine.info
        ready = notices.ready(session, self._model.name, info, is_recorded=is_recorded, resume=resume)
        self._say(ready)

    def _write(self, socket: Socket, session: CallSession) -> bool:
        """Encode and send some replies in one write; true when more are ready and can go."""
        if socket.is_congested():
            self._look_again_in(RECHECK_S)
            return False
        parts: list[bytes] = []
        if not self._taken:
            replies, at_frame = session.take_with_gap()
            self._taken.extend(replies)
            self._interrupt(at_frame, parts)
        self._write_some(socket, session, parts, REPLIES_A_TURN)
        return bool(self._taken)

    def _write_taken(self, socket: Socket) -> None:
        if self._taken and self._session is not None:
            self._write_some(socket, self._session, [], len(self._taken))

    def _write_some(self, socket: Socket, session: CallSession, parts: list[bytes], replies: int) -> None:
        """Write so many of the replies taken, behind ``parts``."""
        sent = [self._taken.popleft() for _ in range(min(replies, len(self._taken)))]
        start_s = 0.0 if self._tracer is None else self._clock()
        for reply in sent:
            self._frame_reply(reply, parts)
        if not parts:
            return
        self._trace("encode", start_s, session=session.id)
        self._before_write(session, sent)
        start_s = self._clock()
        socket.write(b"".join(parts))
        now_s = self._clock()
        for reply in sent:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))
        self._trace("send", start_s, frames=len(sent))

    def _before_write(self, session: CallSession, replies: Sequence[FrameReply]) -> None:
        """Frames that answer these replies are about to be sent."""

    def _interrupt(self, dropped_at_frame: int | None, parts: list[bytes]) -> None:
        """Say once from which frame on replies may still come, after drops and flushes together."""
        known = [it for it in (dropped_at_frame, self._kept_from) if it is not None]
        self._kept_from = None
        if known and self._request.extended:
            parts.append(self._framed(events.interrupted(max(known))))

    def _frame_reply(self, reply: FrameReply, parts: list[bytes]) -> None:
        """Audio first, then its text, as upstream's server sends them."""
        if reply.pcm is not None:
            if self._recording is not None:
                self._recording.said(reply.pcm)
            head = AUDIO_TAG
            if self._is_stamped:
                head = moshi.stamped_head(reply.frame, reply.step_ms, reply.wait_ms)
            parts.extend(frame(head + payload) for payload in self._encode(reply.pcm))
        if reply.text_token is not None and self._model.tokenizer is not None and self._is_news(reply):
            text = self._model.tokenizer.piece(reply.text_token)
            if text:
                self._words += text.startswith(" ")
                parts.append(self._framed(moshi.Text(text)))

    def _is_news(self, _reply: FrameReply) -> bool:
        """Whether the text of a reply was not sent before."""
        return True

    def _framed(self, message: moshi.Message) -> bytes:
        """Text, or an event that has to arrive, as it is sent."""
        return frame(moshi.encode(message))

    def _encode(self, pcm: FloatArray) -> list[bytes]:
        try:
            return self._encoder.encode(pcm)
        except AudioError as error:  # as a word for what a peer sends it would be blamed on the peer
            raise SessionFailedError(f"the model's audio cannot be encoded: {error}") from error

    def _send(self, message: moshi.Message) -> None:
        if self._socket is not None:
            self._socket.write(frame(moshi.encode(message)))

    def _say(self, event: moshi.Event) -> None:
        """Send an event to clients that asked for them."""
        if self._request.extended:
            self._send(event)

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self._say(events.error_of(error))

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        """Now and then: timeouts, and a ping for a silent peer; once a second statistics."""
        silent_s = socket.silent_s()
        self._patience.check(now_s, silent_s)
        if socket.is_congested():
            return
        if self._patience.wants_ping(silent_s):
            socket.ping()
        if self._request.extended and self._is_ready and now_s >= self._stats_due_s:
            self._stats_due_s += STATS_PERIOD_S
            self._say(notices.stats(session))

    def _trace(self, name: str, start_s: float, **details: int | str) -> None:
        if self._tracer is not None:
            self._tracer.span(name, start_s, self._clock(), track="loop", **details)
