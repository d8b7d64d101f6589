"""One /api/chat conversation on the event loop: its socket, its clock, and how it ends.

A call's reader (:meth:`Call.run`) hands audio to the call's transcoder. The transcoder, and through it the
engine, wakes the call's lane on the loop, whose turn (:meth:`Call._turn`) writes what there is to write and
notices what has changed: admission, place in the queue, an error.
"""

from __future__ import annotations

import asyncio

from antiphon.engine.session import Session, SessionState
from antiphon.errors import AntiphonError, ProtocolError, SessionFailedError, SessionTimeoutError
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import ChatRequest, parse_set
from antiphon.serve import notices
from antiphon.serve.frames import frame
from antiphon.serve.patience import Patience
from antiphon.serve.served import ServedModel
from antiphon.serve.services import Services
from antiphon.serve.socket import Socket
from antiphon.serve.transcoder import PCM_FORMATS, Transcoder

STATS_PERIOD_S = 1.0
"""How often extended clients get statistics; also the clock of all timeouts, unless they are shorter."""

RECHECK_S = 0.02
"""How often a congested socket is looked at: a quarter of a frame."""

EXTENSION_TAGS = (bytes((moshi.Tag.EVENT,)), bytes((moshi.Tag.STAMPED_AUDIO,)))


class Call:
    """A conversation between a socket and a session of the engine."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: ChatRequest,
        prompt: Prompt | None = None,
        *,
        caller: str = "",
    ) -> None:
        """Prepare a call. :meth:`admit` gets it a session, then :meth:`run` holds the conversation.

        ``caller`` is what the log calls who has it, if anything.
        """
        self._services = services
        self._model = model
        self._request = request
        self._prompt = prompt
        self._clock = services.clock
        self._log = services.log.bind(model=model.name, **({"key": caller} if caller else {}))
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._transcoder = Transcoder(services, model, request, announce=self._lane.wake)
        self._is_inline = request.format in PCM_FORMATS
        make_lane = services.pool.loop_lane if self._is_inline else services.pool.thread_lane
        self._codec_lane = make_lane(self._transcoder.turn, self._transcoder.fail)
        self._session: Session | None = None
        self._socket: Socket | None = None
        self._room: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._recheck: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._is_ready = False
        self._is_over = False
        self._told_ahead: int | None = None
        self._patience = Patience(services.config.limits)
        self._opened_s = self._clock()
        self._stats_due_s = self._opened_s + STATS_PERIOD_S

    def admit(self) -> None:
        """Ask the engine for a session: a row at once, or a place in the queue.

        Raises:
            ServerFullError, DrainingError: neither.
        """
        wait_s = min(self._request.wait_s, self._services.config.limits.max_wait_s)
        self._session = self._model.engine.submit(
            self._request.parameters, wait_s=wait_s, notify=self._codec_lane.wake, prompt=self._prompt
        )
        self._transcoder.session = self._session
        recorder = self._services.recorder
        if recorder is not None and self._request.may_record:
            self._transcoder.recording = recorder.open(self._session.id)
        self._log = self._log.bind(session=self._session.id)
        self._log.info(
            "session opened",
            state=self._session.state,
            format=self._request.format,
            ext=self._request.extended,
        )

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._recheck):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.close()
            self._session = None
        if not self._is_over:
            self._is_over = True
            self._transcoder.close()
            if self._transcoder.recording is not None:
                self._transcoder.recording.close()
            self._codec_lane.close()
            self._lane.close()

    async def run(self, socket: Socket) -> None:
        """Hold the conversation until one side ends it."""
        self._socket = socket
        self._services.calls.add(self)
        self._tick()
        self._lane.wake()
        try:
            await self._read(socket)
        except ProtocolError as error:
            self.end(error)
        finally:
            try:
                await self.closed()
            finally:
                self._leave(socket)

    def _leave(self, socket: Socket) -> None:
        """Be forgotten, whatever went wrong at the end."""
        self._services.calls.discard(self)
        self._model.metrics.closed(socket.close_code)
        self._log.info(
            "session closed", code=socket.close_code, seconds=round(self._clock() - self._opened_s, 1)
        )
        self.abandon()

    def announce_draining(self, deadline_s: float) -> None:
        """Tell a client that can understand it how long it may go on."""
        self._say(events.draining(deadline_s))

    def end(self, error: AntiphonError | None = None) -> None:
        """Close from our side: 1000 without an error, else the error's code and its words as the reason."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    async def closed(self) -> None:
        """Wait until the close that :meth:`end` began is over."""
        if self._ending is not None:
            await self._ending

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
        self._room = asyncio.get_running_loop().create_future()
        self._transcoder.is_room_wanted = True
        self._codec_lane.wake()
        async with socket.paused():
            await self._room

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

    def _turn(self) -> bool:
        """Write what is there and notice what changed; always done in one turn."""
        socket, session = self._socket, self._session
        if socket is None or session is None or self._ending is not None:
            return False
        is_done = self._transcoder.is_done  # asked before writing, so that nothing comes in between
        if not self._is_ready:
            self._follow_admission(session)
        if self._is_ready:
            self._write(socket, session)
        if self._room is not None and not self._transcoder.is_full:
            self._room.set_result(None)
            self._room = None
            self._transcoder.is_room_wanted = False
        if self._transcoder.error is not None or session.state is SessionState.CLOSED:
            self.end(self._transcoder.error or session.error)
        elif is_done:
            self.end()
        return False

    def _follow_admission(self, session: Session) -> None:
        """Tell the place in the queue when it changes; once there is a row, begin."""
        if session.state is SessionState.ACTIVE:
            self._is_ready = True
            self._patience.begin(self._clock())
            self._send(moshi.Handshake())
            is_recorded = self._transcoder.recording is not None
            info = self._model.engine.info
            self._say(notices.ready(session, self._model.name, info, is_recorded=is_recorded))
        elif session.state is SessionState.QUEUED and (ahead := session.ahead) != self._told_ahead:
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
        elif self._transcoder.is_congested and self._recheck is None:
            self._recheck = asyncio.get_running_loop().call_later(RECHECK_S, self._look_again)

    def _look_again(self) -> None:
        self._recheck = None
        self._lane.wake()

    def _send(self, message: moshi.Message) -> None:
        if self._socket is not None:
            self._socket.write(frame(moshi.encode(message)))

    def _say(self, event: moshi.Event) -> None:
        """Send an event to clients that asked for them."""
        if self._request.extended:
            self._send(event)

    # Time and the end.

    def _tick(self) -> None:
        """Now and then: timeouts, a ping for a silent peer; once a second statistics."""
        period_s = min(STATS_PERIOD_S, self._patience.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)
        socket, session = self._socket, self._session
        if socket is None or session is None or self._ending is not None:
            return
        now_s, silent_s = self._clock(), socket.silent_s()
        try:
            self._patience.check(now_s, silent_s)
        except SessionTimeoutError as error:
            self.end(error)
            return
        if self._transcoder.is_congested:
            return
        if self._patience.wants_ping(silent_s):
            socket.ping()
        if self._request.extended and self._is_ready and now_s >= self._stats_due_s:
            self._stats_due_s += STATS_PERIOD_S
            self._say(notices.stats(session))
        self._codec_lane.wake()  # a session that ends without a last reply has nobody else to notice

    def _fail(self, error: Exception) -> None:
        """A turn of ours broke."""
        self._log.error("turn failed", exc_info=error)
        self.end(SessionFailedError(f"the server could not go on: {type(error).__name__}"))

    async def _close(self, error: AntiphonError | None) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)  # the reader goes on, and sees that it is over
        socket, session = self._socket, self._session
        if session is not None:
            session.close(error)
        if socket is None:
            return
        if error is None:
            await socket.close(1000, "done")
            return
        self._log.warning("session ends", error=type(error).__name__, reason=str(error))
        self._say(events.error_of(error))
        await socket.close(events.close_code(error), str(error))

    def _trace(self, name: str, start_s: float, **details: int) -> None:
        if self._services.tracer is not None:
            self._services.tracer.span(name, start_s, self._clock(), track="loop", **details)
