"""Admission: a caller gets a row, waits in the queue, or is refused.

Rows are assigned in the order in which callers arrive. A caller is admitted if a row is free, no caller waits
before it, and few recent frames are late. Otherwise it waits, for at most the time that it requested, if the
queue has room. If not, it is refused with the seconds after which to retry. Late frames keep callers out only
while a session has a row. With no session, callers are admitted, and the first one resets the count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from antiphon.engine.config import EngineConfig
from antiphon.engine.metrics import LateCount, LatePressure
from antiphon.errors import DrainingError, ServerFullError

MEASURED_SESSIONS = 64
"""Number of recent sessions averaged to estimate a session's length."""


C = TypeVar("C")


class AdmissionOutcome(StrEnum):
    """The outcome of a caller's request for a row."""

    ADMITTED = "admitted"  # at once
    QUEUED = "queued"  # waits
    PROMOTED = "promoted"  # waited, then got a row
    EXPIRED = "expired"  # waited for its whole time
    LEFT = "left"  # left the queue
    FULL = "full"  # refused: rows and queue are full
    LATE = "late"  # refused: deadlines are being missed
    DRAINING = "draining"  # refused, or ended in the queue: the server is shutting down


class RefusedError(ServerFullError):
    """The refusal of a caller; ``outcome`` is its label in the metrics, ``FULL`` or ``LATE``."""

    def __init__(self, message: str, *, retry_after_s: int, outcome: AdmissionOutcome) -> None:
        """Make a refusal with its reason and the seconds after which to retry."""
        self.outcome = outcome
        super().__init__(message, retry_after_s=retry_after_s)


@dataclass(frozen=True, slots=True)
class Changes(Generic[C]):
    """The other callers whose places a decision changes; each of them gets a notice.

    ``promoted`` callers got a row, ``expired`` ones reached the end of their wait (with the error that ends
    them), ``moved`` ones advanced in the queue.
    """

    promoted: tuple[C, ...] = ()
    expired: tuple[tuple[C, ServerFullError], ...] = ()
    moved: tuple[C, ...] = ()


