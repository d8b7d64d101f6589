"""The queue of accepted connections: which one is served next, when, and which one is dropped."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from antiphon.supervisor.connection_bounds import ConnectionBounds, ConnectionLimits

C = TypeVar("C", bound=Hashable)

MAX_WAITING: Final = 512
"""Maximum number of waiting connections, each an open file.

A connection that has sent data waits at most five seconds if 200 connections a second are served and half of
them are the oldest.
"""

WAITING_SHARE: Final = 0.25
"""Maximum number of waiting connections, as a share of all connections, if that is less."""

SPOKEN_SHARE: Final = 0.25
"""Share of all connections that is reserved for connections that have sent data."""


class WaitingConnections(Generic[C]):
    """Connections in the order in which they are served.

    Connections that have sent data come first, and among these a connection from the address with the fewest
    connections. Among equals the newest and the oldest connection alternate, so a new connection is served as
    the first or the second, and every connection is served.
    """

    def __init__(self) -> None:
        """Begin without connections."""
        self._silent: dict[str, dict[C, None]] = {}  # by address, the oldest first
        self._spoken: dict[str, dict[C, None]] = {}
        self._addresses: dict[C, str] = {}
        self._is_oldest_next = False
        self.spoken = 0

    def __len__(self) -> int:
        """The number of waiting connections; ``spoken`` of them have sent data."""
        return len(self._addresses)

    def __iter__(self) -> Iterator[C]:
        """All waiting connections, in any order."""
        return iter(tuple(self._addresses))

    def __contains__(self, connection: C) -> bool:
        """Whether a connection is in the queue."""
        return connection in self._addresses

    def add(self, connection: C, address: str) -> None:
        """Add a connection that has sent no data yet."""
        self._addresses[connection] = address
        self._silent.setdefault(address, {})[connection] = None

    def has_spoken(self, connection: C) -> None:
        """Mark a waiting connection that has sent data."""
        address = self.remove(connection)
        self._addresses[connection] = address
        self._spoken.setdefault(address, {})[connection] = None
        self.spoken += 1

    def remove(self, connection: C) -> str:
        """Remove a connection; returns its address."""
        address = self._addresses.pop(connection)
        groups = self._silent if connection in self._silent.get(address, ()) else self._spoken
        self.spoken -= groups is self._spoken
        del groups[address][connection]
        if not groups[address]:
            del groups[address]
        return address

    def next(self, *, may_be_silent: bool) -> C | None:
        """The next connection to serve, or None."""
        groups = self._spoken or (self._silent if may_be_silent else {})
        if not groups:
            return None
        self._is_oldest_next = not self._is_oldest_next
        if self._is_oldest_next:
            fewest = min(groups.values(), key=len)
            return next(iter(fewest))
        fewest = min(reversed(groups.values()), key=len)
        return next(reversed(fewest))

    def least(self) -> C:
        """The connection to drop: the oldest connection without data, from the address that has the most
        connections.
        """
        most = max((self._silent or self._spoken).values(), key=len)
        return next(iter(most))


class ConnectionQueue(Generic[C]):
    """Tracks connections from their acceptance to their end; times are seconds of one clock.

    They are accepted far faster than they are served, so no connection waits behind others in the kernel's
    queue. A flood of half-open connections therefore does not delay a connection with a request. Half-open
    connections wait in this bounded queue, where a share of the places is reserved for connections that have
    sent data.
    """

    def __init__(self, limits: ConnectionLimits, now_s: float) -> None:
        """Begin without connections."""
        self.bounds, self.waiting = ConnectionBounds(limits, now_s), WaitingConnections[C]()
        self._most_waiting = max(1, min(MAX_WAITING, round(limits.connections * WAITING_SHARE)))
        self._most_silent = limits.connections - round(limits.connections * SPOKEN_SHARE)

    @property
    def lacks_room(self) -> int:
        """The number of connections with data that wait for the end of another connection."""
        return self.waiting.spoken if self.bounds.is_full else 0

    def add(self, connection: C, address: str) -> tuple[C, str] | None:
        """Add an accepted connection; return a connection to drop, with its address, if too many wait."""
        gone = None
        if len(self.waiting) >= self._most_waiting:
            least = self.waiting.least()
            gone = least, self.leave(least)
        self.waiting.add(connection, address)
        return gone

    def leave(self, connection: C) -> str:
        """Remove a waiting connection that has closed; returns its address."""
        address = self.waiting.remove(connection)
        self.bounds.forget([address])
        return address

    def take(self, now_s: float) -> tuple[C, str] | None:
        """The connection to serve now, and its address; None if there is none."""
        if self.bounds.is_full or self.bounds.serve_wait_s(now_s) > 0:
            return None
        connection = self.waiting.next(may_be_silent=self.bounds.served < self._most_silent)
        if connection is None:
            return None
        self.bounds.serve()
        return connection, self.waiting.remove(connection)

    def give_back(self, connection: C, address: str) -> None:
        """Put back a connection that could not be served."""
        self.bounds.served -= 1
        self.waiting.add(connection, address)
