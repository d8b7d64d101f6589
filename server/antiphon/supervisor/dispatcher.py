"""The listening sockets: connections are counted, and each connection goes to the front end with the fewest
active connections.

Every connection is accepted soon, and waits here for its turn (:mod:`antiphon.supervisor.connection_queue`).
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence

from prometheus_client import Counter

from antiphon.log import Log, SparseLog
from antiphon.metrics import MetricFamilies
from antiphon.supervisor.address import cannot_listen, listen
from antiphon.supervisor.children import Child
from antiphon.supervisor.connection_bounds import ConnectionLimits, open_file_limit
from antiphon.supervisor.connection_queue import ConnectionQueue
from antiphon.supervisor.messages import Connection, Load, MakeRoom

LISTEN_BACKLOG = 1024
"""Length of the kernel's queue; it holds most of a burst that exceeds the accept rate."""

ACCEPTED_AT_ONCE = 16
"""Connections accepted in one iteration of the event loop, in less than a millisecond."""

PAUSE_S = 0.05
"""Seconds until the next attempt when no waiting connection can be served."""

SHORTAGE_PAUSE_S = 1.0
"""Seconds of pause after a failed accept, usually because of open files; less if a connection closes."""


class FrontEndShare:
    """The connections of one front end, by its reports.

    A socket stays open in this process until the front end reports it; if the front end ends, unreported
    sockets go to other front ends.
    """

    def __init__(self, child: Child) -> None:
        """Begin without connections."""
        self.child = child
        self.busy = 0
        self.received = 0
        self.under_way: deque[tuple[int, socket.socket]] = deque()
        self.addresses: dict[int, str] = {}

    @property
    def load(self) -> int:
        """Number of active connections, and of connections in transit to the front end."""
        return self.busy + len(self.under_way)

    def give(self, number: int, connection: socket.socket, address: str) -> None:
        """Pass a connection to the front end.

        Raises:
            OSError: no file descriptor is free for it.
        """
        self.child.peer.send(Connection(number), [connection.fileno()])
        self.under_way.append((number, connection))
        self.addresses[number] = address

    def report(self, load: Load) -> list[str]:
        """Process a report; returns the addresses of connections that have closed."""
        self.busy = load.busy
        for _ in range(min(load.received - self.received, len(self.under_way))):
            self.under_way.popleft()[1].close()
        self.received = load.received
        return [self.addresses.pop(number) for number in load.closed if number in self.addresses]


