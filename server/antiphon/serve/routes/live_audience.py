"""Receivers of a live session's events: its client, and the connections that watch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from antiphon.ipc.port import CallSession
from antiphon.protocol import live_events as events
from antiphon.serve.hosting.resumable import Numbering
from antiphon.serve.transport.frames import TEXT, frame
from antiphon.serve.transport.socket import Socket


class Watcher(Protocol):
    """A connection that watches a session."""

    def see(self, event: events.ServerEvent) -> None:
        """Pass an event on, or leave it out when the peer reads too slowly."""
        ...

    def end(self) -> None:
        """The session is over."""
        ...


class Audience:
    """The client and the watchers of one session."""

    def __init__(self, socket: Callable[[], Socket | None]) -> None:
        """Begin without watchers; ``socket`` is the client's, None while there is none."""
        self.watchers: set[Watcher] = set()
        self._socket = socket
        self._events = 0

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read what was written."""
        socket = self._socket()
        return socket is not None and socket.is_congested()

    def say(self, event: events.ServerEvent) -> None:
        """Send an event to the client and to the watchers."""
        self.send(event)
        self.show(event)

    def send(self, event: events.ServerEvent) -> None:
        """Send an event to the client alone."""
        socket = self._socket()
        if socket is not None:
            socket.write(self.framed(event))

    def show(self, event: events.ServerEvent) -> None:
        """Send an event to the watchers alone."""
        for watcher in self.watchers:
            watcher.see(event)

    def framed(self, event: events.ServerEvent) -> bytes:
        """The client's next event, as it is written."""
        self._events += 1
        return frame(events.encode(event, f"event_{self._events}"), TEXT)

    def end(self) -> None:
        """The session is over: the watchers' connections end."""
        for watcher in self.watchers:
            watcher.end()


UNNUMBERED: Final = (
    events.SessionStarted,
    events.SessionResumed,
    events.SessionClosed,
    events.OutputAudio,
    events.UsageUpdated,
    events.Error,
)
"""Events of one connection alone: audio has frames of its own, a usage follows another."""


class NumberedAudience(Audience):
    """An audience whose client gets each of its events exactly once, over as many connections as it takes."""

    def __init__(
        self,
        socket: Callable[[], Socket | None],
        numbering: Numbering,
        session: Callable[[], CallSession | None],
    ) -> None:
        """Begin; ``session`` is the call's, whose engine notes what was sent."""
        super().__init__(socket)
        self._numbering, self._session = numbering, session

    def send(self, event: events.ServerEvent) -> None:
        """Send an event to the client alone, once the engine has been told of it."""
        socket, session = self._socket(), self._session()
        if socket is not None:
            data = self.framed(event)
            if session is not None:
                self._numbering.note(session)
            socket.write(data)

    def framed(self, event: events.ServerEvent) -> bytes:
        """The client's next event, as it is written; the caller has it noted before."""
        if isinstance(event, UNNUMBERED):
            return super().framed(event)
        seq = self._numbering.seq
        data = frame(events.encode(event, f"event_s{seq}", seq), TEXT)
        self._numbering.number(data)
        return data
