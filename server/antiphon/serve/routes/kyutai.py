"""A conversation in Kyutai's protocols, in which nothing is dropped.

The socket is read only while there is room for what it brings, and what the peer does not take is kept, until
it has taken nothing for as long as a silent peer may live.
"""

from __future__ import annotations

from abc import abstractmethod

from antiphon.errors import AntiphonError, ServerFullError, SessionTimeoutError
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import SessionState
from antiphon.protocol import kyutai
from antiphon.serve.hosting.dialogue import SocketConversation
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket


def error_message(error: AntiphonError) -> kyutai.Error:
    """The words for a client: Kyutai's own where every row is taken, since its clients may look for them."""
    return kyutai.Error(kyutai.NO_FREE_CHANNELS if isinstance(error, ServerFullError) else str(error))


class KyutaiConversation(SocketConversation):
    """What its recognition and its synthesis share."""

    _congested_since_s: float | None = None

    @property
    @abstractmethod
    def _is_full(self) -> bool:
        """Whether the caller should be read no further for now."""

    @property
    @abstractmethod
    def _waits_for_us(self) -> bool:
        """Whether the caller has reason to be quiet: an answer of ours is due."""

    @abstractmethod
    def _move(self, socket: Socket, session: CallSession) -> bool:
        """Move what can be moved, in and out; true when there is more to do at once.

        Raises:
            AntiphonError: what ends the conversation.
        """

    def _say(self, socket: Socket, *messages: kyutai.ServerMessage) -> None:
        socket.write(b"".join(frame(kyutai.encode(message)) for message in messages))

    def _tell_error(self, socket: Socket, error: AntiphonError) -> None:
        self._say(socket, error_message(error))

    async def _wait_for_room(self, socket: Socket) -> None:
        await super()._wait_for_room(socket)
        self._patience.heard(self._clock())  # we did not listen

    def _advance(self, socket: Socket, session: CallSession) -> bool:
        if not self._is_ready and session.state in (SessionState.PRIMING, SessionState.ACTIVE):
            self._is_ready = True
            self._patience.begin(self._clock())
            self._say(socket, kyutai.Ready())
        is_closed, has_more = session.state is SessionState.CLOSED, False
        try:
            has_more = self._move(socket, session)
        except AntiphonError as error:
            self.end(error)
        if is_closed and not has_more:
            self.end(session.error)
        if not self._is_full:
            self._room.set()
        return has_more

    def _congested(self, is_congested: bool) -> None:
        """Remember since when the peer takes nothing."""
        self._congested_since_s = None if not is_congested else self._congested_since_s or self._clock()

    def _watch(self, socket: Socket, _session: CallSession, now_s: float) -> None:
        silent_s = socket.silent_s()
        if self._waits_for_us:
            self._patience.heard(now_s)
        self._patience.check(now_s, silent_s)
        limit_s = self._limits.liveness_timeout_s
        if self._congested_since_s is None:
            if self._patience.wants_ping(silent_s):
                socket.ping()
        elif now_s - self._congested_since_s > limit_s:  # whether or not we still read
            raise SessionTimeoutError(f"what was written for you was not taken for {limit_s:g} s")
