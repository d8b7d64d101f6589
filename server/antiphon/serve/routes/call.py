"""One /api/chat conversation on the event loop: audio in, audio and text out, live.

A call's reader hands audio to the call's transcoder. The transcoder, and through it the engine, wakes the
call's lane, whose turn (:meth:`Call._advance`) writes what there is to write.
"""

from __future__ import annotations

from antiphon.errors import AntiphonError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import ChatRequest, parse_set
from antiphon.serve.hosting.conversation import RECHECK_S, SocketConversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.transcoder import PCM_FORMATS, Transcoder
from antiphon.serve.routes import notices
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket

STATS_PERIOD_S = 1.0
"""How often extended clients get statistics."""

EXTENSION_TAGS = (bytes((moshi.Tag.EVENT,)), bytes((moshi.Tag.STAMPED_AUDIO,)))


class Call(SocketConversation):
    """A live conversation: what one side cannot take in time is dropped, and said to be."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: ChatRequest,
        prompt: Prompt | None = None,
        *,
        caller: str = "",
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        super().__init__(services, model, caller=caller)
        self._request = request
        self._prompt = prompt
        self._transcoder = Transcoder(services, model, request, announce=self._lane.wake)
        self._is_inline = request.format in PCM_FORMATS
        make_lane = services.pool.loop_lane if self._is_inline else services.pool.thread_lane
        self._codec_lane = make_lane(self._transcoder.turn, self._transcoder.fail)
        self._told_ahead: int | None = None
        self._stats_due_s = self._opened_s + STATS_PERIOD_S

    def admit(self) -> None:
        """Ask the engine for a session.

        Raises:
            ServerFullError, DrainingError: there is no row, and no place in the queue.
        """
        session = self._transcoder.session = self._submit(
            self._request.parameters,
            wait_s=self._request.wait_s,
            notify=self._codec_lane.wake,
            prompt=self._prompt,
            format=self._request.format,
            ext=self._request.extended,
        )
        recorder = self._services.recorder
        if recorder is not None and self._request.may_record:
            self._transcoder.recording = recorder.open(session.id)

    def announce_draining(self, deadline_s: float) -> None:
        """Say it to an extended client."""
        self._say(events.draining(deadline_s))

    def _release(self) -> None:
        self._transcoder.close()
        self._codec_lane.close()

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (data := await socket.receive()) is not None:
            if not self._request.extended and data[:1] in EXTENSION_TAGS:
                continue  # a tag like any other that this client's protocol does not know
            message = moshi.decode(data)
            if isinstance(message, moshi.Audio) and message.data:
                self._patience.heard(socket.seen_s)
                self._put(message.data, socket.seen_s)
                if self._transcoder.is_full:
                    await self._wait_for_room(socket)
            elif isinstance(message, moshi.Control):
                self._control(message.action)
            elif isinstance(message, moshi.Event) and self._request.extended:
                self._handle_event(message)
            elif isinstance(message, moshi.Ping) and self._request.extended and not socket.is_congested():
                self._send(message)  # a browser neither sees nor sends pings of the WebSocket itself
            # Everything else says nothing to a server, and unknown tags are to be discarded.

    def _put(self, data: bytes | None, now_s: float) -> None:
        """Give the transcoder audio, or a flush (None)."""
        if self._is_inline:
            self._transcoder.take_in_now(data, now_s)
        else:
            if self._transcoder.put(data, now_s):
                self._codec_lane.wake()

    async def _wait_for_room(self, socket: Socket) -> None:
        self._transcoder.is_room_wanted = True
        self._codec_lane.wake()
        await super()._wait_for_room(socket)

    def _control(self, action: moshi.ControlAction) -> None:
        """Obey a control message, as far as full duplex gives it a meaning.

        pause: what is said until start is not heard; restart: forget what is queued both ways, and hear
        again; start: hear again; endTurn: nothing, since nobody holds the turn.
        """
        if action is moshi.ControlAction.RESTART:
            self._put(None, self._clock())
        if action is not moshi.ControlAction.END_TURN:
            self._transcoder.is_muted = action is moshi.ControlAction.PAUSE

    def _handle_event(self, event: moshi.Event) -> None:
        session = self._session
        if session is None:
            return
        events.check_event(event, sender=events.Sender.CLIENT)
        if event.type == "set":
            session.set_parameters(parse_set(event.fields, session.parameters))
        elif event.type == "flush":
            self._put(None, self._clock())
        elif event.type == "bye":
            self.end()

    # What goes out.

    def _advance(self, socket: Socket, session: Session) -> None:
        # Asked before writing: what was made before the end is written, whatever comes in between.
        is_done, error = self._transcoder.is_done, self._transcoder.error
        is_closed = session.state is SessionState.CLOSED
        if not self._is_ready:
            self._follow_admission(session)
        if self._is_ready:
            self._write(socket, session)
        if not self._transcoder.is_full:
            self._transcoder.is_room_wanted = False
            self._room.set()
        if error is not None or is_closed:
            self.end(error or session.error)
        elif is_done:
            self.end()

    def _follow_admission(self, session: Session) -> None:
        """Tell the place in the queue when it changes; once there is a row, begin."""
        if session.state is SessionState.ACTIVE:
            self._is_ready = True
            self._patience.begin(self._clock())
            self._send(moshi.Handshake())
            is_recorded = self._transcoder.recording is not None
            info = self._model.engine.info
            self._say(notices.ready(session, self._model.name, info, is_recorded=is_recorded))
        elif (ahead := session.position) is not None and ahead != self._told_ahead:
            self._told_ahead = ahead
            self._say(notices.queued(session, ahead))

    def _write(self, socket: Socket, session: Session) -> None:
        batch = self._transcoder.collect()
        if batch is not None:
            start_s = self._clock()
            socket.write(batch.frames)
            now_s = self._clock()
            for reply in batch.replies:
                session.sent(reply, now_s, socket.stalled_s(reply.replied_s))
            self._trace("send", start_s, frames=len(batch.replies))
        self._transcoder.is_congested = socket.is_congested()
        if self._transcoder.is_waiting():
            self._codec_lane.wake()
        elif self._transcoder.is_congested:
            self._look_again_in(RECHECK_S)

    def _send(self, message: moshi.Message) -> None:
        if self._socket is not None:
            self._socket.write(frame(moshi.encode(message)))

    def _say(self, event: moshi.Event) -> None:
        """Send an event to clients that asked for them."""
        if self._request.extended:
            self._send(event)

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self._say(events.error_of(error))

    def _watch(self, socket: Socket, session: Session, now_s: float) -> None:
        """Now and then: timeouts, and a ping for a silent peer; once a second statistics."""
        silent_s = socket.silent_s()
        self._patience.check(now_s, silent_s)
        if self._transcoder.is_congested:
            return
        if self._patience.wants_ping(silent_s):
            socket.ping()
        if self._request.extended and self._is_ready and now_s >= self._stats_due_s:
            self._stats_due_s += STATS_PERIOD_S
            self._say(notices.stats(session))
        self._codec_lane.wake()  # a session that ends without a last reply has nobody else to notice

    def _trace(self, name: str, start_s: float, **details: int) -> None:
        if self._services.tracer is not None:
            self._services.tracer.span(name, start_s, self._clock(), track="loop", **details)
