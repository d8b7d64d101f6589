"""Calls that outlive their connections: a detached call keeps its row, and another connection takes it over.

A front end arms a call with the hash of a token, notes every numbered message before it is sent, and
detaches the call when its connection breaks. The row then takes no step. A front end that shows the token
gets a lease of its own pool: between two ticks the engine thread copies the old lease into it and gives it
the row. Where the old connection still seems to stand, its front end first lets the session go; by then all
that it noted is known, and nothing that it does later has an effect.

The former token stays good until the client acknowledges something on its new connection: the answer with
the new one may be lost with that connection too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from antiphon.engine.call_state import CallFacts
from antiphon.engine.resumable_call import MOVED, ResumableCall, ResumeState, call_of, replaced, too_late
from antiphon.engine.resume_keys import ResumeKeys
from antiphon.engine.rows import FramesUsed, Rows
from antiphon.engine.sessions import EngineSession
from antiphon.errors import HandOverError, MovedError, ProtocolError, ResumeError, ServerFullError
from antiphon.ipc.messages import Ended, Moving, Resumed
from antiphon.ipc.resumption import Note, ResumeClaim, Resumption

MAX_NOTES: Final = 512
"""A client acknowledges each second, in which a model says some twenty pieces of words."""

MAX_NOTES_BYTES: Final = 65_536
"""So that a resumption fits into one message of the seam."""

LOOK_S: Final = 1.0
"""How often the time is looked at while a call is detached."""


class _Handover(NamedTuple):
    """A row that is to be moved, from one lease to another."""

    session: EngineSession
    successor: EngineSession
    claim: ResumeClaim
    source: int
    target: int


class Resuming:
    """The resumable calls of one engine; any thread may ask, the engine thread alone moves rows."""

    def __init__(
        self,
        rows: Rows,
        *,
        window_s: float,
        yield_s: float,
        clock: Callable[[], float],
        nudge: Callable[[], None],
        swap: Callable[[EngineSession, EngineSession], None],
        resumed: Callable[[], None],
    ) -> None:
        """Begin without calls; ``swap`` tells admission that a session stands for another from now on.

        ``resumed`` is called whenever a call has gone over to another connection.
        """
        self._rows, self._clock, self._nudge = rows, clock, nudge
        self._swap, self._resumed = swap, resumed
        self.window_s, self._yield_s = window_s, yield_s
        self._keys = ResumeKeys(window_s)
        self._detached: dict[ResumableCall, None] = {}  # in the order of their times
        self._claimed: deque[ResumableCall] = deque()
        self._is_draining = False
        self._lock = threading.Lock()  # for these tables alone: nothing is called under it

    @property
    def detached(self) -> int:
        """Calls without a connection."""
        return len(self._detached)

    # What a front end says of a call.

    def arm(self, session: EngineSession, key: bytes, owner: str) -> None:
        """From now on the call can be resumed with the token that hashes to ``key``.

        Raises:
            ProtocolError: it has a token, or another call has this one.
        """
        with self._lock:
            if session.resumable is not None or key in self._keys:
                raise ProtocolError(f"call {session.id} can be resumed already, or its token is another's")
            session.resumable = call = ResumableCall(session, key, owner, session.id)
            self._keys.add(call)

    def note(self, session: EngineSession, notes: tuple[Note, ...], told_frame: int) -> None:
        """Messages are about to be sent, and with them the text of replies to frames below ``told_frame``."""
        call = call_of(session)
        if call is None or call.session is not session or call.has_let_go.is_set():
            return
        successor = None
        with self._lock:
            call.notes.extend(notes)
            call.notes_bytes += sum(len(data) for _, data in notes)
            call.told_frame = max(call.told_frame, told_frame)
            if notes:
                call.next_seq = notes[-1][0] + 1
            if _is_full(call):
                successor = self._forget(call, "unknown")
        if successor is not None:
            successor.end(too_late())

    def acknowledge(self, session: EngineSession, seq: int) -> None:
        """The client has got so much, and its new token."""
        call = call_of(session)
        if call is None or call.session is not session:
            return
        with self._lock:
            call.drop_until(seq)
            self._keys.drop_former(call)

    def detach(self, session: EngineSession) -> bool:
        """The connection is gone: the row waits. False where the call cannot be resumed."""
        call = call_of(session)
        with self._lock:
            if call is None or call.session is not session or (self._is_draining and call.successor is None):
                return False
            call.is_leaving = False
            if call.detached_s is None:
                call.detached_s = self._clock()
                self._detached[call] = None
            if call.state is ResumeState.ATTACHED:
                call.enter(ResumeState.DETACHED)
            call.has_let_go.set()
            if call.successor is not None:
                self._claimed.append(call)
        session.freeze(is_frozen=True)
        self._nudge()
        return True

    def keeps(self, session: EngineSession) -> bool:
        """Whether the row is not the session's to give back: the call has a successor, or had one."""
        call = call_of(session)
        if call is None or call.successor is session:
            return False
        is_left = call.is_leaving and not self._is_draining  # for a successor that is gone: the next has it
        is_wanted = call.state in (ResumeState.CLAIMED, ResumeState.MOVING)
        return call.session is not session or is_wanted or is_left

    def forget(self, session: EngineSession, reason: str = "unknown") -> None:
        """The session has ended, and with it its call, unless it was a successor that came to nothing."""
        call, successor = call_of(session), None
        with self._lock:
            if call is None:
                return
            if call.successor is session:
                call.successor = call.claim = None
                if call.state is ResumeState.CLAIMED:
                    call.settle()
            elif call.session is session:
                successor = self._forget(call, reason)
        if successor is not None:
            successor.end(too_late())

    def lose(self) -> tuple[EngineSession, ...]:
        """No row takes a step any more: no call goes on. Returns the sessions that waited for one."""
        with self._lock:
            successors = [self._forget(call, "unknown") for call in self._keys.calls]
        return tuple(successor for successor in successors if successor is not None)

    # What one asks who comes back.

    def claim(self, successor: EngineSession, claim: ResumeClaim) -> None:
        """Let a session have a call, soon: it is sent ``Resumed`` and then ``Admitted``.

        Raises:
            ResumeError: there is no such call, or not for this client; the message says why.
            ServerFullError: the successor's pool has no lease.
        """
        with self._lock:
            if self._is_draining:
                raise ResumeError("draining: the server is leaving")
            call = self._keys.find(claim)
            if not successor.take_lease():
                raise ServerFullError(
                    "every place of this front end is taken; try again in 1 s", retry_after_s=1
                )
            call.successor, call.claim, successor.resumable = successor, claim, call
            if call.state is not ResumeState.MOVING:
                call.settle()
            is_detached = call.detached_s is not None
            call.is_leaving = not is_detached
            if is_detached:
                self._claimed.append(call)
        if is_detached:
            self._nudge()
        else:
            call.session.send(Ended(call.session.id, replaced()))  # which lets go, in its own time

    # What time brings.

    def drain(self) -> tuple[EngineSession, ...]:
        """Nothing is resumed from now on; returns the sessions that are detached, for their end."""
        with self._lock:
            self._is_draining = True
            return tuple(call.session for call in self._detached if call.successor is None)

    def next_event_s(self, now_s: float) -> float | None:
        """When to look again; None while no call is detached."""
        return now_s + LOOK_S if self._detached else None

    def due(self, now_s: float, *, wanted: int) -> list[tuple[EngineSession, ResumeError]]:
        """Sessions that have been detached for too long, for their end.

        So have those detached longer than ``yield_s``, the oldest first, while ``wanted`` rows are missing.
        """
        if not self._detached:
            return []
        ending: list[tuple[EngineSession, ResumeError]] = []
        with self._lock:
            for call in tuple(self._detached):
                if call.state is not ResumeState.DETACHED:
                    continue
                away_s = now_s - (call.detached_s or now_s)
                is_over = away_s >= self.window_s
                if is_over or (away_s >= self._yield_s and len(ending) < wanted):
                    why = "" if is_over else ", and a caller waits for its row"
                    error = ResumeError(f"expired: no connection for {away_s:.1f} s{why}")
                    ending.append((call.session, error))
                    self._forget(call, "expired")
        return ending

    def advance(self) -> None:
        """Between two ticks, on the engine thread: give successors what they wait for."""
        for _ in range(len(self._claimed)):
            with self._lock:
                call = self._claimed.popleft()
                handover = self._handover(call)
                if handover is not None:
                    self._hand_over(call, handover.successor, handover.claim)
            if handover is not None:
                self._move(call, handover)

    def _handover(self, call: ResumableCall) -> _Handover | None:
        """What is to be moved now; None where that is over, or comes after the next tick."""
        successor, claim, source = call.successor, call.claim, call.session.lease
        if call.state is not ResumeState.CLAIMED or successor is None or claim is None:
            return None
        if successor.lease is None or source is None:
            return None
        if not (self._rows.is_attached(source) and self._rows.is_attached(successor.lease)):
            self._claimed.append(call)  # taken since the engine thread looked at leases
            self._nudge()
            return None
        return _Handover(call.session, successor, claim, source, successor.lease)

    def _hand_over(self, call: ResumableCall, successor: EngineSession, claim: ResumeClaim) -> None:
        self._keys.renew(call, claim)
        call.drop_until(claim.seq)
        call.session, call.successor, call.claim, call.detached_s = successor, None, None, None
        call.is_leaving, call.is_changing = False, True
        call.has_let_go.clear()
        self._detached.pop(call, None)

    def _move(self, call: ResumableCall, handover: _Handover) -> None:
        session, successor, claim, source, target = handover
        unrecorded = call.use(self._rows.used(source), session)
        replay_from = self._rows.move(source, target, claim.frame, call.told_frame, claim.replay_frames)
        replayed = call.given - self._rows.used(target).given
        self._swap(session, successor)
        parameters = successor.inherit(session)
        session.send(Ended(session.id, replaced()))
        notes, next_seq = tuple(call.notes), call.next_seq
        resumption = Resumption(
            *(call.call, parameters, notes, next_seq, call.told_frame, replay_from, replayed), *unrecorded
        )
        successor.send(Resumed(successor.id, resumption))
        successor.announce(target)
        with self._lock:
            call.is_changing = False  # until now a connection that broke could not give the row back
            call.settle()
        self._resumed()
        self._nudge()

    # Going to another worker, and coming from one.

    def movable(self) -> tuple[ResumableCall, ...]:
        """The calls whose row holds something that another worker can have."""
        with self._lock:
            calls = self._keys.calls
        leases = [call.session.lease for call in calls]
        return tuple(
            call
            for call, lease in zip(calls, leases, strict=True)
            if lease is not None and self._rows.is_attached(lease) and not self._rows.is_fresh(lease)
        )

    def begin_move(self, call: ResumableCall) -> bool:
        """Have a call let go for another worker; false where it has ended, or is being resumed.

        Its row is frozen once it ``has_let_go``. It is resumed by no one before :meth:`end_move`.
        """
        with self._lock:
            if call.state not in (ResumeState.ATTACHED, ResumeState.DETACHED):
                return False
            call.enter(ResumeState.MOVING)
            is_connected = call.is_leaving = call.detached_s is None
        if is_connected:
            call.session.send(Moving(call.session.id))
        return True

    def end_move(self, call: ResumableCall, worker: str, *, is_gone: bool) -> None:
        """The call can be resumed at ``worker``: at another one when it ``is_gone``, else here, as before."""
        error = MovedError(f"{worker}: the call goes on at this worker")
        with self._lock:
            if call.state is not ResumeState.MOVING:  # it has ended meanwhile
                return
            session, successor = call.session, None
            if is_gone:
                successor = self._forget(call, MOVED + worker)
            else:
                call.is_leaving = True
                call.detached_s = call.detached_s and self._clock()
                call.settle()
                if call.successor is not None:
                    self._claimed.append(call)
        if is_gone:
            session.end(error)
        else:
            session.send(Ended(session.id, error))  # which lets go, as for a successor
        if successor is not None:
            successor.end(error)
        self._nudge()

    def arrive(self, session: EngineSession, facts: CallFacts) -> None:
        """A session has the row of a call that another worker had; it waits for its connection.

        Raises:
            HandOverError: the call is, or was, here already, or this server is leaving.
        """
        with self._lock:
            key, *former = facts.keys
            if self._is_draining:
                raise HandOverError("this worker is leaving too")
            if self._keys.was_here(key):
                raise HandOverError("this worker has this call already, or had it")
            call = ResumableCall(session, key, facts.owner, facts.call, former_key=next(iter(former), None))
            call.notes.extend(facts.notes)
            call.notes_bytes = sum(len(data) for _, data in facts.notes)
            if _is_full(call):
                raise HandOverError(f"{len(call.notes)} messages were not acknowledged, too many for here")
            call.next_seq, call.told_frame = facts.next_seq, facts.told_frame
            call.detached_s, call.state = self._clock(), ResumeState.DETACHED
            call.has_let_go.set()
            assert session.lease is not None
            came = self._rows.used(session.lease).came
            call.recorded = FramesUsed(min(facts.recorded_in, came), facts.recorded_out)
            call.given = facts.given
            self._detached[call] = None
            session.resumable = call
            self._keys.add(call)

    def _forget(self, call: ResumableCall, reason: str) -> EngineSession | None:
        """The call cannot be resumed from now on; returns the successor that waited for it, for its end."""
        call.enter(ResumeState.GONE)
        self._keys.give_up(call, reason)
        self._detached.pop(call, None)
        call.session.resumable = None
        successor, call.successor, call.claim = call.successor, None, None
        if successor is not None:
            successor.resumable = None
        return successor


def _is_full(call: ResumableCall) -> bool:
    """Whether more waits to be acknowledged than is kept."""
    return len(call.notes) > MAX_NOTES or call.notes_bytes > MAX_NOTES_BYTES
