"""Calls that change their worker: sent to another one as bytes, or taken from one.

A call that is sent is first let go by its connection, whose socket stays; then its row is frozen and read.
Its client hears where the call is only when the other worker has it. Where that fails the client hears the
name of this worker, and resumes the call here; unless the refusal is final, the call is sent once more after
``AGAIN_S``. Each direction has one thread, so one call at a time.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from antiphon.backends.base import BackendInfo, HostArray
from antiphon.engine.call_state import CallFacts, CallState, unpack_call
from antiphon.engine.lease_state import copy_in, copy_out
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.resumable_call import ResumableCall
from antiphon.engine.resuming import Resuming
from antiphon.engine.row_state import SavedState, StateIdentity
from antiphon.engine.row_values import check_row_values
from antiphon.engine.rows import Rows
from antiphon.engine.saving import Beside
from antiphon.engine.session_manager import SessionManager
from antiphon.engine.sessions import EngineSession, no_notices
from antiphon.errors import AntiphonError, HandOverError, HandOverRefusedError, UnsupportedError
from antiphon.ipc.messages import CallNotice, Ended, Primed
from antiphon.log import Log
from antiphon.models.sampling import SamplingParameters

LOOK_S: Final = 0.05
"""How often calls are looked for that can be sent."""

AGAIN_S: Final = 5.0
"""Until a call is sent for the second and last time: by then a row may be free there. Each time costs its
client a reconnection."""

LET_GO_S: Final = 5.0
"""For a connection to let its call go; its front end is stuck after that."""

BESIDE: Final = "beside/"


@dataclass(frozen=True, slots=True)
class HandOverPlan:
    """How calls leave this worker and come here.

    ``post`` sends the bytes of a call to the worker at an address and returns that worker's name; it raises
    HandOverError. ``timeout_s`` is for the state of one call to leave its row.
    """

    worker: str
    identity: StateIdentity
    post: Callable[[str, bytes], str]
    timeout_s: float


class HandOverHost(Protocol):
    """The engine, as far as it is needed here."""

    clock: Callable[[], float]
    metrics: EngineMetrics
    rows: Rows
    sessions: SessionManager
    resuming: Resuming

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""
        ...

    def session(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        send: Callable[[CallNotice], None],
        pool: int | None = None,
        prompt: SavedState | None = None,
    ) -> EngineSession:
        """The engine's half of a session."""
        ...

    def save(self, session: EngineSession, beside: Beside) -> Future[dict[str, HostArray]]:
        """The state of its row, with what lies beside it."""
        ...


class IncomingCall:
    """The front end of a call that comes: it has arrived when its row has its state."""

    def __init__(
        self, host: HandOverHost, session: EngineSession, state: CallState, arrived: Future[None]
    ) -> None:
        """Wait for the row."""
        self._host, self._guest, self._state, self._arrived = host, session, state, arrived

    def handle(self, notice: CallNotice) -> None:
        """Take what the engine says of the call."""
        match notice:
            case Primed():
                self._arrive()
            case Ended(_, error) if not self._arrived.done():  # the row could not have this state
                self._arrived.set_exception(error)

    def _arrive(self) -> None:
        """On the engine thread, between two ticks: put what lay beside the row where it belongs."""
        host, session, facts = self._host, self._guest, self._state.facts
        session.orphan()
        try:
            assert session.lease is not None
            lm = host.info.spec.lm
            tokens = 0 if lm is None else lm.text_card
            copy_in(host.rows.arena, session.lease, self._state.lease, host.clock(), tokens=tokens)
            session.freeze(is_frozen=True)
            if facts.has_new_parameters:
                session.set_parameters(facts.parameters)
            host.resuming.arrive(session, facts)
        except Exception as error:  # a boundary: what another worker says harms no tick
            session.close()
            self._arrived.set_exception(as_refusal(error))
        else:
            self._arrived.set_result(None)


