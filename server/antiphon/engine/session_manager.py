"""Decides which sessions get a row of an engine, wait for a row, or resume a call, and reports the decision.

This code runs on the control thread. It sends decisions to the engine thread as changes of rows, and handles
the engine thread's events.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from antiphon.engine.admission import Admission, AdmissionOutcome, Changes, EngineLoad, RefusedError
from antiphon.engine.config import EngineConfig
from antiphon.engine.metrics import EngineMetrics, LatePressure
from antiphon.engine.resumable_call import replaced, too_late
from antiphon.engine.resume import Resuming
from antiphon.engine.rows import Rows
from antiphon.engine.sessions import EngineSession, LeasePool
from antiphon.engine.values import (
    AttachRow,
    Change,
    DetachRow,
    EngineLost,
    Event,
    FramesOverdue,
    RowBegun,
    RowDetached,
    RowFailed,
    RowMoved,
    RowPrimed,
    UpdateRow,
)
from antiphon.errors import AntiphonError, DrainingError, MovedError, ResumeError, SessionFailedError
from antiphon.ipc import messages
from antiphon.ipc.values import ResumeClaim

MAX_UPDATES: Final = 1024
"""Limit on the requests of one session that wait for a step to end; larger than the number of words on a
page.
"""


class SessionManager:
    """The sessions of one engine. ``lost`` is the reason why the model can no longer run, or None."""

    def __init__(
        self,
        rows: Rows,
        config: EngineConfig,
        slots: int,
        *,
        pressure: LatePressure,
        metrics: EngineMetrics,
        clock: Callable[[], float],
        nudge: Callable[[], None],
        pools: int = 1,
        shortage: Callable[[EngineSession | None], str] = lambda _: "",
        note: str = "",
    ) -> None:
        """Start without sessions; ``nudge`` wakes the engine thread. The other arguments are those of
        :class:`Admission`."""
        self._rows, self._pressure = rows, pressure
        self._metrics, self._clock, self._nudge = metrics, clock, nudge
        self.leases = LeasePool(rows.arena.leases, rows.wipe, pools=pools)
        self._admission: Admission[EngineSession] = Admission(
            slots,
            config,
            pressure,
            activate=self._activate,
            has_lease=lambda it: self.leases.has_free(None if it is None else it.pool or 0),
            shortage=shortage,
            note=note,
        )
        self.resuming = Resuming(
            window_s=config.resume_window_s,
            yield_s=config.resume_yield_s,
            clock=clock,
            post=self.post,
            assign_lease=self._assign_lease,
        )
        self._at_lease: dict[int, EngineSession] = {}
        self.lost: SessionFailedError | None = None

    # Admission.

    def admit(self, session: EngineSession, wait_s: float) -> None:
        """Give a session a row, or a place in the queue.

        Raises:
            ServerFullError: no row is free, or deadlines are being missed, and the session cannot wait.
            DrainingError: the server is shutting down.
            SessionFailedError: the device is lost.
        """
        self._check_not_lost()
        now_s = self._clock()
        self.settle(now_s, new_callers=1)
        try:
            outcome = self._admission.submit(session, now_s, wait_s)
        except RefusedError as error:
            self._metrics.admissions[error.outcome].inc()
            raise
        except DrainingError:
            self._metrics.admissions[AdmissionOutcome.DRAINING].inc()
            raise
        self._metrics.admissions[outcome].inc()

    def claim(self, session: EngineSession, claim: ResumeClaim) -> None:
        """Start the resumption of a call by a session.

        Raises:
            ResumeError: the call does not exist, or cannot be resumed. SessionFailedError: the device is
                lost.
        """
        self._check_not_lost()
        self.settle(self._clock())
        try:
            self.resuming.claim(session, claim)
        except ResumeError as error:
            self._metrics.resumptions[error.reason].inc()
            raise
        except MovedError:
            self._metrics.resumptions["moved"].inc()
            raise

    def check_room(self, wait_s: float) -> None:
        """Check that :meth:`admit` would accept a caller that waits ``wait_s``, without admitting or counting
        it.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: as :meth:`admit`.
        """
        self._check_not_lost()
        now_s = self._clock()
        self.settle(now_s)
        self._admission.check(now_s, wait_s)

    def announce_place(self, session: EngineSession) -> None:
        """Send a waiting session its place in the queue."""
        if (position := self._admission.position(session)) is not None:
            retry_after_s = self._admission.retry_after_s(session, self._clock())
            session.send(messages.Queued(session.id, position, retry_after_s))

    def _activate(self, session: EngineSession) -> bool:
        if not self._assign_lease(session):
            return False
        assert session.lease is not None
        session.is_attached = True
        self._at_lease[session.lease] = session
        self.post(AttachRow(session.lease, session.entry))
        session.announce(session.lease, self._rows.arena.pool_leases)
        return True

    def _assign_lease(self, session: EngineSession) -> bool:
        session.lease = session.leased = self.leases.take(session.pool or 0, is_held=session.has_front_end)
        return session.lease is not None

    # From front ends.

    def pass_on(self, session: EngineSession, request: messages.CallRequest) -> None:
        """Pass a request of the front end on to a session's row, now or when the session has a row.

        Raises:
            SessionFailedError: too many requests wait for the end of a step.
        """
        if session.is_closed:
            return
        session.remember(request)
        if session.lease is None or not session.is_attached:
            session.entry.take(request)
            return
        waiting = session.updates - session.entry.updates
        if waiting >= MAX_UPDATES:
            raise SessionFailedError(f"{waiting} changes wait for the model, the limit is {MAX_UPDATES}")
        session.updates += 1
        self.post(UpdateRow(session.lease, request))

    def words_waiting(self, session: EngineSession) -> int:
        """The number of a session's words that its row has not taken."""
        taken = 0 if session.lease is None else int(self._rows.arena.engine.words_taken[session.lease])
        return session.words_waiting(taken)

    def add_notes(self, session: EngineSession, noted: messages.Noted) -> None:
        """Store messages as :meth:`Resuming.note`; end the session that waited for a call that can no longer
        be resumed.
        """
        if (successor := self.resuming.note(session, noted)) is not None:
            self.end(successor, too_late())

    # Ends of sessions.

    def detach(self, session: EngineSession) -> None:
        """Handle the end of a connection: the row of a resumable call waits for another connection; other
        calls end.
        """
        if session.is_closed or self.resuming.detach(session) or self.resuming.is_succeeded(session):
            return
        self.end(session, ResumeError("unknown: the call cannot be resumed"))

    def let_go(self, session: EngineSession) -> None:
        """Release a session that its front end has closed: it ends, unless another connection takes its
        call."""
        is_kept = self.resuming.keeps(session) and self.resuming.detach(session)
        if not (is_kept or self.resuming.is_succeeded(session)):
            self.close(session)

    def end(self, session: EngineSession, error: AntiphonError) -> None:
        """Close a session that its front end did not close; if its row is moving, close it after the move."""
        if session.is_closed:
            return
        session.send(messages.Ended(session.id, error))
        if not self.resuming.is_succeeded(session):
            self.close(session)

    def close(self, session: EngineSession) -> None:
        """Close a session: free its row, or its place in the queue, for the next caller."""
        if session.is_closed:
            return
        session.is_closed = True
        if (lease := session.lease) is not None:
            session.lease = None
            if session.is_attached:
                self._at_lease.pop(lease, None)
                self._rows.is_closed[lease] = True  # from here on, replies of a running tick are discarded
                self._detach_row(lease, session)
            else:
                self.leases.give_back(lease)
                session.leased = None  # a later Close of its front end does not concern the next session
        if (successor := self.resuming.forget(session)) is not None:
            self.end(successor, too_late())
        self._leave(session)

    def _detach_row(self, lease: int, session: EngineSession) -> None:
        """Have the engine thread release a lease; one that it has not seen is free at once."""
        changes = self._rows.changes
        try:
            changes.remove(AttachRow(lease, session.entry))
        except (ValueError, IndexError):  # it has the lease, or is just taking it
            self.post(DetachRow(lease))
            return
        for change in changes.copy():  # callers that connect and leave during a step accumulate nothing
            if isinstance(change, UpdateRow) and change.lease == lease:
                with suppress(ValueError, IndexError):
                    changes.remove(change)
        self.leases.detached(lease)

    def _leave(self, session: EngineSession) -> None:
        departure = self._admission.leave(session, self._clock())
        if departure.was_waiting:
            self._metrics.admissions[AdmissionOutcome.LEFT].inc()
        if departure.active_s is not None:
            self._metrics.session_seconds.observe(departure.active_s)
        self._apply(departure.changes)

    def drain(self, *, keeps_detached: bool) -> None:
        """Admit no further caller; waiting callers get a DrainingError, and detached calls end unless they
        are kept.
        """
        if not keeps_detached:
            for session in self.resuming.drain():
                self.end(session, ResumeError("draining: the server is shutting down"))
        for session in self._admission.drain():
            self._metrics.admissions[AdmissionOutcome.DRAINING].inc()
            self.end(session, DrainingError("the server is shutting down; its queue is closed"))

    def end_all(self, error: AntiphonError) -> None:
        """End every session: detached, waiting and active ones."""
        for session in (*self.resuming.lose(), *self._admission.drain(), *self._admission.active()):
            self.end(session, error)
            self.close(session)  # even while its row is moving

    def lose(self, error: SessionFailedError) -> None:
        """Fail all sessions and stop admission, because the model can no longer run."""
        self.lost = error
        self.end_all(error)

    # Timeouts, and events of the engine thread.

    def post(self, change: Change) -> None:
        """Send a change of a row to the engine thread, for its next tick."""
        self._rows.changes.append(change)
        self._nudge()

    def settle(self, now_s: float, *, new_callers: int = 0) -> None:
        """Apply expired timeouts; detached calls end to free rows for waiting callers or for ``new_callers``
        new callers.
        """
        if self.resuming.detached:
            for session, error in self.resuming.due(now_s, wanted=self._admission.missing(new_callers)):
                self.end(session, error)
        self._apply(self._admission.settle(now_s))

    def next_event_s(self, now_s: float) -> float:
        """The time of the next :meth:`settle`; infinite if there is none."""
        event_s = self._admission.next_event_s(now_s)
        waits_s = math.inf if event_s is None else event_s
        if not self.resuming.detached:
            return waits_s
        return min(waits_s, self.resuming.next_event_s(is_wanted=self._admission.missing() > 0))

    def load(self, now_s: float) -> EngineLoad:
        """The numbers of rows and of waiting callers at this moment."""
        return self._admission.load(now_s)

    def promised_pages(self, most: int) -> int:
        """The number of pages that sessions with a row may still take in the near future, up to ``most`` per
        row.
        """
        return sum(min(session.pages, most) for session in self._admission.active())

    def handle(self, event: Event) -> None:
        """Handle an event of the engine thread; the caller must handle ``EngineLost`` itself."""
        match event:
            case RowDetached(lease):
                self.leases.detached(lease)
                self._apply(self._admission.settle(self._clock()))
            case RowBegun(lease):
                if (session := self._session_at(lease)) is not None:
                    session.has_state = True
            case RowPrimed(lease, number, came):
                if (session := self._session_at(lease)) is not None:
                    session.came, session.pages = came, 1
                    session.send(messages.Primed(session.id, number))
            case RowFailed(lease, error):
                if (session := self.resuming.moving_from(lease) or self._session_at(lease)) is not None:
                    self.end(session, error)
            case RowMoved():
                self._moved(event)
            case FramesOverdue(now_s, frames):
                self._pressure.record_many(now_s, frames=frames, late=frames)
            case EngineLost():
                pass
            case _:
                event()

    def _session_at(self, lease: int) -> EngineSession | None:
        return self._at_lease.get(lease)

    def _moved(self, moved: RowMoved) -> None:
        session, successor, resumption = self.resuming.moved(moved)
        source, target = session.lease, successor.lease
        session.lease, session.is_closed = None, True
        if source is not None:  # else all sessions have ended
            del self._at_lease[source]
            self.leases.detached(source)
        self._admission.swap(session, successor)
        session.send(messages.Ended(session.id, replaced()))
        if target is None:  # it has closed meanwhile
            self._leave(successor)
            return
        self._at_lease[target] = successor
        if not self.resuming.is_detached(successor):  # and its connection has not ended
            self._metrics.resumptions["resumed"].inc()
        successor.send(messages.Resumed(successor.id, resumption))
        successor.announce(target, self._rows.arena.pool_leases)

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise SessionFailedError(str(self.lost))

    def _apply(self, changes: Changes[EngineSession]) -> None:
        """Notify every session that a decision of admission affects."""
        for _ in changes.promoted:
            self._metrics.admissions[AdmissionOutcome.PROMOTED].inc()
        for session, error in changes.expired:
            self._metrics.admissions[AdmissionOutcome.EXPIRED].inc()
            self.end(session, error)
        for session in changes.moved:
            self.announce_place(session)