@dataclass(frozen=True, slots=True)
class Departure(Generic[C]):
    """The result of removing a caller: whether it waited, how long it owned a row, and what changed for
    others.
    """

    was_waiting: bool
    active_s: float | None
    changes: Changes[C]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The numbers of rows and of waiting callers at one moment. ``is_admitting``: whether a new caller would
    get a row at once.
    """

    active: int
    queued: int
    slots: int
    is_admitting: bool
    is_draining: bool


@dataclass(frozen=True, slots=True)
class _Seat(Generic[C]):
    """A place in the queue."""

    caller: C
    wait_s: float
    expires_s: float


@dataclass(slots=True)
class _Lengths:
    """Estimates how long sessions last."""

    guess_s: float
    measured_s: deque[float] = field(default_factory=lambda: deque(maxlen=MEASURED_SESSIONS))

    @property
    def mean_s(self) -> float:
        return sum(self.measured_s) / len(self.measured_s) if self.measured_s else self.guess_s


class Admission(Generic[C]):
    """Assigns rows to callers, which are values of any hashable type ``C``, and queues callers that get no
    row; used on the control thread only. Methods take the time as an argument.

    ``activate`` gives a caller a lease, and returns false if none is free. The function ``activate`` must not
    call this object.
    """

    def __init__(
        self,
        slots: int,
        config: EngineConfig,
        pressure: LatePressure,
        *,
        activate: Callable[[C], bool],
        has_lease: Callable[[C | None], bool] = lambda _: True,
        shortage: Callable[[C | None], str] = lambda _: "",
        note: str = "",
    ) -> None:
        """Start with ``slots`` free rows and an empty queue; a caller without a lease gets no row.

        ``note`` is part of the refusals of a full server. ``shortage`` describes what a caller (None: any
        caller) needs in addition to a row and cannot get; "" if there is nothing.
        """
        self._shortage = shortage
        self._note = f"; {note}" if note else ""
        self._activate, self._has_lease = activate, has_lease
        self._config = config
        self._pressure = pressure
        self._rows = slots
        self._active: dict[C, float] = {}  # since when
        self._queue: list[_Seat[C]] = []
        self._lengths = _Lengths(config.session_guess_s)
        self._is_draining = False
        self._nothing: Changes[C] = Changes()

    def submit(self, caller: C, now_s: float, wait_s: float) -> AdmissionOutcome:
        """Admit the caller, or let it wait for at most ``wait_s`` seconds.

        Raises:
            DrainingError: the server is shutting down.
            RefusedError: the caller cannot be admitted and cannot wait.
        """
        if self._is_open(now_s, caller) and self._has_lease(caller) and self._give_row(caller, now_s):
            return AdmissionOutcome.ADMITTED
        self._check_queue(now_s, wait_s, caller)
        self._queue.append(_Seat(caller, wait_s, now_s + wait_s))
        return AdmissionOutcome.QUEUED

    def check(self, now_s: float, wait_s: float) -> None:
        """Check that a new caller would be admitted, without admitting one.

        Raises:
            DrainingError, RefusedError: as :meth:`submit`.
        """
        if not (self._is_open(now_s) and self._free):
            self._check_queue(now_s, wait_s)

    def leave(self, caller: C, now_s: float) -> Departure[C]:
        """Remove a caller from its row or the queue; a second call has no effect."""
        index = self._index(caller)
        if index is not None:
            del self._queue[index]
            moved = tuple(seat.caller for seat in self._queue[index:])
            return Departure(True, None, Changes(moved=moved))
        since_s = self._active.pop(caller, None)
        if since_s is None:
            return Departure(False, None, Changes())
        active_s = now_s - since_s
        self._lengths.measured_s.append(active_s)
        return Departure(False, active_s, self.settle(now_s))

    def swap(self, caller: C, successor: C) -> None:
        """Transfer this caller's row to another caller, with its start time."""
        since_s = self._active.pop(caller, None)
        if since_s is not None:
            self._active[successor] = since_s

    def next_event_s(self, now_s: float) -> float | None:
        """Time of the next :meth:`settle` that has an effect, or None while the queue is empty."""
        if not self._queue:
            return None
        expiry_s = min(seat.expires_s for seat in self._queue)
        if self._free and not self._is_draining:  # late pressure or a shortage keeps them waiting
            return min(expiry_s, now_s + self._pressure.cell_s)
        return expiry_s

    def drain(self) -> tuple[C, ...]:
        """Stop admission, empty the queue, and return the callers that waited."""
        self._is_draining = True
        waiting = tuple(seat.caller for seat in self._queue)
        self._queue.clear()
        return waiting

    def position(self, caller: C) -> int | None:
        """Number of callers before this one in the queue, or None if it does not wait."""
        return self._index(caller)

    def retry_after_s(self, caller: C, now_s: float) -> int:
        """Seconds until this waiting caller can expect a row, at least 1."""
        return self._estimate_s(self._index(caller) or 0, now_s)

    def load(self, now_s: float) -> EngineLoad:
        """The numbers of rows and of waiting callers at this moment."""
        is_admitting = self._is_open(now_s) and self._free > 0
        return EngineLoad(len(self._active), len(self._queue), self._rows, is_admitting, self._is_draining)

    def active(self) -> tuple[C, ...]:
        """The callers that own a row."""
        return tuple(self._active)

    def missing(self, new_callers: int = 0) -> int:
        """Rows that the waiting callers and ``new_callers`` others lack; at least 1 while another
        resource is short.
        """
        wanted = len(self._queue) + new_callers
        return max(wanted - self._free, int(self._shortage(None) != "")) if wanted else 0

    def _is_open(self, now_s: float, caller: C | None = None) -> bool:
        """Whether a new caller may have a free row."""
        # A caller that waits for a lease does not delay one that has it.
        is_calm = not self._is_draining and not any(self._has_lease(seat.caller) for seat in self._queue)
        is_calm = is_calm and not self._is_late(now_s)
        return is_calm and self._has_lease(None) and not self._shortage(caller)

    def _is_late(self, now_s: float) -> bool:
        """Whether deadlines are being missed; late frames count only while a session has a row."""
        return bool(self._active) and self._pressure.is_high(now_s)

    def _check_queue(self, now_s: float, wait_s: float, caller: C | None = None) -> None:
        """Whether a new caller may wait; the error says why not."""
        if self._is_draining:
            raise DrainingError("the server is shutting down and admits no new sessions")
        if wait_s <= 0 or len(self._queue) >= self._config.max_queue:
            raise self._refusal(now_s, caller)

    def settle(self, now_s: float) -> Changes[C]:
        """End expired waits, and admit waiting callers once late pressure has fallen."""
        if not self._queue:
            return self._nothing
        before, was = self._queue, tuple(self._queue)
        expired = [(seat.caller, self._expiry(seat)) for seat in before if seat.expires_s <= now_s]
        self._queue = [seat for seat in before if seat.expires_s > now_s]
        promoted: list[C] = []
        is_open = not self._is_late(now_s) and not self._is_draining
        while self._free and is_open and (caller := self._next()) is not None:
            if self._give_row(caller, now_s):
                promoted.append(caller)
        moved = [seat.caller for index, seat in enumerate(self._queue) if was[index] is not seat]
        return Changes(tuple(promoted), tuple(expired), tuple(moved))

    def _next(self) -> C | None:
        """Remove and return the first caller that has a lease; None if another resource is short, too."""
        for index, seat in enumerate(self._queue):
            if self._has_lease(seat.caller):
                if self._shortage(seat.caller):
                    return None
                del self._queue[index]
                return seat.caller
        return None

    def _give_row(self, caller: C, now_s: float) -> bool:
        if self._free == 0 or not self._activate(caller):
            return False
        if not self._active:
            self._pressure.forget()
        self._active[caller] = now_s
        return True

    @property
    def _free(self) -> int:
        """Rows without an owner."""
        return self._rows - len(self._active)

    def _index(self, caller: C) -> int | None:
        return next((index for index, seat in enumerate(self._queue) if seat.caller is caller), None)

    def _refusal(self, now_s: float, caller: C | None) -> RefusedError:
        ahead, lack = len(self._queue), self._shortage(caller)
        retry_after_s = self._estimate_s(ahead, now_s, lack)
        count = self._pressure.count(now_s)
        if self._free and self._is_late(now_s):
            why = self._why_late(now_s, count)
            outcome = AdmissionOutcome.LATE
        else:
            outcome = AdmissionOutcome.FULL
            why = "the only row is in use" if self._rows == 1 else f"all {self._rows} rows are in use"
            if self._free:
                lack = lack or "every place of this front end is in use"
                why = f"{self._free} of {self._rows} rows are free, but {lack}"
        return RefusedError(
            why
            + (f"; callers waiting: {ahead} of at most {self._config.max_queue}" if ahead else "")
            + (f"; try again in {retry_after_s} s" if self._knows_when(now_s) else "")
            + (self._note if outcome is AdmissionOutcome.FULL else ""),
            retry_after_s=retry_after_s,
            outcome=outcome,
        )

    def _why_late(self, now_s: float, count: LateCount) -> str:
        lag_ms = 1000.0 * self._pressure.host_lag_s(now_s)
        if lag_ms > self._config.host_lag_ms:
            return (
                f"the server's event loop runs {lag_ms:.0f} ms late "
                f"(admission stops above {self._config.host_lag_ms:g} ms)"
            )
        return (
            f"{100 * count.fraction:.1f} % of the last {count.frames} frames were late "
            f"(admission stops above {100 * self._config.late_refuse_fraction:.1f} %)"
        )

    def _expiry(self, seat: _Seat[C]) -> ServerFullError:
        retry_after_s = self._estimate_s(len(self._queue), seat.expires_s)
        return ServerFullError(
            f"no row became free within the {seat.wait_s:g} s this caller would wait"
            + (f"; try again in {retry_after_s} s" if self._knows_when(seat.expires_s) else ""),
            retry_after_s=retry_after_s,
        )

    def _knows_when(self, now_s: float) -> bool:
        """Whether an estimate is possible, from calls that have ended or from the window of late pressure."""
        return bool(self._lengths.measured_s) or self._is_late(now_s)

    def _estimate_s(self, ahead: int, now_s: float, lack: str = "") -> int:
        """Estimate the seconds until a caller behind ``ahead`` others gets a row.

        With S rows in use and sessions of mean length L, a session ends every L / S seconds. Other shortages
        also end when a session ends.
        """
        seconds = 0.0
        if not self._free or lack or self._shortage(None):
            seconds = (ahead + 1) * self._lengths.mean_s / max(1, len(self._active))
        if self._is_late(now_s):
            seconds = max(seconds, self._config.late_window_s)
        return max(1, min(math.ceil(seconds), self._config.retry_after_max_s))
