"""Keeps calls whose connections have broken, so that other connections can resume them. A detached call keeps
its row until another connection resumes it.

A front end makes a call resumable by registering the hash of a token. It stores every numbered message in the
engine before it sends the message, and detaches the call when its connection breaks. The row then takes no
step. A front end that presents the token gets a lease from its own pool. Between two ticks the engine thread
copies the old lease into the new one and attaches the row to it. If the old connection still appears to be
open, its front end first releases the session. The engine then has all messages of that front end, and
ignores later ones.

The former token remains valid until the client acknowledges a message on its new connection, because that
connection may break too before the client has the new token.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from antiphon.engine.call_state import CallFacts
from antiphon.engine.resumable_call import (
    MOVED,
    ResumableCall,
    ResumeState,
    ResumeTokens,
    call_of,
    replaced,
)
from antiphon.engine.sessions import EngineSession
from antiphon.engine.values import Change, FramesUsed, FreezeRow, MoveRow, RowMoved
from antiphon.errors import HandOverError, MovedError, ProtocolError, ResumeError, ServerFullError
from antiphon.ipc.messages import Ended, Moving, Noted
from antiphon.ipc.values import ResumeClaim, Resumption

MAX_NOTES: Final = 512
"""Limit on unacknowledged messages. A client acknowledges once a second, after about twenty pieces of text.
"""

MAX_NOTES_BYTES: Final = 65_536
"""Limit on the bytes of notes, so that a resumption fits into one message."""


class _Handover(NamedTuple):
    """A row that is moving from one session's lease to another's."""

    call: ResumableCall
    session: EngineSession
    successor: EngineSession


class Resuming:
    """The resumable calls of one engine; used on the control thread only."""

    def __init__(
        self,
        *,
        window_s: float,
        yield_s: float,
        clock: Callable[[], float],
        post: Callable[[Change], None],
        assign_lease: Callable[[EngineSession], bool],
    ) -> None:
        """Start without calls; ``post`` sends a change to the engine thread.

        ``assign_lease`` gives a session a lease without a row, and returns false if none is free.
        """
        self._clock, self._post, self._assign_lease = clock, post, assign_lease
        self.window_s, self._yield_s = window_s, yield_s
        self._tokens = ResumeTokens(window_s)
        self._detached: dict[ResumableCall, None] = {}  # in the order in which they lost their connections
        self._under_way: deque[_Handover] = deque()
        self._is_draining = False

    @property
    def detached(self) -> int:
        """The number of calls without a connection."""
        return len(self._detached)

    def is_succeeded(self, session: EngineSession) -> bool:
        """Whether the session's row is moving to another session; this session closes after the move."""
        return any(it.session is session for it in self._under_way)

    def is_detached(self, session: EngineSession) -> bool:
        """Whether the session's call has no connection."""
        call = call_of(session)
        return call is not None and call.detached_s is not None

    # From the front end of a call.

    def arm(self, session: EngineSession, key: bytes, owner: str) -> None:
        """Let the token that hashes to ``key`` resume the call.

        Raises:
            ProtocolError: the call already has a token, or another call has this token.
        """
        if session.is_closed:
            return
        if session.resumable is not None or key in self._tokens:
            raise ProtocolError(
                f"call {session.id} is resumable already, or its token belongs to another call"
            )
        session.resumable = call = ResumableCall(session, key, owner, session.id)
        self._tokens.add(call)

    def note(self, session: EngineSession, noted: Noted) -> EngineSession | None:
        """Store messages before they are sent, with the text of replies to some frames.

        If the call can no longer be resumed, return the session that waited for it and must end.
        """
        call = call_of(session)
        if call is None or call.session is not session or call.detached_s is not None:
            return None
        call.kept = noted.kept
        call.notes.extend(noted.notes)
        call.notes_bytes += sum(len(data) for _, data in noted.notes)
        call.text_frame = max(call.text_frame, noted.text_frame)
        if noted.notes:
            call.next_seq = noted.notes[-1][0] + 1
        return self._forget(call, "unknown") if _is_full(call) else None

    def acknowledge(self, session: EngineSession, seq: int) -> None:
        """Apply the client's acknowledgement of messages, and of its new token."""
        call = call_of(session)
        if call is not None and call.session is session:
            call.drop_until(seq)
            self._tokens.drop_former(call)

    def detach(self, session: EngineSession) -> bool:
        """Detach the call of a connection that has ended: its row waits. Return false if the call cannot be
        resumed.
        """
        call = call_of(session)
        if call is None or call.session is not session or (self._is_draining and call.successor is None):
            return False
        call.is_leaving = False
        if call.detached_s is None:
            call.detached_s = self._clock()
            self._detached[call] = None
            if session.lease is not None:
                self._post(FreezeRow(session.lease))
        if call.state is ResumeState.ATTACHED:
            call.enter(ResumeState.DETACHED)
        self._hand_over(call)
        return True

    def keeps(self, session: EngineSession) -> bool:
        """Whether another session has or had the row, in which case this session must not free it."""
        call = call_of(session)
        if call is None or call.successor is session:
            return False
        is_left = call.is_leaving and not self._is_draining  # the successor is gone: the next has it
        is_wanted = call.state in (ResumeState.CLAIMED, ResumeState.MOVING)
        return call.session is not session or is_wanted or is_left

    def forget(self, session: EngineSession) -> EngineSession | None:
        """Remove an ended session and its call; the call stays if the session only waited for it.

        Returns the session that waited for the call and must end.
        """
        call = call_of(session)
        if call is None:
            return None
        if call.successor is session:
            call.successor = call.claim = None
            if call.state is ResumeState.CLAIMED:
                call.settle()
            return None
        return self._forget(call, "unknown") if call.session is session else None

    def lose(self) -> list[EngineSession]:
        """Make all calls impossible to resume, because no row takes another step. Returns the sessions that
        waited to resume a call, which must end.
        """
        under_way = [it.successor for it in self._under_way]
        successors = [self._forget(call, "unknown") for call in self._tokens.calls]
        return under_way + [successor for successor in successors if successor is not None]

    # From a client that resumes a call.

    def claim(self, successor: EngineSession, claim: ResumeClaim) -> None:
        """Request a call for a session, which is sent ``Resumed`` and then ``Admitted``.

        Raises:
            ResumeError, MovedError: the call does not exist, or belongs to another client; the message
                has the reason.
            ServerFullError: the successor's pool has no lease.
        """
        if self._is_draining:
            raise ResumeError("draining: the server is shutting down")
        call = self._tokens.find(claim)
        if not self._assign_lease(successor):
            raise ServerFullError(
                "every place of this front end is in use; try again in 1 s", retry_after_s=1
            )
        call.successor, call.claim, successor.resumable = successor, claim, call
        if call.state is not ResumeState.MOVING:
            call.settle()
        call.is_leaving = call.detached_s is None
        if call.is_leaving:
            call.session.send(Ended(call.session.id, replaced()))  # it releases the call later
        else:
            self._hand_over(call)

    def _hand_over(self, call: ResumableCall) -> None:
        """Have the engine thread move the row of a released call, if another session waits for it."""
        session, successor, claim = call.session, call.successor, call.claim
        if call.state is not ResumeState.CLAIMED or successor is None or claim is None:
            return
        source, target = session.lease, successor.lease
        assert source is not None
        assert target is not None
        self._tokens.renew(call, claim)
        call.drop_until(claim.seq)
        call.session, call.successor, call.claim, call.detached_s = successor, None, None, None
        call.is_leaving, call.is_changing, successor.is_attached = False, True, True
        self._detached.pop(call, None)
        self._under_way.append(_Handover(call, session, successor))
        self._post(
            MoveRow(source, target, successor.entry, claim.frame, call.text_frame, claim.replay_frames)
        )

    def moving_from(self, lease: int) -> EngineSession | None:
        """The newest session of the call whose row is moving away from ``lease``; None if there is no such
        call.
        """
        return next((it.call.session for it in self._under_way if it.session.lease == lease), None)

    def moved(self, moved: RowMoved) -> tuple[EngineSession, EngineSession, Resumption]:
        """Complete the move of a row to another lease; returns both sessions and the message for the new
        one."""
        call, session, successor = self._under_way.popleft()
        unrecorded = call.use(moved.used, session)
        replayed = call.given - moved.given
        successor.parameters, successor.has_state = session.parameters, session.has_state
        resumption = Resumption(
            *(call.call, session.parameters, tuple(call.notes), call.next_seq, call.text_frame),
            *(moved.replay_from, call.kept, replayed, *unrecorded),
        )
        # Until now a broken connection could not give the row back.
        call.is_changing = any(it.call is call for it in self._under_way)
        call.settle()
        return session, successor, resumption

    # Timeouts.

    def drain(self) -> tuple[EngineSession, ...]:
        """Stop resumption; returns the detached sessions, which must end."""
        self._is_draining = True
        return tuple(call.session for call in self._detached if call.successor is None)

    def next_event_s(self, *, is_wanted: bool) -> float:
        """The time at which the next detached call expires; it is earlier with ``is_wanted``, when a caller
        waits for a row.
        """
        after_s = min(self.window_s, self._yield_s) if is_wanted else self.window_s
        times_s = (
            call.detached_s + after_s
            for call in self._detached
            if call.detached_s is not None and call.state is ResumeState.DETACHED
        )
        return min(times_s, default=math.inf)

    def due(self, now_s: float, *, wanted: int) -> list[tuple[EngineSession, ResumeError]]:
        """Detached sessions that must end because they have expired.

        While ``wanted`` rows are missing, sessions that are detached for longer than ``yield_s`` must end
        too, the oldest first.
        """
        ending: list[tuple[EngineSession, ResumeError]] = []
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

    # Moving to another worker, and from one.

    def movable(self) -> list[ResumableCall]:
        """The calls that another worker can take: their row has state, and they are not being resumed."""
        return [
            call
            for call in self._tokens.calls
            if call.state in (ResumeState.ATTACHED, ResumeState.DETACHED)
            and call.session.has_state
            and call.session.lease is not None
        ]

    def begin_move(self, call: ResumableCall) -> None:
        """Have the connection release a call, one of :meth:`movable`, for another worker.

        Its row is frozen once it is detached. No connection resumes it before :meth:`end_move`.
        """
        call.enter(ResumeState.MOVING)
        call.is_leaving = call.detached_s is None
        if call.is_leaving:
            call.session.send(Moving(call.session.id))

    def end_move(
        self, call: ResumableCall, worker: str, *, is_gone: bool
    ) -> list[tuple[EngineSession, MovedError]]:
        """End a move. If the call ``is_gone``, it can be resumed at ``worker``, otherwise at this worker.

        Returns the sessions that end with the move.
        """
        error = MovedError(f"{worker}: the call continues at this worker")
        if call.state is not ResumeState.MOVING:  # it has ended meanwhile
            return []
        session = call.session
        if is_gone:
            successor = self._forget(call, MOVED + worker)
            return [(each, error) for each in (session, successor) if each is not None]
        call.is_leaving = True
        call.detached_s = call.detached_s and self._clock()
        call.settle()
        session.send(Ended(session.id, error))  # it releases the call, as for a successor
        if call.detached_s is not None:
            self._hand_over(call)
        return []

    def arrive(self, session: EngineSession, facts: CallFacts, came: int) -> None:
        """Make a call from another worker resumable by its connection; its session already has a row.

        Raises:
            HandOverError: the call is or was already at this worker, or this server is shutting down.
        """
        key, *former = facts.keys
        if self._is_draining:
            raise HandOverError("this worker is shutting down, too")
        if self._tokens.was_here(key):
            raise HandOverError("this worker has this call already, or had it")
        call = ResumableCall(session, key, facts.owner, facts.call, former_key=next(iter(former), None))
        call.notes.extend(facts.notes)
        call.notes_bytes = sum(len(data) for _, data in facts.notes)
        if _is_full(call):
            raise HandOverError(f"{len(call.notes)} messages were not acknowledged, too many for here")
        call.next_seq, call.text_frame, call.kept = facts.next_seq, facts.text_frame, facts.kept
        call.detached_s, call.state = self._clock(), ResumeState.DETACHED
        call.recorded = FramesUsed(min(facts.recorded_in, came), facts.recorded_out)
        call.given = facts.given
        self._detached[call] = None
        session.resumable = call
        self._tokens.add(call)

    def _forget(self, call: ResumableCall, reason: str) -> EngineSession | None:
        """Make a call impossible to resume; returns the successor that waited for it and must end."""
        call.enter(ResumeState.GONE)
        self._tokens.give_up(call, reason)
        self._detached.pop(call, None)
        call.session.resumable = None
        successor, call.successor, call.claim = call.successor, None, None
        if successor is not None:
            successor.resumable = None
        return successor


def _is_full(call: ResumableCall) -> bool:
    """Whether more messages are unacknowledged than are kept."""
    return len(call.notes) > MAX_NOTES or call.notes_bytes > MAX_NOTES_BYTES
