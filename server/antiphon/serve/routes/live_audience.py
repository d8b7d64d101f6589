"""Receivers of a live session's events: its client, and the connections that watch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.protocol import live_events as events
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
