"""One WebSocket of ``/api/asr-streaming`` on the event loop: its socket, its clock, and how it ends.

Nothing is dropped here. The socket is read only while there is room for what it brings, and what the peer
does not take is kept, until it has taken nothing for as long as a silent peer may live.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.engine.session import Session, SessionState
from antiphon.errors import (
    AntiphonError,
    ProtocolError,
    ServerFullError,
    SessionFailedError,
    SessionTimeoutError,
)
from antiphon.protocol import kyutai
from antiphon.protocol.events import close_code
from antiphon.serve.frames import frame
from antiphon.serve.hearing import Hearing, hearing_parameters
from antiphon.serve.oggin import OggInput
from antiphon.serve.patience import Patience
from antiphon.serve.served import ServedModel
from antiphon.serve.services import Services
from antiphon.serve.socket import Socket

MAX_PENDING_SAMPLES: Final = 24_000
"""A second that the engine has no room for yet; beyond, the socket is not read."""

TICK_S: Final = 1.0
"""The clock of all timeouts, unless they are shorter."""

RECHECK_S: Final = 0.02
"""How often a congested socket is looked at."""


def error_message(error: AntiphonError) -> kyutai.Error:
    """The words for a client: Kyutai's own where every row is taken, since its clients may look for them."""
    return kyutai.Error(kyutai.NO_FREE_CHANNELS if isinstance(error, ServerFullError) else str(error))


class Transcription:
    """A conversation between a socket and a session of the engine."""

    def __init__(
        self, services: Services, model: ServedModel, *, wait_s: float = 0.0, caller: str = ""
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        self._model = model
        self._wait_s = wait_s
        self._limits = services.config.limits
        self._services = services
        self._clock = services.clock
        self._log = services.log.bind(model=model.name, **({"key": caller} if caller else {}))
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._hearing = Hearing(model, services.clock)
        self._ogg: OggInput | None = None
        self._session: Session | None = None
        self._socket: Socket | None = None
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._patience = Patience(self._limits)
        self._congested_since_s: float | None = None
        self._opened_s = self._clock()
        self._is_ready = self._is_over = self._has_audio = False

    def admit(self) -> None:
        """Ask the engine for a session: a row at once, or a place in the queue.

        Raises:
            ServerFullError, DrainingError: neither.
        """
        self._session = self._hearing.session = self._model.engine.submit(
            hearing_parameters(self._model),
            wait_s=min(self._wait_s, self._limits.max_wait_s),
            notify=self._lane.wake,
        )
        self._log = self._log.bind(session=self._session.id)
        self._log.info("session opened", state=self._session.state, route="asr-streaming")

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.close()
        if not self._is_over:
            self._is_over = True
            if self._ogg is not None:
                self._ogg.close()
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
        while self._ending is None and (data := await socket.receive()) is not None:
            self._handle(kyutai.decode_client(data))
            self._patience.heard(socket.seen_s)
            self._lane.wake()
            if self._is_full():
                await self._wait_for_room(socket)

    def _handle(self, message: kyutai.ClientMessage) -> None:
        if isinstance(message, kyutai.Init):
            if self._has_audio:
                raise ProtocolError("Init came after audio; a session begins once")
            return  # everybody is told Ready without asking
        if isinstance(message, kyutai.Marker):
            self._put(message.id)
            return
        self._has_audio = True
        if isinstance(message, kyutai.Audio):
            self._put(np.clip(message.pcm, -1.0, 1.0))
            return
        if self._ogg is None:
            self._ogg = OggInput(self._services.pool, self._lane.wake)
        self._ogg.put(message.data)

    def _put(self, item: FloatArray | int) -> None:
        """Audio or a marker, behind the Opus that came before it."""
        if self._ogg is None:
            self._hearing.put(item)
        else:
            self._ogg.put(item)

    def _is_full(self) -> bool:
        is_full = self._hearing.pending_samples > MAX_PENDING_SAMPLES
        return is_full or (self._ogg is not None and self._ogg.is_full)

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
        if not self._is_ready and session.state is SessionState.ACTIVE:
            self._is_ready = True
            self._patience.begin(self._clock())
            self._send(socket, kyutai.Ready())
        is_closed = session.state is SessionState.CLOSED
        try:
            self._advance(socket, session)
        except AntiphonError as error:
            self.end(error)
        if is_closed:
            self.end(session.error)
        if not self._is_full():
            self._room.set()
        return False

    def _advance(self, socket: Socket, session: Session) -> None:
        if self._ogg is not None:
            if self._hearing.pending_samples <= MAX_PENDING_SAMPLES:
                for item in self._ogg.collect():
                    self._hearing.put(item)
            if self._ogg.error is not None:
                raise self._ogg.error
        is_congested = socket.is_congested()
        told = self._hearing.advance(may_tell=not is_congested)
        if told.messages:
            self._send(socket, *told.messages)
        now_s = self._clock()
        for reply in told.replies:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))
        self._congested_since_s = None if not is_congested else self._congested_since_s or now_s
        self._look_again_in(RECHECK_S if is_congested else self._hearing.quiet_in_s())

    def _look_again_in(self, seconds: float | None) -> None:
        """Take a turn later, since nobody tells when a socket drains or a caller has been quiet."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if seconds is not None:
            self._look = asyncio.get_running_loop().call_later(seconds, self._lane.wake)

    def _send(self, socket: Socket, *messages: kyutai.ServerMessage) -> None:
        socket.write(b"".join(frame(kyutai.encode(message)) for message in messages))

    # Time and the end.

    def _tick(self) -> None:
        """Now and then: timeouts, and a ping for a silent peer."""
        period_s = min(TICK_S, self._patience.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)
        socket = self._socket
        if socket is None or self._ending is not None:
            return
        now_s, silent_s = self._clock(), socket.silent_s()
        if not self._hearing.is_idle:
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
            raise SessionTimeoutError(f"what was written for you was not read for {limit_s:g} s")

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
        self._send(socket, error_message(error))
        await socket.close(close_code(error), str(error))