class Dispatcher:
    """Accepts connections, and passes each to the responsive front end with the fewest active connections."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: ConnectionLimits,
        *,
        counted_address: Callable[[str], str],
        families: MetricFamilies,
        log: Log,
    ) -> None:
        """Use bound sockets; ``counted_address`` returns the name under which an address counts, "" means
        that it is not counted.
        """
        self._listeners = listeners
        self._counted_address = counted_address
        self._log = SparseLog(log, asyncio.get_running_loop().time, burst=1)
        self._loop = asyncio.get_running_loop()
        self._shares: dict[int, FrontEndShare] = {}
        self._queue = ConnectionQueue[socket.socket](limits, self._loop.time())
        self._numbers, self._short_until_s, self._is_closed = 0, -math.inf, False
        self._look: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turned_away = families.get(Counter, "turned_away_connections")
        self._shortages = families.get(Counter, "resource_shortages")

    @property
    def shares(self) -> Sequence[FrontEndShare]:
        """The connections of the live front ends."""
        return tuple(self._shares.values())

    def add(self, number: int, child: Child) -> None:
        """Add a front end that is ready for connections."""
        self._shares[number] = FrontEndShare(child)
        self._hand_out()

    def report(self, number: int, load: Load) -> None:
        """Process the report of a front end."""
        if number in self._shares:
            self._queue.bounds.closed(self._shares[number].report(load))
            if load.closed and self._loop.time() < self._short_until_s and not self._is_closed:
                self._short_until_s = -math.inf  # a closed connection frees a file
                self._pause(0)
            self._hand_out()

    def remove(self, number: int) -> None:
        """Remove a front end that has ended: its connections are lost, and connections in transit go to other
        front ends.
        """
        share = self._shares.pop(number, None)
        if share is None:
            return
        for left, connection in share.under_way:
            if self._is_closed:
                connection.close()
                continue
            self._queue.give_back(connection, share.addresses.pop(left))
            self._listen_to(connection)
        self._queue.bounds.closed(list(share.addresses.values()))
        self._hand_out()

    def open(self) -> None:
        """Listen and accept connections.

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
        """Accept no further connections, and reject the waiting ones."""
        self._is_closed = True
        self._pause(None)
        for listener in self._listeners:
            listener.close()
        if self._look is not None:
            self._look.cancel()
        for connection in self._queue.waiting:
            self._queue.leave(connection)
            self._reject(connection)

    def _resume(self) -> None:
        self._timer = None
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.add_reader(listener, self._accept, listener)

    def _pause(self, seconds: float | None) -> None:
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._resume) if seconds is not None else None

    def _accept(self, listener: socket.socket) -> None:
        """Accept up to ``ACCEPTED_AT_ONCE`` connections; above the accept rate, pause the listener."""
        new: list[socket.socket] = []
        while len(new) < ACCEPTED_AT_ONCE:
            wait_s = self._queue.bounds.accept_wait_s(self._loop.time())
            if wait_s > 0:
                self._pause(wait_s)
                break
            try:
                connection, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                self._wait_for_files(error)
                break
            new.append(connection)
            self._let_in(connection, self._counted_address(str(peer[0])))
            self._hand_out()  # a burst waits only if there is no room
            if self._loop.time() < self._short_until_s:
                break  # accepting is paused; it would report the same shortage again
        for connection in new:
            if connection in self._queue.waiting:
                self._listen_to(connection)

    def _let_in(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        refusal = self._queue.bounds.let_in(address)
        if not refusal:
            least = self._queue.add(connection, address)
            if least is None:
                return
            (connection, address), refusal = least, "too many connections wait"
        self._reject(connection)
        self._log.warning("connection rejected", of="address", address=address, reason=refusal)

    def _reject(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection.fileno())
        connection.close()
        self._turned_away.inc()

    def _listen_to(self, connection: socket.socket) -> None:
        # Removed by number: for a socket that is not watched, asyncio's error includes its whole description.
        self._loop.add_reader(connection.fileno(), self._hear, connection)

    def _hear(self, connection: socket.socket) -> None:
        """Handle data, or the end, of a waiting connection."""
        try:
            has_sent = bool(connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return
        except OSError:
            has_sent = False
        self._loop.remove_reader(connection.fileno())
        if has_sent:
            self._queue.waiting.has_spoken(connection)
            self._hand_out()
        else:
            self._queue.leave(connection)
            connection.close()

    def _hand_out(self) -> None:
        """Pass due connections to front ends, and schedule the next attempt."""
        if not self._queue.waiting:
            return
        now_s, given = self._loop.time(), True
        while given and now_s >= self._short_until_s and (share := self._fewest()) is not None:
            given = self._give_next(share, now_s)
        if self._queue.waiting and self._look is None:
            wait_s = 0.0 if self._queue.bounds.is_full else self._queue.bounds.serve_wait_s(now_s)
            wait_s = max(wait_s or PAUSE_S, self._short_until_s - now_s)
            self._look = self._loop.call_later(wait_s, self._retry)

    def _give_next(self, share: FrontEndShare, now_s: float) -> bool:
        """Pass the next connection to a front end; false if none may be served now."""
        if (taken := self._queue.take(now_s)) is None:
            return False
        connection, address = taken
        self._loop.remove_reader(connection.fileno())
        try:
            share.give(self._numbers + 1, connection, address)
        except OSError as error:
            self._queue.give_back(connection, address)
            self._listen_to(connection)
            self._wait_for_files(error)
            return False
        self._numbers += 1
        return True

    def _retry(self) -> None:
        self._look = None
        if lacking := self._queue.lacks_room:
            for share in self._shares.values():
                share.child.peer.send(MakeRoom(math.ceil(lacking / len(self._shares))))
        self._hand_out()

    def _wait_for_files(self, error: OSError) -> None:
        """Pause accepting until calls that end free files."""
        self._shortages.inc()
        name, limit = errno.errorcode.get(error.errno or 0, ""), open_file_limit()
        self._log.warning("system resources have run out", of="shortage", error=name, open_file_limit=limit)
        self._short_until_s = self._loop.time() + SHORTAGE_PAUSE_S
        self._pause(SHORTAGE_PAUSE_S)

    def _fewest(self) -> FrontEndShare | None:
        """The responsive front end with the fewest active connections."""
        able = [share for share in self._shares.values() if share.child.is_responsive]
        return min(able, key=lambda share: share.load, default=None)
