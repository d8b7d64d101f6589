"""Who gets into an engine: rows and the queue for them, resumed calls, and the news of each decision."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.engine.admission import Admission
from antiphon.engine.decisions import AdmissionOutcome, Changes, EngineLoad, RefusedError
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.resuming import Resuming
from antiphon.engine.sessions import EngineSession, SessionHost
from antiphon.errors import AntiphonError, DrainingError, MovedError, ResumeError, SessionFailedError
from antiphon.ipc.resumption import ResumeClaim


class SessionManager:
    """Who has a row of an engine, waits for one, or resumes a call; any thread may use it.

    ``lost`` says why the model can no longer run, None while it can.
    """

    def __init__(
        self,
        admission: Admission[EngineSession],
        resuming: Resuming,
        *,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        nudge: Callable[[], None],
    ) -> None:
        """Begin without sessions; ``nudge`` wakes the engine thread."""
        self._admission, self._clock = admission, clock
        self._metrics, self._nudge = metrics, nudge
        self.resuming = resuming
        self.host = SessionHost(self.leave, self.place, self.keeps)
        self.lost: SessionFailedError | None = None

    def admit(self, session: EngineSession, wait_s: float) -> None:
        """Give a session a row, or a place in the queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: as ``Engine.session``.
        """
        self._check_not_lost()
        now_s = self._clock()
        self.settle(now_s, comers=1)
        try:
            outcome = self._admission.submit(session, now_s, wait_s)
        except RefusedError as error:
            self._metrics.admission(error.outcome)
            raise
        except DrainingError:
            self._check_not_lost()  # it may have been lost meanwhile: then no caller is admitted
            self._metrics.admission(AdmissionOutcome.DRAINING)
            raise
        self._metrics.admission(outcome)
        if outcome is AdmissionOutcome.QUEUED:
            self._nudge()  # the engine thread sleeps no longer than this caller waits
        if self.lost is not None:  # meanwhile, and too late for this session to be ended with the others
            session.end(self.lost)
        self._check_not_lost()

    def claim(self, session: EngineSession, claim: ResumeClaim) -> None:
        """Let a session have a call of another connection.

        Raises:
            ResumeError: there is no such call to resume.
            SessionFailedError: the device is lost.
        """
        self._check_not_lost()
        self.settle(self._clock())
        try:
            self.resuming.claim(session, claim)
        except ResumeError as error:
            self._metrics.resumption(error.reason)
            raise
        except MovedError:
            self._metrics.resumption("moved")
            raise

    def detach(self, session: EngineSession) -> None:
        """The connection is gone: the row waits for another where the call can be resumed; else it ends."""
        if not self.resuming.detach(session):
            session.end(ResumeError("unknown: the call cannot be resumed"))

    def check_room(self, wait_s: float) -> None:
        """Whether :meth:`admit` would take a caller now, one that waits so long; it admits and counts none.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: as it would.
        """
        self._check_not_lost()
        now_s = self._clock()
        self.settle(now_s)
        self._admission.check(now_s, wait_s)

    def load(self, now_s: float) -> EngineLoad:
        """Rows and queue now."""
        return self._admission.load(now_s)

    def settle(self, now_s: float, *, comers: int = 0) -> None:
        """Do what time brought; a detached call gives way to who waits, or to one of ``comers``."""
        if self.resuming.detached:
            load = self._admission.load(now_s)
            missing = load.queued + comers + load.active - load.slots
            for session, error in self.resuming.due(now_s, wanted=missing if load.queued or comers else 0):
                session.end(error)
        self._apply(self._admission.settle(now_s))

    def drain(self, *, keeps_detached: bool) -> None:
        """Admit no further caller; waiting ones get a DrainingError, and detached calls end unless kept."""
        if not keeps_detached:
            for session in self.resuming.drain():
                session.end(ResumeError("draining: the server is leaving"))
        for session in self._admission.drain():
            self._metrics.admission(AdmissionOutcome.DRAINING)
            session.end(DrainingError("the server is leaving; its queue is closed"))

    def end_all(self, error: AntiphonError) -> None:
        """End every session: detached, waiting and active ones."""
        for session in (*self.resuming.lose(), *self._admission.drain(), *self._admission.active()):
            session.end(error)

    def lose(self, error: SessionFailedError) -> None:
        """The model can no longer run: end everything, and admit nothing more."""
        self.lost = error
        self.end_all(error)

    # What sessions ask of their host.

    def leave(self, session: EngineSession) -> None:
        """A session has closed: its row, or its place in the queue, goes to the next."""
        self.resuming.forget(session)
        departure = self._admission.leave(session, self._clock())
        if departure.was_waiting:
            self._metrics.admission(AdmissionOutcome.LEFT)
        if departure.active_s is not None:
            self._metrics.session_seconds.observe(departure.active_s)
        self._apply(departure.changes)
        self._nudge()  # who still waits may now wait for late pressure alone, which the thread watches

    def place(self, session: EngineSession) -> tuple[int, int] | None:
        """How many callers wait before this one, and for how many seconds; None when it does not wait."""
        position = self._admission.position(session)
        return None if position is None else (position, self._admission.retry_after_s(session, self._clock()))

    def keeps(self, session: EngineSession) -> bool:
        """Whether the call of a session that closes is being resumed; then its front end lets go."""
        if not self.resuming.keeps(session):
            return False
        self.resuming.detach(session)
        return True

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise SessionFailedError(str(self.lost))

    def _apply(self, changes: Changes[EngineSession]) -> None:
        """Tell every session that a decision of admission concerns."""
        for session in changes.promoted:
            self._metrics.admission(AdmissionOutcome.PROMOTED)
            session.tell()
        for session, error in changes.expired:
            self._metrics.admission(AdmissionOutcome.EXPIRED)
            session.end(error)
        for session in changes.moved:
            session.tell()
