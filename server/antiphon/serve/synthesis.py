"""One WebSocket of ``/api/tts_streaming`` on the event loop: its socket, its clock, and how it ends.

Nothing is dropped here. Text is read only while there is room for it, and speech is made only as fast as the
peer takes it, until it has taken nothing for as long as a silent peer may live.
"""

from __future__ import annotations

import asyncio

from antiphon.engine.session import Session, SessionState
from antiphon.errors import (
    AntiphonError,
    ProtocolError,
    SessionFailedError,
    SessionTimeoutError,
    UnsupportedError,
)
from antiphon.models.prompt import Prompt
from antiphon.models.speaker import SpeakerShape
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.events import close_code
from antiphon.protocol.kyutai_tts import SpeechRequest
from antiphon.serve.frames import frame
from antiphon.serve.patience import Patience
from antiphon.serve.served import ServedModel
from antiphon.serve.services import Services
from antiphon.serve.socket import Socket
from antiphon.serve.speech_output import SpeechOutput
from antiphon.serve.transcription import RECHECK_S, TICK_S, error_message
from antiphon.serve.voicing import Voicing


class Synthesis:
    """A conversation between a socket and a session of the engine."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: SpeechRequest,
        voice: Prompt | None,
        *,
        wait_s: float = 0.0,
        caller: str = "",
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        self._model, self._request, self._voice = model, request, voice
        self._wait_s = wait_s
        self._services = services
        self._limits = services.config.limits
        self._clock = services.clock
        self._log = services.log.bind(model=model.name, **({"key": caller} if caller else {}))
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._voicing = Voicing(model, services.clock)
        self._output = SpeechOutput(request.format, services.pool, self._lane.wake)
        self._session: Session | None = None
        self._socket: Socket | None = None
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._patience = Patience(self._limits, awaits="text")
        self._congested_since_s: float | None = None
        self._opened_s = self._clock()
        self._is_ready = self._is_over = False

    def admit(self) -> None:
        """Ask the engine for a session: a row at once, or a place in the queue.

        Raises:
            ServerFullError, DrainingError: neither.
        """
        self._session = self._voicing.session = self._model.engine.submit(
            self._model.parameters(),
            wait_s=min(self._wait_s, self._limits.max_wait_s),
            notify=self._lane.wake,
            prompt=self._voice,
        )
        self._log = self._log.bind(session=self._session.id)
        self._log.info("session opened", state=self._session.state, route="tts_streaming")

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.close()
        if not self._is_over:
            self._is_over = True
            self._output.close()
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
        self._services.calls.discard(self)
        self._model.metrics.closed(socket.close_code)
        seconds = round(self._clock() - self._opened_s, 1)
        self._log.info("session closed", code=socket.close_code, seconds=seconds)
        self.abandon()

    def announce_draining(self, deadline_s: float) -> None:
        """Kyutai's clients have no word for it: they are served until they end, or the server does."""

    def end(self, error: AntiphonError | None = None) -> None:
        """Close from our side, with the error's words in a message and in the close frame."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    async def closed(self) -> None:
        """Wait until the close that :meth:`end` began is over."""
        if self._ending is not None:
            await self._ending

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (data := await socket.receive_any()) is not None:
            self._handle(kyutai_tts.decode_client(data))
            self._patience.heard(socket.seen_s)
            self._lane.wake()
            if self._voicing.is_full:
                await self._wait_for_room(socket)

    def _handle(self, message: kyutai_tts.ClientMessage) -> None:
        if isinstance(message, kyutai_tts.Text):
            self._voicing.put(message.text)
        elif isinstance(message, kyutai_tts.Eos):
            self._voicing.finish()
        else:
            self._change_voice(message)

    def _change_voice(self, message: kyutai_tts.Voice) -> None:
        if self._voicing.has_text or self._voicing.is_ended:
            raise ProtocolError("Voice came after text; who speaks is said first")
        shape = SpeakerShape.of(self._model.checkpoint.spec)
        if shape is None:
            raise ProtocolError(f"{self._model.name} has a voice of its own and takes no other")
        assert self._session is not None
        try:
            self._session.prime(shape.prompt(message.array()))
        except UnsupportedError as error:
            raise ProtocolError(str(error)) from error

    async def _wait_for_room(self, socket: Socket) -> None:
        self._room.clear()
        async with socket.paused():
            await self._room.wait()
        self._patience.heard(self._clock())  # we did not listen

    # What goes out.

    def _turn(self) -> bool:
        """Move what can be moved and notice what changed; always done in one turn."""
        socket, session = self._socket, self._session
        if socket is None or session is None or self._ending is not None:
            return False
        if not self._is_ready and session.state in (SessionState.PRIMING, SessionState.ACTIVE):
            self._is_ready = True
            self._patience.begin(self._clock())
            if self._request.format.is_packed:
                socket.write(frame(kyutai.encode(kyutai.Ready())))
        is_closed = session.state is SessionState.CLOSED
        try:
            self._advance(socket)
        except AntiphonError as error:
            self.end(error)
        if is_closed:
            self.end(session.error)
        if not self._voicing.is_full:
            self._room.set()
        return False

    def _advance(self, socket: Socket) -> None:
        is_congested = socket.is_congested()
        self._output.put(self._voicing.advance(may_take=self._output.has_room and not is_congested))
        if self._voicing.is_done:
            self._output.finish()
        if self._output.error is not None:
            raise self._output.error
        if frames := self._output.collect():
            socket.write(frames)
        is_said = self._voicing.is_done and self._output.is_drained
        is_waiting = socket.is_congested() or (is_said and socket.has_unsent)
        self._congested_since_s = None if not is_waiting else self._congested_since_s or self._clock()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if is_waiting or not self._output.has_room:  # nobody tells when a socket drains
            self._look = asyncio.get_running_loop().call_later(RECHECK_S, self._lane.wake)
        elif is_said:
            self.end()

    # Time and the end.

    def _tick(self) -> None:
        """Now and then: timeouts, and a ping for a silent peer."""
        period_s = min(TICK_S, self._patience.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)
        socket = self._socket
        if socket is None or self._ending is not None:
            return
        now_s, silent_s = self._clock(), socket.silent_s()
        if self._voicing.has_text and not self._voicing.is_idle:
            self._patience.heard(now_s)  # it waits for us
        try:
            self._patience.check(now_s, silent_s)
            self._check_taken(now_s)
        except SessionTimeoutError as error:
            self.end(error)
            return
        if self._congested_since_s is None and self._patience.wants_ping(silent_s):
            socket.ping()
        self._lane.wake()

    def _check_taken(self, now_s: float) -> None:
        """A peer that takes nothing is let go, whether or not we still read.

        Raises:
            SessionTimeoutError: it has not for too long.
        """
        limit_s = self._limits.liveness_timeout_s
        if self._congested_since_s is not None and now_s - self._congested_since_s > limit_s:
            raise SessionTimeoutError(f"what was said for you was not taken for {limit_s:g} s")

    def _fail(self, error: Exception) -> None:
        """A turn of ours broke."""
        self._log.error("turn failed", exc_info=error)
        self.end(SessionFailedError(f"the server could not go on: {type(error).__name__}"))

    async def _close(self, error: AntiphonError | None) -> None:
        self._room.set()  # the reader goes on, and sees that it is over
        socket, session = self._socket, self._session
        if session is not None:
            session.close(error)
        if socket is None:
            return
        if error is None:
            await socket.close(1000, "done")
            return
        self._log.warning("session ends", error=type(error).__name__, reason=str(error))
        if self._request.format.is_packed:
            socket.write(frame(kyutai.encode(error_message(error))))
        await socket.close(close_code(error), str(error))
