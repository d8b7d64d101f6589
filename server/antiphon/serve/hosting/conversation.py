"""What every conversation over a WebSocket is, whatever its protocol: a socket, a session, a clock, one end.

A conversation's reader (:meth:`SocketConversation.run`) brings in what the peer sends. Its lane on the event
loop, woken by that and by the engine, moves what can be moved and notices what changed: admission, an error.
Its clock looks now and then whether anybody is there. Whoever sees the end first says so.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from antiphon.errors import AntiphonError, ProtocolError, SessionFailedError, SessionTimeoutError
from antiphon.ipc.session import Session
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol.events import close_code
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.transport.patience import Patience
from antiphon.serve.transport.socket import Socket

TICK_S: Final = 1.0
"""The clock of all timeouts, unless they are shorter."""

RECHECK_S: Final = 0.02
"""How often a congested socket is looked at: a quarter of a frame."""


class SocketConversation(ABC):
    """A conversation between a socket and a session of the engine; subclasses speak a protocol."""

    def __init__(
        self, services: Services, model: ServedModel, *, caller: str = "", awaits: str = "audio"
    ) -> None:
        """Prepare. A subclass's ``admit`` gets it a session, then :meth:`run` holds the conversation.

        ``caller`` is what the log calls who has it, if anything; ``awaits`` the word for what is to come in.
        """
        self._services = services
        self._model = model
        self._limits = services.config.limits
        self._clock = services.clock
        facts = {"model": model.name, **({"key": caller} if caller else {})}
        self._log = services.log.bind(**facts)
        self._provoked = services.provoked.bind(**facts)
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._session: Session | None = None
        self._socket: Socket | None = None
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._patience = Patience(self._limits, awaits)
        self._opened_s = self._clock()
        self._is_ready = self._is_over = False

    def _submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Callable[[], None],
        prompt: Prompt | None = None,
        **facts: Any,
    ) -> Session:
        """Ask the engine for a session: a row at once, or a place in the queue. ``facts`` are for the log.

        Raises:
            ServerFullError, DrainingError: neither.
        """
        session = self._session = self._model.engine.submit(
            parameters, wait_s=min(wait_s, self._limits.max_wait_s), notify=notify, prompt=prompt
        )
        self._log = self._log.bind(session=session.id)
        self._provoked = self._provoked.bind(session=session.id)
        self._log.info("session opened", state=session.state, **facts)
        return session

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.close()
        if not self._is_over:
            self._is_over = True
            self._release()
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
        seconds = round(self._clock() - self._opened_s, 1)
        self._log.info("session closed", code=socket.close_code, seconds=seconds)
        self.abandon()

    def end(self, error: AntiphonError | None = None) -> None:
        """Close from our side: 1000 without an error, else the error's code and its words as the reason."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    async def closed(self) -> None:
        """Wait until the close that :meth:`end` began is over."""
        if self._ending is not None:
            await self._ending

    # What a protocol adds.

    @abstractmethod
    def announce_draining(self, deadline_s: float) -> None:
        """Tell a client that can understand it how long it may go on."""

    @abstractmethod
    async def _read(self, socket: Socket) -> None:
        """Take in what the peer sends, until it has left or :attr:`_ending` is set.

        Raises:
            ProtocolError: what ends the conversation.
        """

    @abstractmethod
    def _advance(self, socket: Socket, session: Session) -> None:
        """Move what can be moved and notice what changed."""

    @abstractmethod
    def _watch(self, socket: Socket, session: Session, now_s: float) -> None:
        """Look at the time.

        Raises:
            SessionTimeoutError: the peer was waited for long enough.
        """

    @abstractmethod
    def _tell_error(self, socket: Socket, error: AntiphonError) -> None:
        """Say why it ends, in a message before the close, where the protocol has one."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of what the subclass holds; called once."""

    # Turns, time and the end.

    def _turn(self) -> bool:
        """Go on; always done in one turn."""
        socket, session = self._socket, self._session
        if socket is not None and session is not None and self._ending is None:
            self._advance(socket, session)
        return False

    def _tick(self) -> None:
        """Look now and then."""
        period_s = min(TICK_S, self._patience.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)
        socket, session = self._socket, self._session
        if socket is None or session is None or self._ending is not None:
            return
        try:
            self._watch(socket, session, self._clock())
        except SessionTimeoutError as error:
            self.end(error)

    def _look_again_in(self, seconds: float | None) -> None:
        """Take a turn later, or none: nobody tells when a socket drains or a caller has been quiet."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if seconds is not None:
            self._look = asyncio.get_running_loop().call_later(seconds, self._lane.wake)

    async def _wait_for_room(self, socket: Socket) -> None:
        """Take nothing more until :attr:`_room` is set, or it is over, or the peer has left."""
        if self._ending is None:  # else it is never set
            self._room.clear()
            await socket.wait_for(self._room)

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
        kind = type(error).__name__
        self._provoked.warning("session ends", of=f"end {kind}", error=kind, reason=str(error))
        self._tell_error(socket, error)
        await socket.close(close_code(error), str(error))
