"""The listening sockets: connections are counted, and each goes to the front end with the fewest at work."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import Counter

from antiphon.log import Log, SparseLog
from antiphon.metrics import MetricFamilies
from antiphon.supervisor.address import cannot_listen, listen
from antiphon.supervisor.children import Child
from antiphon.supervisor.connection_bounds import ConnectionBounds, ConnectionLimits, open_file_limit
from antiphon.supervisor.messages import Connection, Load

LISTEN_BACKLOG = 1024
"""Connections that wait in the kernel, most of a burst that comes faster than it is let in."""

PAUSE_S = 0.05
"""Until the next attempt when no connection can be accepted: no front end answers, or the limit is reached.
"""

SHORTAGE_PAUSE_S = 1.0
"""After an accept that failed, for want of open files in most cases."""


class FrontEndShare:
    """The connections that one front end has, as far as is known.

    A socket stays open here until the front end has said that it has it: those it never got go to others.
    """

    def __init__(self, child: Child) -> None:
        """It has none."""
        self.child = child
        self.busy = 0
        self.received = 0
        self.under_way: deque[tuple[int, socket.socket]] = deque()
        self.addresses: dict[int, str] = {}

    @property
    def load(self) -> int:
        """Connections at work, and those that are under way to it."""
        return self.busy + len(self.under_way)

    def give(self, number: int, connection: socket.socket, address: str) -> None:
        """Pass a connection on.

        Raises:
            OSError: no open file is left for it.
        """
        self.child.peer.send(Connection(number), [connection.fileno()])
        self.under_way.append((number, connection))
        self.addresses[number] = address

    def heard(self, load: Load) -> list[str]:
        """Take a report; returns the addresses of connections that have closed."""
        self.busy = load.busy
        for _ in range(min(load.received - self.received, len(self.under_way))):
            self.under_way.popleft()[1].close()
        self.received = load.received
        return [self.addresses.pop(number) for number in load.closed if number in self.addresses]


class Dispatcher:
    """Accepts, one connection at a time, while there is room and a front end that answers."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: ConnectionLimits,
        *,
        counted_address: Callable[[str], str],
        families: MetricFamilies,
        log: Log,
    ) -> None:
        """Bound sockets; ``counted_address`` says under which name an address counts, "" for not at all."""
        self._listeners = listeners
        self._counted_address = counted_address
        self._log = SparseLog(log, asyncio.get_running_loop().time, burst=1)
        self._loop = asyncio.get_running_loop()
        self._shares: dict[int, FrontEndShare] = {}
        self._waiting: deque[tuple[int, socket.socket, str]] = deque()
        self._bounds = ConnectionBounds(limits, self._loop.time())
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turned_away = families.get(Counter, "turned_away_connections")
        self._shortages = families.get(Counter, "resource_shortages")

    @property
    def shares(self) -> Sequence[FrontEndShare]:
        """Of the live front ends."""
        return tuple(self._shares.values())

    def add(self, number: int, child: Child) -> None:
        """A front end is ready for connections."""
        self._shares[number] = FrontEndShare(child)
        self._hand_out()

    def heard(self, number: int, load: Load) -> None:
        """A front end has reported."""
        if number in self._shares:
            self._bounds.forget(self._shares[number].heard(load))

    def remove(self, number: int) -> None:
        """A front end has ended: its connections are gone, and those under way to it go to others."""
        share = self._shares.pop(number, None)
        if share is None:
            return
        for left, connection in share.under_way:
            self._waiting.append((left, connection, share.addresses.pop(left)))
        self._bounds.forget(list(share.addresses.values()))
        self._hand_out()

    def open(self) -> None:
        """Listen and let connections in.

        Raises:
            ConfigError: a port was taken meanwhile.
        """
        for listener in self._listeners:
            try:
                listen(listener, LISTEN_BACKLOG)
            except OSError as error:
                host, port, *_ = listener.getsockname()
                raise cannot_listen(host, port, error) from error
        self._resume()

    def close(self) -> None:
        """Let no further connection in."""
        self._pause(None)
        for listener in self._listeners:
            listener.close()

    def _resume(self) -> None:
        self._timer = None
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.add_reader(listener, self._accept, listener)
        self._hand_out()

    def _pause(self, seconds: float | None) -> None:
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._resume) if seconds is not None else None

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection, or pause; further ones wait in the kernel's queue."""
        wait_s = self._bounds.wait_s(self._loop.time(), PAUSE_S)
        share = self._fewest()
        if share is None or wait_s > 0:
            self._pause(wait_s or PAUSE_S)
            return
        try:
            connection, peer = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._wait_for_files(error)
            return
        address = self._counted_address(str(peer[0]))
        if refusal := self._bounds.let_in(address):
            connection.close()
            self._turned_away.inc()
            self._log.warning("connection turned away", of="address", address=address, reason=refusal)
            return
        self._numbers += 1
        self._waiting.append((self._numbers, connection, address))
        self._hand_out()

    def _hand_out(self) -> None:
        """Give each connection that waits to a front end, or keep it until one is ready."""
        while self._waiting and (share := self._fewest()) is not None:
            try:
                share.give(*self._waiting[0])
            except OSError as error:
                self._wait_for_files(error)
                return
            self._waiting.popleft()

    def _wait_for_files(self, error: OSError) -> None:
        """Accept nothing for a while: calls that end give files back."""
        self._shortages.inc()
        name, limit = errno.errorcode.get(error.errno or 0, ""), open_file_limit()
        self._log.warning("system resources have run out", of="shortage", error=name, open_file_limit=limit)
        self._pause(SHORTAGE_PAUSE_S)

    def _fewest(self) -> FrontEndShare | None:
        """The front end with the fewest connections at work, of those that answer."""
        able = [share for share in self._shares.values() if share.child.is_responsive]
        return min(able, key=lambda share: share.load, default=None)
