"""A conversation over a WebSocket in which nothing is dropped.

The socket is read only while there is room for what it brings, and what the peer does not take is kept, until
it has taken nothing for as long as a silent peer may live.
"""

from __future__ import annotations

from abc import abstractmethod

from antiphon.errors import AntiphonError, SessionTimeoutError
from antiphon.ipc.engine_client import CallSession
from antiphon.ipc.values import SessionState
from antiphon.serve.hosting.dialogue import SocketConversation
from antiphon.serve.transport.socket import Socket


class LosslessConversation(SocketConversation):
    """What recognition and synthesis share, whatever their protocol."""

    _congested_since_s: float | None = None

    @property
    @abstractmethod
    def _is_full(self) -> bool:
        """Whether the caller should be read no further for now."""

    @property
    @abstractmethod
    def _waits_for_us(self) -> bool:
        """Whether the caller's input waits to be answered, so that it has reason to be quiet."""

    @abstractmethod
    def _move(self, socket: Socket, session: CallSession) -> bool:
        """Move what can be moved, in and out; true when there is more to do at once.

        Raises:
            AntiphonError: what ends the conversation.
        """

    @abstractmethod
    def _greet(self, socket: Socket) -> None:
        """There is a row: tell the client, where its protocol has a word for it."""

    def _advance(self, socket: Socket, session: CallSession) -> bool:
        if not self._is_ready and session.state in (SessionState.PRIMING, SessionState.ACTIVE):
            self._is_ready = True
            self._patience.begin(self._clock())
            self._greet(socket)
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
        if self._waits_for_us and self._congested_since_s is None:
            self._patience.excuse(now_s)
        self._patience.check(now_s, silent_s)
        limit_s = self._limits.liveness_timeout_s
        if self._congested_since_s is None:
            if self._patience.wants_ping(silent_s):
                socket.ping()
        elif now_s - self._congested_since_s > limit_s:  # whether or not we still read
            raise SessionTimeoutError(f"the client has read nothing for {limit_s:g} s")
