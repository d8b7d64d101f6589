"""The engine's half of a session: whose row it is, and what its row is to be given.

Messages of its front end change it (:mod:`antiphon.engine.front_ends`); admission gives it a row; the engine
thread asks it what lies beside the frames, which are in arrays (:mod:`antiphon.engine.rows`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from antiphon.backends.base import BoolArray, FloatArray, TextEntry
from antiphon.engine.flush_padding import FlushPadding
from antiphon.engine.inbox import TextInbox
from antiphon.engine.leases import Leases
from antiphon.engine.row_state import SavedState
from antiphon.engine.wake import Wake
from antiphon.errors import AntiphonError
from antiphon.ipc.arena import Counts
from antiphon.ipc.messages import Admitted, CallNotice, Ended, Primed, Queued
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

NO_LIMIT: Final = np.iinfo(np.int64).max
"""In ``LeaseMarks.max_steps``: a session may take any number of steps."""


@dataclass(frozen=True, slots=True)
class LeaseMarks:
    """What sessions mark beside their frames, each array ``[leases]``.

    ``is_primed``: the row may be ticked, ``is_frozen``: but not now. ``needs_care``: something beside a frame
    is to be done first. ``parameters_seen`` counts changes of the parameters that have come. A front end of
    another process counts its leases from the first of its pool of ``pool_leases``.
    """

    leases: Leases[EngineSession]
    pool_leases: int
    frame_samples: int
    max_steps: Counts
    parameters_seen: Counts
    is_primed: BoolArray
    is_frozen: BoolArray
    needs_care: BoolArray


@dataclass(frozen=True, slots=True)
class SessionHost:
    """What a session asks of its engine; never called under the session's lock.

    ``leave``: it has closed. ``place``: how many callers wait before it, and for how many seconds, None when
    it does not wait. ``keeps``: whether the row of a session that closes goes to another connection.
    """

    leave: Callable[[EngineSession], None]
    place: Callable[[EngineSession], tuple[int, int] | None]
    keeps: Callable[[EngineSession], bool]


def no_notices(_: CallNotice) -> None:
    """The notices of a call that no front end has."""


class EngineSession:
    """One call as its engine has it; any thread may call it, and nothing happens to a closed one.

    ``send`` takes what its front end is to be told, from any thread, and never waits. The call of a front end
    that has died is ``is_orphaned``: until another connection resumes it, nobody is told.
    """

    def __init__(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        rows: LeaseMarks,
        wake: Wake,
        host: SessionHost,
        send: Callable[[CallNotice], None] = no_notices,
        pool: int | None = None,
        prompt: Prompt | SavedState | None = None,
    ) -> None:
        """Start without a row. ``pool`` is the front end whose leases it may have, None in one process."""
        self.id, self.pool = session_id, pool
        self.send, self.is_orphaned = send, False
        self.has_front_end = send is not no_notices  # which lets its lease go
        self.padding = FlushPadding(rows.frame_samples)
        self.text = TextInbox()
        self.lease: int | None = None
        self.leased: int | None = None  # which lease it has, or had before it closed
        self.resumable: object | None = None  # the host's record of the call, where it can be resumed
        self._rows, self._wake, self._host = rows, wake, host
        self._parameters, self._has_new_parameters = parameters, True
        self._changes = 0  # of the parameters
        self._prompt, self._prompts = prompt, 0
        self._is_closed = False
        self._lock = threading.Lock()

    # What the front end asks.

    def set_parameters(self, parameters: SamplingParameters, number: int = 0) -> None:
        """Use other parameters from the next frame on, the change of this number."""
        with self._lock:
            self._parameters, self._has_new_parameters = parameters, True
            self._changes = max(self._changes, number)
            if self.lease is not None:
                self._limit(self.lease)
                self._rows.needs_care[self.lease] = True
                self._rows.parameters_seen[self.lease] = self._changes  # last: from here on frames may go
        self._wake.nudge()

    def prime(self, number: int, prompt: Prompt | SavedState) -> None:
        """Let the row read a prompt, instead of the one given before, if that is not read yet."""
        with self._lock:
            self._prompt, self._prompts = prompt, number
            if self.lease is not None:
                self._rows.is_primed[self.lease] = False
                self._rows.needs_care[self.lease] = True
        self._wake.nudge()

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words."""
        self.text.push(entries, received_s)
        self._wake.nudge()

    def end_text(self) -> None:
        """The text ends here."""
        self.text.finish()
        self._wake.nudge()

    def clear_text(self) -> None:
        """Throw away the words that wait."""
        self.text.clear()

    def hear_padding(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Hear silence on a copy of the row's state."""
        with self._lock:
            self.padding.listen(run, upto, frames, tail, now_s)
            if self.lease is not None:
                self._rows.needs_care[self.lease] = True
        self._wake.nudge()

    def close(self) -> None:
        """Free the row, or the place in the queue, unless the call is being resumed."""
        if self._host.keeps(self):
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            lease, self.lease = self.lease, None
            self.padding.end()
        if lease is not None:
            self._rows.leases.release(lease)
        self._host.leave(self)

    # Calls from the engine.

    @property
    def is_priming(self) -> bool:
        """Whether its row still reads a prompt."""
        return self._prompt is not None

    def activate(self) -> bool:
        """Own a row; false when closed meanwhile. Called under admission's lock."""
        with self._lock:
            lease = None if self._is_closed else self._take()
            if lease is None:
                return False
            self.lease = self.leased = lease
            self._limit(lease)
            self._rows.is_primed[lease] = self._prompt is None
            self._rows.parameters_seen[lease] = self._changes
            self._rows.needs_care[lease] = True
        self.announce(lease)
        self._wake.nudge()  # text may have come while it waited
        return True

    def announce(self, lease: int) -> None:
        """Tell the front end which of its leases the call has."""
        self.send(Admitted(self.id, lease - (self.pool or 0) * self._rows.pool_leases))

    def orphan(self) -> None:
        """The front end has died."""
        self.send, self.is_orphaned = no_notices, True

    def _take(self) -> int | None:
        return self._rows.leases.take(self, self.pool or 0, is_held=self.has_front_end)

    def take_lease(self) -> bool:
        """Have a lease, but no row yet: the caller is to get that of another session."""
        with self._lock:
            lease = None if self._is_closed else self._take()
            self.lease = self.leased = lease
        return lease is not None

    def inherit(self, other: EngineSession) -> SamplingParameters:
        """Stand for another session from now on, which has ended; returns its parameters."""
        with other._lock:
            parameters, has_new, changes = other._parameters, other._has_new_parameters, other._changes
            lease, other.lease, other._is_closed = other.lease, None, True
        with self._lock:
            self._parameters, self._has_new_parameters, self._changes = parameters, has_new, changes
            self._prompt = None
        if lease is not None:
            self._rows.leases.release(lease)
        return parameters

    def end(self, error: AntiphonError) -> None:
        """Close, without the caller's request."""
        self.send(Ended(self.id, error))
        self.close()

    def tell(self) -> None:
        """Tell the front end the place in the queue, while the call waits."""
        if (place := self._host.place(self)) is not None:
            self.send(Queued(self.id, *place))

    def parameters_now(self) -> tuple[SamplingParameters, bool]:
        """The parameters, and whether the row lacks them still."""
        with self._lock:
            return self._parameters, self._has_new_parameters

    def new_parameters(self) -> SamplingParameters | None:
        """The parameters the row lacks, once; None while it has them."""
        with self._lock:
            return self._take_parameters()

    def begin_priming(self) -> tuple[int, Prompt | SavedState, SamplingParameters | None] | None:
        """The lease, what its row is to read, and its parameters if it lacks them; None once it closed."""
        with self._lock:
            if self.lease is None or self._prompt is None:
                return None
            return self.lease, self._prompt, self._take_parameters()

    def end_priming(self, lease: int, prompt: Prompt | SavedState) -> bool:
        """The prompt is read. Returns whether there is another: the owner has changed its mind meanwhile."""
        with self._lock:
            if self.lease != lease:
                return False
            if self._prompt is not prompt:
                return True
            self._prompt = None
            self._rows.is_primed[lease] = True  # text may have come while it was read
            number = self._prompts
        self.send(Primed(self.id, number))
        return False

    def freeze(self, *, is_frozen: bool) -> None:
        """Whether the row takes no step; what comes meanwhile waits, up to the bounds of the queues."""
        with self._lock:
            if self.lease is not None:
                self._rows.is_frozen[self.lease] = is_frozen
        if not is_frozen:
            self._wake.nudge()

    def _take_parameters(self) -> SamplingParameters | None:
        parameters = self._parameters if self._has_new_parameters else None
        self._has_new_parameters = False
        return parameters

    def _limit(self, lease: int) -> None:
        most = self._parameters.max_steps
        self._rows.max_steps[lease] = NO_LIMIT if most is None else most
