"""A conversation over a WebSocket: it goes on until one side ends it. Subclasses speak a protocol."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from antiphon.errors import AntiphonError, SessionTimeoutError
from antiphon.ipc.engine_client import CallSession
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.conversation import Conversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.transport.liveness import LivenessRules
from antiphon.serve.transport.socket import Socket

TICK_S: Final = 1.0
"""The clock of all timeouts, unless they are shorter."""

RECHECK_S: Final = 0.02
"""How often a congested socket is looked at: a quarter of a frame."""

MESSAGES_A_TURN: Final = 8
"""Messages one caller may have read before the others have their turn: a millisecond at most."""

REPLIES_A_TURN: Final = 4
"""Replies encoded for one caller before the others have their turn: half a millisecond of Opus."""


class SocketConversation(Conversation):
    """A conversation over a WebSocket."""

    def __init__(
        self, services: Services, model: ServedModel, *, caller: Caller = ANYBODY, awaits: str = "audio"
    ) -> None:
        """Prepare. ``awaits`` is the word for what is to come in."""
        super().__init__(services, model, caller=caller)
        self._socket: Socket | None = None
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._patience = LivenessRules(self._limits, awaits)
        self._is_ready = False
        self._read_in_a_row = 0

    async def converse(
        self,
        request: web.Request,
        *,
        max_message_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        """The answer to a request for a WebSocket, once all is over; the rest as :meth:`Socket.open`.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is no session.
            ConnectionResetError: the peer has left meanwhile.
        """
        try:
            await self.admit()
            socket = await Socket.open(
                request, self._limits, self._clock, max_message_bytes=max_message_bytes, headers=headers
            )
            with self._model.metrics.sockets.track_inprogress():
                await self.run(socket)
            return socket.response
        finally:
            self.abandon()

    async def run(self, socket: Socket) -> None:
        """Hold the conversation until one side ends it."""
        self._socket = socket
        self._services.calls.add(self)
        self._tick()
        self._waker.wake()
        try:
            self._turn()  # a greeting comes before any answer, however early the client asks
            await self._read(socket)
        except AntiphonError as error:
            self._turn()  # what was made before is heard before it
            self.end(error)
        finally:
            try:
                await self._part(socket)
                await self.closed()
            finally:
                self._leave(socket)

    async def _part(self, socket: Socket) -> None:
        """The peer has left, or all is over: wait until nothing can come back."""

    def _leave(self, socket: Socket) -> None:
        """Be forgotten, whatever went wrong at the end."""
        self._services.calls.discard(self)
        self._model.metrics.closed(socket.close_code)
        seconds = round(self._clock() - self._opened_s, 1)
        self._log.info("session closed", code=socket.close_code, seconds=seconds)
        self.abandon()

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        super().abandon()

    def end(self, error: AntiphonError | None = None) -> None:
        """Close from our side: 1000 without an error, else the error's code and its words as the reason."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    # What a protocol adds.

    @abstractmethod
    async def admit(self) -> None:
        """Ask for a session, with :meth:`_submit`.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """

    @abstractmethod
    async def _read(self, socket: Socket) -> None:
        """Take in what the peer sends, until it has left or :attr:`_ending` is set.

        Raises:
            AntiphonError: what ends the conversation.
        """

    @abstractmethod
    def _advance(self, socket: Socket, session: CallSession) -> bool:
        """Move what can be moved and notice what changed; true when there is more to do at once."""

    @abstractmethod
    def _write_taken(self, socket: Socket) -> None:
        """Write what was taken from the engine and waits for its turn: what was said is heard before the end.

        It is never more than the engine lets wait for a socket, a few milliseconds of Opus.
        """

    @abstractmethod
    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        """Look at the time.

        Raises:
            SessionTimeoutError: the peer was waited for long enough.
        """

    @abstractmethod
    def _tell_error(self, socket: Socket, error: AntiphonError) -> None:
        """Say why it ends, in a message before the close, where the protocol has one."""

    def _close_code(self, error: AntiphonError) -> int:
        """The code of the close after an error."""
        return wire_form(error).close

    # Turns, time and the end.

    def _turn(self) -> bool:
        socket, session = self._socket, self._session
        if socket is None or session is None or self._ending is not None:
            return False
        return self._advance(socket, session)

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
        self._waker.wake()  # a session that ends without a last reply is noticed here alone

    def _look_again_in(self, seconds: float | None) -> None:
        """Take a turn later, or none: there is no event when a socket drains or a caller has been quiet."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if seconds is not None:
            self._look = asyncio.get_running_loop().call_later(seconds, self._waker.wake)

    def _is_others_turn(self) -> bool:
        """Count a message that was read, and whether the others are to have their turn now."""
        self._read_in_a_row = (self._read_in_a_row + 1) % MESSAGES_A_TURN
        return not self._read_in_a_row

    async def _wait_for_room(self, socket: Socket) -> None:
        """Take nothing more until :attr:`_room` is set, or it is over, or the peer has left."""
        if self._ending is None:  # else it is never set
            self._room.clear()
            await socket.wait_for(self._room)

    async def _close(self, error: AntiphonError | None) -> None:
        self._room.set()  # the reader goes on, and sees that it is over
        socket, session = self._socket, self._session
        if session is not None:
            session.close(error)
        if socket is None:
            return
        with contextlib.suppress(AntiphonError):  # it ends anyway, and has its reason
            self._write_taken(socket)
        if error is None:
            await socket.close(CloseCode.NORMAL, "done")
            return
        kind = type(error).__name__
        self._provoked.warning("session ends", of=f"end {kind}", error=kind, reason=str(error))
        self._tell_error(socket, error)
        await socket.close(self._close_code(error), str(error))
