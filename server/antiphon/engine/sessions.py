"""The engine's half of a session on the control thread, and the leases of sessions.

The row's entry (:mod:`antiphon.engine.row_entry`) has the rest of a session, except for its frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from antiphon.backends.base import FRAMES
from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.engine.call_state import SavedState
from antiphon.engine.row_entry import RowEntry
from antiphon.ipc import messages
from antiphon.ipc.messages import Admitted, CallNotice
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters


def no_notices(_: CallNotice) -> None:
    """Discards the notices of a call without a front end."""


def pages_of(prompt: Prompt | SavedState | None) -> int:
    """Pages of keys and values that a row needs for a prompt or a state, and for its next frames."""
    if isinstance(prompt, SavedState):
        return int(np.max(prompt.arrays.get(FRAMES, 0))) // PAGE_SLOTS + 1
    return 1 if prompt is None else prompt.count // PAGE_SLOTS + 1


class EngineSession:
    """One call of an engine; used on the control thread only.

    ``send`` accepts messages for the session's front end without waiting. ``is_orphaned`` is true after the
    front end has died; nothing is sent until another connection resumes the call. ``lease`` is the index in
    the rows' arrays; ``leased`` keeps it after the session has closed. The control thread changes ``entry``
    only while there is no lease. ``resumable`` is the record of a resumable call. ``has_state`` is true if
    the row holds state of this session, ``is_attached`` if the engine thread has the lease. ``came`` is the
    number of frames that a call from another worker had on arrival. ``updates`` is the number of updates sent
    to the row. ``pages`` is the number of pages of keys and values reserved for the row: first the pages for
    its prompt or state, then one page.
    """

    def __init__(
        self,
        session_id: str,
        parameters: SamplingParameters,
        frame_samples: int,
        *,
        send: Callable[[CallNotice], None] = no_notices,
        pool: int | None = None,
        prompt: Prompt | SavedState | None = None,
    ) -> None:
        """Start without a row. ``pool`` is the number of the front end whose leases it may use; None if there
        is only one process.
        """
        self.id, self.pool = session_id, pool
        self.send, self.is_orphaned = send, False
        self.has_front_end = send is not no_notices  # it releases its lease
        self.parameters = parameters
        self.entry = RowEntry(parameters, frame_samples, prompt)
        self.lease: int | None = None
        self.leased: int | None = None
        self.resumable: object | None = None
        self.is_closed = self.has_state = self.is_attached = False
        self.came = self.updates = 0
        self.pages = pages_of(prompt)
        self._words = self._words_void = 0  # words that arrived, and words that were discarded

    def announce(self, lease: int, pool_leases: int) -> None:
        """Report to the front end which of the ``pool_leases`` leases of its pool the call has."""
        self.send(Admitted(self.id, lease - (self.pool or 0) * pool_leases))

    def orphan(self) -> None:
        """Mark the session's front end as dead."""
        self.send, self.is_orphaned = no_notices, True

    def remember(self, request: messages.CallRequest) -> None:
        """Record what the control thread needs of a request to the row."""
        match request:
            case messages.SetParameters(_, _, parameters):
                self.parameters = parameters
            case messages.Prime(_, _, prompt):
                self.pages = pages_of(prompt)
            case messages.PushText(_, entries):
                self._words += len(entries)
            case messages.ClearText() | messages.Restart():
                self._words_void = self._words

    def words_waiting(self, taken: int) -> int:
        """Number of words that the row has not taken, if it took ``taken`` words."""
        return self._words - max(taken, self._words_void)


class LeasePool:
    """Leases ``0 .. count-1``, in pools of equal size; used on the control thread only.

    A lease becomes free when the engine thread has detached it and the front end, if it holds it, has
    released it. ``free`` then clears it.
    """

    def __init__(self, count: int, free: Callable[[int], None], *, pools: int = 1) -> None:
        """Start with all leases free; each of the ``pools`` pools has ``count / pools`` consecutive
        leases.
        """
        self.count = count
        self._wipe = free
        self._pool_size = size = count // pools
        self.free = [list(reversed(range(pool * size, (pool + 1) * size))) for pool in range(pools)]
        self._held: set[int] = set()
        self._detached: set[int] = set()  # and held

    def has_free(self, pool: int | None = None) -> bool:
        """Whether :meth:`take` would return a lease, of this pool or, with None, of any pool."""
        return any(self.free) if pool is None else bool(self.free[pool])

    def roomiest(self) -> int:
        """The pool with the most free leases."""
        return max(range(len(self.free)), key=lambda pool: len(self.free[pool]))

    def take(self, pool: int, *, is_held: bool) -> int | None:
        """Take a lease of a pool; None if all are in use. The last used lease comes first, because its memory
        is allocated.

        With ``is_held`` the lease becomes free only after the session's front end has released it too.
        """
        if not self.free[pool]:
            return None
        lease = self.free[pool].pop()
        if is_held:
            self._held.add(lease)
        return lease

    def give_back(self, lease: int) -> None:
        """Free a lease that neither the engine thread nor a front end has seen."""
        self._held.discard(lease)
        self.free[lease // self._pool_size].append(lease)

    def detached(self, lease: int) -> None:
        """Record that the engine thread has released the lease."""
        if lease in self._held:
            self._detached.add(lease)
        else:
            self._end(lease)

    def let_go(self, leases: Iterable[int]) -> None:
        """Record that the front end has released these leases."""
        for lease in leases:
            self._held.discard(lease)
            if lease in self._detached:
                self._detached.remove(lease)
                self._end(lease)

    def clean(self, pool: int) -> Iterator[None]:
        """Clear the free leases of a pool, one at each step, because an ended process may have written to
        them. No call gets a lease before it is clear.
        """
        unclean, self.free[pool] = self.free[pool], []
        for lease in unclean:
            self._end(lease)
            yield

    def _end(self, lease: int) -> None:
        self._wipe(lease)
        self.free[lease // self._pool_size].append(lease)
