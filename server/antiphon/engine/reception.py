"""Who gets into an engine: rows and the queue for them, resumed calls, and the news of each decision."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.engine.admission import Admission
from antiphon.engine.decisions import AdmissionOutcome, Changes, EngineLoad, RefusedError
from antiphon.engine.guests import Guest
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.resuming import Resuming
from antiphon.errors import AntiphonError, DrainingError, MovedError, ResumeError, SessionFailedError
from antiphon.ipc.resumption import ResumeClaim


class Reception:
    """The host of an engine's guests (:class:`antiphon.engine.guests.Host`); any thread may use it.

    ``lost`` says why the model can no longer run, None while it can.
    """

    def __init__(
        self,
        admission: Admission[Guest],
        resuming: Resuming,
        *,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        nudge: Callable[[], None],
    ) -> None:
        """Begin without guests; ``nudge`` wakes the engine thread."""
        self._admission, self._clock = admission, clock
        self._metrics, self._nudge = metrics, nudge
        self.resuming = resuming
        self.lost: SessionFailedError | None = None

    def admit(self, guest: Guest, wait_s: float) -> None:
        """Give a guest a row, or a place in the queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: as ``Engine.submit``.
        """
        self._check_not_lost()
        now_s = self._clock()
        self.settle(now_s, comers=1)
        try:
            outcome = self._admission.submit(guest, now_s, wait_s)
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
            guest.end(self.lost)
        self._check_not_lost()

    def claim(self, guest: Guest, claim: ResumeClaim) -> None:
        """Let a guest have a call of another connection.

        Raises:
            ResumeError, SessionFailedError: as ``Engine.resume``.
        """
        self._check_not_lost()
        self.settle(self._clock())
        try:
            self.resuming.claim(guest, claim)
        except ResumeError as error:
            self._metrics.resumption(error.reason)
            raise
        except MovedError:
            self._metrics.resumption("moved")
            raise

    def detach(self, guest: Guest) -> None:
        """The connection is gone: the row waits for another where the call can be resumed; else it ends."""
        if not self.resuming.detach(guest):
            guest.end(ResumeError("unknown: the call cannot be resumed"))

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
            for guest, error in self.resuming.due(now_s, wanted=missing if load.queued or comers else 0):
                guest.end(error)
        self._apply(self._admission.settle(now_s))

    def drain(self, *, keeps_detached: bool) -> None:
        """Admit no further caller; waiting ones get a DrainingError, and detached calls end unless kept."""
        if not keeps_detached:
            for guest in self.resuming.drain():
                guest.end(ResumeError("draining: the server is leaving"))
        for guest in self._admission.drain():
            self._metrics.admission(AdmissionOutcome.DRAINING)
            guest.end(DrainingError("the server is leaving; its queue is closed"))

    def end_all(self, error: AntiphonError) -> None:
        """End every guest: detached, waiting and active ones."""
        for guest in (*self.resuming.lose(), *self._admission.drain(), *self._admission.active()):
            guest.end(error)

    def lose(self, error: SessionFailedError) -> None:
        """The model can no longer run: end everything, and admit nothing more."""
        self.lost = error
        self.end_all(error)

    # What guests ask of their host.

    def leave(self, guest: Guest) -> None:
        """A session has closed: its row, or its place in the queue, goes to the next."""
        self.resuming.forget(guest)
        departure = self._admission.leave(guest, self._clock())
        if departure.was_waiting:
            self._metrics.admission(AdmissionOutcome.LEFT)
        if departure.active_s is not None:
            self._metrics.session_seconds.observe(departure.active_s)
        self._apply(departure.changes)
        self._nudge()  # who still waits may now wait for late pressure alone, which the thread watches

    def place(self, guest: Guest) -> tuple[int, int] | None:
        """How many callers wait before this one, and for how many seconds; None when it does not wait."""
        position = self._admission.position(guest)
        return None if position is None else (position, self._admission.retry_after_s(guest, self._clock()))

    def keeps(self, guest: Guest) -> bool:
        """Whether the call of a guest that closes is being resumed; then its front end lets go."""
        if not self.resuming.keeps(guest):
            return False
        self.resuming.detach(guest)
        return True

    def _check_not_lost(self) -> None:
        if self.lost is not None:
            raise SessionFailedError(str(self.lost))

    def _apply(self, changes: Changes[Guest]) -> None:
        """Tell every guest that a decision of admission concerns."""
        for guest in changes.promoted:
            self._metrics.admission(AdmissionOutcome.PROMOTED)
            guest.tell()
        for guest, error in changes.expired:
            self._metrics.admission(AdmissionOutcome.EXPIRED)
            guest.end(error)
        for guest in changes.moved:
            guest.tell()
