"""Moves calls between workers: sends a call as bytes to another worker, or receives one.

To send a call, its connection releases the call and keeps the socket open; then the row is frozen and read.
The client gets the call's new address only when the other worker has the call. If the transfer fails, the
client gets the name of this worker and resumes the call here. Unless the refusal is final, the call is sent
once more after ``AGAIN_S``. Each direction handles one call at a time. The control thread decides; one thread
sends bytes, and one reads them.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from antiphon.backends.base import BackendInfo
from antiphon.engine.call_state import CallState, SavedState, StateIdentity, check_row_values, unpack_call
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pieces import as_refusal
from antiphon.engine.resumable_call import ResumableCall, ResumeState
from antiphon.engine.session_manager import SessionManager
from antiphon.engine.sessions import EngineSession
from antiphon.engine.values import SavedRow, SaveRow
from antiphon.errors import HandOverError, HandOverRefusedError, UnsupportedError
from antiphon.ipc.messages import CallNotice, Ended, Primed, SetParameters
from antiphon.log import Log

AGAIN_S: Final = 5.0
"""Seconds before the second and last attempt to send a call: the other worker may have a free row by then.
Each attempt makes the client reconnect.
"""

LET_GO_S: Final = 5.0
"""Seconds for a connection to release its call; after them its front end counts as stuck."""

LEAVING: Final = "this worker is shutting down, too"


@dataclass(frozen=True, slots=True)
class HandOverPlan:
    """The settings for moving calls between workers.

    ``post`` sends the bytes of a call to the worker at an address, and returns the worker's name or raises
    HandOverError. ``timeout_s`` bounds reading the state of one call from its row.
    """

    worker: str
    identity: StateIdentity
    post: Callable[[str, bytes], str]
    timeout_s: float


class _Delivery(NamedTuple):
    """The result of sending a call: its new worker, and its bytes."""

    worker: str
    size: int


@dataclass(eq=False, slots=True)
class _Sending:
    """The call that is being sent; ``save`` is set once its connection has released it."""

    call: ResumableCall
    is_last: bool
    began_s: float
    deadline_s: float
    save: SaveRow | None = None


class HandOver:
    """Moves the calls of one engine in both directions; used on the control thread only. ``do`` schedules a
    function on that thread."""

    def __init__(
        self,
        plan: HandOverPlan,
        sessions: SessionManager,
        info: BackendInfo,
        *,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        do: Callable[[Callable[[], None]], None],
    ) -> None:
        """Start idle."""
        self._plan, self._sessions, self._info = plan, sessions, info
        self._clock, self._metrics, self._do = clock, metrics, do
        self._target: str | None = None
        self._sending: _Sending | None = None
        self._due_s: dict[ResumableCall, float] = {}  # of calls that were tried; inf: not again
        self._posting = ThreadPoolExecutor(1, thread_name_prefix="antiphon-sending")
        self._taking = ThreadPoolExecutor(1, thread_name_prefix="antiphon-taking")
        self._log = Log(__name__)

    def begin(self, target: str) -> None:
        """Send every resumable call to the worker at ``target``, now or as soon as the call is resumable."""
        self._target = self._target or target

    def stop(self) -> None:
        """Start no further moves of calls."""
        self._target = None
        self._posting.shutdown(wait=False, cancel_futures=True)
        self._taking.shutdown(wait=False, cancel_futures=True)

    # Sending.

    @property
    def is_busy(self) -> bool:
        """Whether a call is being sent."""
        return self._sending is not None

    def settle(self) -> None:
        """Advance the call that is being sent, or begin the next, without waiting."""
        if self._target is None:
            return
        while self._sending is None and (call := self._next()) is not None:
            due_s = self._due_s.get(call, -math.inf)
            self._due_s[call] = math.inf
            now_s = self._clock()
            self._sending = _Sending(call, math.isfinite(due_s), now_s, now_s + LET_GO_S)
            try:
                self._sessions.resuming.begin_move(call)
            except Exception as error:  # a boundary: the next call may be sent
                self._keep(self._sending, error)
        if (sending := self._sending) is not None:
            self._advance(sending)

    def next_event_s(self) -> float:
        """The time of the next :meth:`settle`; infinite if there is none."""
        if self._target is None:
            return math.inf
        if self._sending is not None:
            return self._sending.deadline_s
        movable = self._sessions.resuming.movable()
        return min((self._due_s.get(call, -math.inf) for call in movable), default=math.inf)

    def _next(self) -> ResumableCall | None:
        """Return a call that was not tried, or whose second attempt is due."""
        now_s, movable = self._clock(), self._sessions.resuming.movable()
        return next((call for call in movable if self._due_s.get(call, -math.inf) <= now_s), None)

    def _advance(self, sending: _Sending) -> None:
        call, now_s = sending.call, self._clock()
        if call.state is not ResumeState.MOVING:  # it has ended meanwhile
            self._sending = None
            self.settle()
        elif sending.save is None and call.detached_s is not None:
            sending.deadline_s = now_s + self._plan.timeout_s
            sending.save = save = SaveRow(call.session.lease, is_leaving=True)
            save.result.add_done_callback(lambda it: self._do(partial(self._saved, sending, it)))
            self._sessions.post(save)
        elif now_s >= sending.deadline_s:
            what = "did not release it" if sending.save is None else "is not saved: its row was not read"
            limit_s = LET_GO_S if sending.save is None else self._plan.timeout_s
            self._keep(sending, HandOverError(f"its connection {what} within {limit_s:g} s"))
            self.settle()

    def _saved(self, sending: _Sending, saved: Future[SavedRow]) -> None:
        """Send the state of a call on a separate thread."""
        is_moving = sending.call.state is ResumeState.MOVING
        if self._sending is not sending or self._target is None or not is_moving:
            return
        try:
            row = saved.result()
            facts = sending.call.facts(row.used, has_new_parameters=row.has_new_parameters)
            sending.deadline_s = math.inf  # sending has its own time limit
            state, target = CallState(facts, row.arrays, row.lease), self._target
            sent = self._posting.submit(self._send, state, target)
        except Exception as error:  # a boundary: the next call may be sent
            self._keep(sending, error)
        else:
            sent.add_done_callback(lambda it: self._do(partial(self._sent, sending, it)))

    def _send(self, state: CallState, target: str) -> _Delivery:
        data = state.pack(self._plan.identity)
        return _Delivery(self._plan.post(target, data), len(data))

    def _sent(self, sending: _Sending, sent: Future[_Delivery]) -> None:
        if sent.cancelled():
            return
        if (error := sent.exception()) is not None:
            self._keep(sending, error)
            return
        worker, size = sent.result()
        if self._sending is sending:  # else the call has ended here meanwhile, and another is being sent
            self._sending = None
        seconds = round(self._clock() - sending.began_s, 3)
        for session, moved in self._sessions.resuming.end_move(sending.call, worker, is_gone=True):
            self._sessions.end(session, moved)
        self._metrics.hand_overs["sent"].inc()
        call = sending.call.call
        self._log.info("call handed over", session=call, worker=worker, bytes=size, seconds=seconds)

    def _keep(self, sending: _Sending, error: BaseException) -> None:
        """Keep the call here, and schedule a retry if it may succeed; no effect on an ended call."""
        if self._sending is not sending:
            return
        call, self._sending = sending.call, None
        is_final = sending.is_last or isinstance(error, HandOverRefusedError | UnsupportedError)
        if not is_final:
            self._due_s[call] = self._clock() + AGAIN_S
        self._metrics.hand_overs["failed"].inc()
        again = {} if is_final else {"again_in_s": AGAIN_S}
        self._log.warning(
            "call not handed over", session=call.call, reason=str(error) or repr(error), **again
        )
        self._sessions.resuming.end_move(call, self._plan.worker, is_gone=False)

    # Receiving.

    def take(self, read: Callable[[], bytes]) -> Future[None]:
        """Accept a call whose bytes ``read`` returns; the future is done when its client can resume it here.

        The future raises UnsupportedError for the state of another model or backend, ServerFullError,
        DrainingError or SessionFailedError if the call gets no row, and HandOverError.
        """
        arrived: Future[None] = Future()
        arrived.add_done_callback(self._count_taken)
        try:
            reading = self._taking.submit(self.read, read, arrived)
            reading.add_done_callback(partial(self._refuse_unread, arrived))
        except RuntimeError:  # after stop()
            arrived.set_exception(HandOverError(LEAVING))
        return arrived

    def _refuse_unread(self, arrived: Future[None], reading: Future[None]) -> None:
        if reading.cancelled() and arrived.set_running_or_notify_cancel():  # by stop(), before it began
            arrived.set_exception(HandOverError(LEAVING))

    def read(self, read: Callable[[], bytes], arrived: Future[None]) -> None:
        """Read a call on a separate thread, then admit it on the control thread."""
        if not arrived.set_running_or_notify_cancel():  # the sender no longer waits
            return
        try:
            state = unpack_call(read(), self._plan.identity)
            if not state.row:
                raise HandOverError("the call has no row state")
            check_row_values(state.row, self._info.spec)
        except Exception as error:  # a boundary: the error goes to the sender of the call
            arrived.set_exception(as_refusal(error))
        else:
            self._do(partial(self._admit, state, arrived))

    def _admit(self, state: CallState, arrived: Future[None]) -> None:
        facts, samples = state.facts, self._info.spec.frame_samples
        prompt = SavedState(state.row, lease=state.lease)
        pool = self._sessions.leases.roomiest()
        session = EngineSession(secrets.token_hex(8), facts.parameters, samples, pool=pool, prompt=prompt)

        def receive(notice: CallNotice) -> None:
            match notice:
                case Primed():
                    self._arrive(session, state, arrived)
                case Ended(_, error) if not arrived.done():  # the row could not load this state
                    arrived.set_exception(error)

        session.send = receive
        try:
            self._sessions.admit(session, 0.0)
        except Exception as error:  # a boundary: the error goes to the sender of the call
            arrived.set_exception(as_refusal(error))

    def _arrive(self, session: EngineSession, state: CallState, arrived: Future[None]) -> None:
        """Make a call resumable, whose row has its state and whose lease has the rest."""
        session.orphan()
        session.has_state = True
        try:
            if state.facts.has_new_parameters:
                self._sessions.pass_on(session, SetParameters(session.id, 0, state.facts.parameters))
            self._sessions.resuming.arrive(session, state.facts, session.came)
        except Exception as error:  # a boundary: a bad state from another worker ends no other call
            self._sessions.close(session)
            arrived.set_exception(as_refusal(error))
        else:
            arrived.set_result(None)

    def _count_taken(self, arrived: Future[None]) -> None:
        is_taken = not arrived.cancelled() and arrived.exception() is None
        self._metrics.hand_overs["taken" if is_taken else "refused"].inc()
