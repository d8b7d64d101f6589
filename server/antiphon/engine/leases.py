"""Which session has which place in the engine's arrays, from its admission until every side has let it go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from antiphon.backends.base import BoolArray

LEASES_PER_ROW: Final = 3
"""One of a session that left during a tick, one of the next session, one of a connection that resumes it."""


S = TypeVar("S")


class Leases(Generic[S]):
    """Places ``0 .. count-1``; may be used from any thread.

    ``is_closed`` bool ``[count]``: the session has ended, and one of its sides may still look.
    """

    def __init__(self, is_closed: BoolArray, clear: Callable[[int], None], *, pools: int = 1) -> None:
        """Start with all free; ``clear`` wipes a place that neither side uses any more.

        ``is_closed`` are false, in memory of the engine's. With several ``pools`` each has the next
        ``count / pools`` places.
        """
        self.count = count = is_closed.size
        self.is_closed = is_closed
        self._clear = clear
        self._pool_size = size = count // pools
        self._free = [list(reversed(range(pool * size, (pool + 1) * size))) for pool in range(pools)]
        self._coming: dict[int, S] = {}
        self._leaving: list[int] = []
        self._held: set[int] = set()
        self._ended: set[int] = set()  # and held
        self._lock = threading.Lock()  # taken when a row changes hands, and for nothing else

    def take(self, session: S, pool: int, *, is_held: bool) -> int | None:
        """A lease of a pool for a session that was admitted; None while all are in use.

        One that ``is_held`` ends when the session's front end has let it go too.
        """
        with self._lock:
            free = self._free[pool]
            if not free:
                return None
            lease = free.pop()  # the one used last: its memory is there already
            self._coming[lease] = session
            if is_held:
                self._held.add(lease)
            return lease

    def has_free(self, pool: int | None = None) -> bool:
        """Whether :meth:`take` would give one, of this pool or of any."""
        return any(self._free) if pool is None else bool(self._free[pool])

    def release(self, lease: int) -> None:
        """The session has ended; where the engine thread has seen the lease, that thread makes it free."""
        with self._lock:
            self.is_closed[lease] = True
            if self._coming.pop(lease, None) is None:
                self._leaving.append(lease)
            else:
                self._end(lease)

    def let_go(self, leases: Iterable[int]) -> None:
        """The front end uses these leases no more."""
        with self._lock:
            for lease in leases:
                self._held.discard(lease)
                if lease in self._ended:
                    self._ended.remove(lease)
                    self._end(lease)

    def clean(self, pool: int) -> None:
        """Clear the free places of a pool too: a process that could write to them has ended."""
        with self._lock:
            for lease in self._free[pool]:
                self._clear(lease)

    def settle(self, attach: Callable[[int, S], None], detach: Callable[[int], None]) -> None:
        """Between ticks, on the engine thread: what changed hands since the last one."""
        if not (self._leaving or self._coming):
            return
        with self._lock:
            for lease, session in self._coming.items():
                attach(lease, session)
            self._coming.clear()
            for lease in self._leaving:
                detach(lease)
                self._end(lease)
            self._leaving.clear()

    def _end(self, lease: int) -> None:
        if lease in self._held:
            self._ended.add(lease)
            return
        self._clear(lease)
        self.is_closed[lease] = False
        self._free[lease // self._pool_size].append(lease)