class HandingOver:
    """Both directions, for one engine."""

    def __init__(self, host: HandOverHost, plan: HandOverPlan) -> None:
        """Send nothing yet."""
        self._host, self._plan = host, plan
        self._is_stopped = threading.Event()
        self._sending: threading.Thread | None = None
        self._due_s: dict[ResumableCall, float] = {}  # of calls that were tried; inf: not again
        self._taking = ThreadPoolExecutor(1, thread_name_prefix="antiphon-taking")
        self._log = Log(__name__)

    def begin(self, target: str) -> None:
        """Send every call that can be resumed to the worker at ``target``, now or as soon as it can be."""
        if self._sending is None:
            sending = threading.Thread(
                target=self._send_all, args=(target,), name="antiphon-sending", daemon=True
            )
            sending.start()
            self._sending = sending

    def stop(self) -> None:
        """Begin nothing any more."""
        self._is_stopped.set()
        self._taking.shutdown(wait=False, cancel_futures=True)

    def take(self, read: Callable[[], bytes]) -> Future[None]:
        """Take a call whose bytes ``read`` returns; done when its client can resume it here.

        The future raises UnsupportedError for the state of another model or backend, ServerFullError,
        DrainingError or SessionFailedError where there is no row, and HandOverError.
        """
        arrived: Future[None] = Future()
        arrived.add_done_callback(self._count_taken)
        try:
            self._taking.submit(self._take, read, arrived)
        except RuntimeError:  # after stop()
            arrived.set_exception(HandOverError("this worker is leaving too"))
        return arrived

    def _take(self, read: Callable[[], bytes], arrived: Future[None]) -> None:
        if not arrived.set_running_or_notify_cancel():  # its sender waits no more; later none cancels it
            return
        try:
            state = unpack_call(read(), self._plan.identity)
            if not state.row:
                raise HandOverError("the call has no state of a row")
            host = self._host
            check_row_values(state.row, host.info.spec)
            session = host.session(
                secrets.token_hex(8), state.facts.parameters, send=no_notices, prompt=SavedState(state.row)
            )
            session.send = IncomingCall(host, session, state, arrived).handle
            host.sessions.admit(session, 0.0)
        except Exception as error:  # a boundary: it goes to who sent the call
            if not arrived.done():
                arrived.set_exception(as_refusal(error))

    def _count_taken(self, arrived: Future[None]) -> None:
        is_taken = not arrived.cancelled() and arrived.exception() is None
        self._host.metrics.hand_over("taken" if is_taken else "refused")

    def _send_all(self, target: str) -> None:
        while not self._is_stopped.wait(LOOK_S):
            try:
                self._send_due(target)
            except Exception as error:  # a boundary: one call harms no other
                self._log.error("a call could not be handed over", exc_info=error)

    def _send_due(self, target: str) -> None:
        """Send the calls that were not tried, and once more those whose time has come."""
        for call in self._host.resuming.movable():
            due_s = self._due_s.get(call, -math.inf)
            if self._is_stopped.is_set() or self._host.clock() < due_s:
                continue
            self._due_s[call] = math.inf
            try:
                is_done = self._send(call, target)
            except Exception as error:  # a boundary: the next call may go
                self._keep(call, error, is_last=math.isfinite(due_s))
            else:
                if not is_done:
                    self._due_s[call] = due_s

    def _send(self, call: ResumableCall, target: str) -> bool:
        """Send a call; false where it is on its way to another connection."""
        host, began_s = self._host, self._host.clock()
        if not host.resuming.begin_move(call):
            return False
        data = self._state_of(call).pack(self._plan.identity)
        worker = self._plan.post(target, data)
        host.resuming.end_move(call, worker, is_gone=True)
        host.metrics.hand_over("sent")
        seconds = round(host.clock() - began_s, 3)
        self._log.info("call handed over", session=call.call, worker=worker, bytes=len(data), seconds=seconds)
        return True

    def _keep(self, call: ResumableCall, error: Exception, *, is_last: bool) -> None:
        """The call goes on here, and is sent again where that may help."""
        is_final = is_last or isinstance(error, HandOverRefusedError | UnsupportedError)
        if not is_final:
            self._due_s[call] = self._host.clock() + AGAIN_S
        self._host.metrics.hand_over("failed")
        again = {} if is_final else {"again_in_s": AGAIN_S}
        self._log.warning(
            "call not handed over", session=call.call, reason=str(error) or repr(error), **again
        )
        self._host.resuming.end_move(call, self._plan.worker, is_gone=False)

    def _state_of(self, call: ResumableCall) -> CallState:
        host, session = self._host, call.session
        if not call.has_let_go.wait(LET_GO_S):
            raise HandOverError(f"its connection did not let it go within {LET_GO_S:g} s")
        facts: list[CallFacts] = []

        def beside(lease: int) -> Mapping[str, NDArray[Any]]:
            facts.append(call.facts(host.rows.used(lease)))
            found = copy_out(host.rows.arena, lease, host.clock())
            return {BESIDE + name: array for name, array in found.items()}

        arrays = host.save(session, beside).result(self._plan.timeout_s)
        lease = {name.removeprefix(BESIDE): it for name, it in arrays.items() if name.startswith(BESIDE)}
        row = {name: it for name, it in arrays.items() if not name.startswith(BESIDE)}
        return CallState(facts[0], row, lease)


def as_refusal(error: Exception) -> AntiphonError:
    """What another worker is told."""
    if isinstance(error, AntiphonError):
        return error
    Log(__name__).error("a call could not be taken", exc_info=error)
    return HandOverError(f"the call could not be taken: {error!r}")
