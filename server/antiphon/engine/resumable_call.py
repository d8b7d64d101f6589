"""The data of a call that can be resumed, and the tokens that resume it."""

from __future__ import annotations

import hmac
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from antiphon.engine.call_state import CallFacts
from antiphon.engine.sessions import EngineSession
from antiphon.engine.values import FramesUsed
from antiphon.errors import MovedError, ReplacedError, ResumeError, SessionError
from antiphon.ipc.values import Note, ResumeClaim

MOVED = "moved to "
"""Prefix of a stored reason that is the name of the worker to which the call has moved."""


NOTHING: Final = FramesUsed(0, 0)


class ResumeState(StrEnum):
    """The states of a resumable call, between which :data:`TRANSITIONS` are possible."""

    ATTACHED = "attached"  # it has a connection
    DETACHED = "detached"  # it has no connection, and its row waits
    CLAIMED = "claimed"  # another connection waits for its row, or is getting it
    MOVING = "moving"  # another worker is taking it; a claim waits for the result
    GONE = "gone"  # it cannot be resumed any more


TRANSITIONS: Final[Mapping[ResumeState, frozenset[ResumeState]]] = MappingProxyType(
    {
        ResumeState.ATTACHED: frozenset(ResumeState) - {ResumeState.ATTACHED},
        ResumeState.DETACHED: frozenset(ResumeState) - {ResumeState.DETACHED, ResumeState.ATTACHED},
        ResumeState.CLAIMED: frozenset(ResumeState) - {ResumeState.CLAIMED, ResumeState.MOVING},
        ResumeState.MOVING: frozenset(ResumeState) - {ResumeState.MOVING},
        ResumeState.GONE: frozenset(),
    }
)
"""The possible next states of each state."""


@dataclass(eq=False, slots=True)
class ResumableCall:
    """One call, across its connections. ``former_key`` is valid until the client has acknowledged the new
    one.

    ``detached_s`` is the time at which it lost its connection. ``recorded`` is the usage that was recorded
    before its current connection, or before connections of killed front ends.
    """

    session: EngineSession
    key: bytes
    owner: str
    call: str
    former_key: bytes | None = None
    successor: EngineSession | None = None
    claim: ResumeClaim | None = None
    state: ResumeState = ResumeState.ATTACHED
    detached_s: float | None = None
    is_leaving: bool = False  # its connection was asked to release it
    is_changing: bool = False  # claimed, and its row is being moved to the session
    notes: deque[Note] = field(default_factory=deque)
    notes_bytes: int = 0
    next_seq: int = 0
    text_frame: int = 0
    kept: bytes = b""  # for its next connection
    recorded: FramesUsed = NOTHING
    given: int = 0  # replies that were given to any connection

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The hashes of the valid tokens."""
        return (self.key,) if self.former_key is None else (self.key, self.former_key)

    def enter(self, state: ResumeState) -> None:
        """Change the call's state, by one of :data:`TRANSITIONS`."""
        self.state = state

    def settle(self) -> None:
        """Return from a failed move to the state before it, unless the call has ended."""
        if self.state is ResumeState.GONE:
            return
        state = ResumeState.ATTACHED if self.detached_s is None else ResumeState.DETACHED
        if self.successor is not None or self.is_changing:
            state = ResumeState.CLAIMED
        if state is not self.state:
            self.enter(state)

    def drop_until(self, seq: int) -> None:
        """Drop messages up to this number, which the client has received."""
        while self.notes and self.notes[0][0] <= seq:
            self.notes_bytes -= len(self.notes.popleft()[1])

    def use(self, now: FramesUsed, session: EngineSession) -> FramesUsed:
        """Detach the call from its connection; returns the usage that a killed front end has not recorded."""
        self.given = max(self.given, now.given)
        used = FramesUsed(now.came, self.given)
        if session.is_orphaned:
            return FramesUsed(used.came - self.recorded.came, used.given - self.recorded.given)
        self.recorded = used
        return NOTHING

    def facts(self, now: FramesUsed, *, has_new_parameters: bool) -> CallFacts:
        """The facts about a call that another worker needs, once its connection has released it."""
        self.use(now, self.session)
        notes = tuple(self.notes)
        return CallFacts(
            *(self.call, self.owner, self.session.parameters, has_new_parameters, self.keys, notes),
            *(self.next_seq, self.text_frame, *self.recorded, self.given, self.kept),
        )


def call_of(session: EngineSession) -> ResumableCall | None:
    """The session's call, if it can be resumed."""
    call = session.resumable
    assert call is None or isinstance(call, ResumableCall)
    return call


def replaced() -> ReplacedError:
    """The error for a connection that another one has replaced."""
    return ReplacedError("the call was resumed through another connection")


def too_late() -> ResumeError:
    """The error for a connection that waits for a call that can no longer be resumed."""
    return ResumeError("unknown: the call has ended, or has too many unacknowledged messages")


GONE_KEYS: Final = 4096
"""Number of invalid tokens that are kept, each with a reason."""


class ResumeTokens:
    """The tokens of one engine's calls; used on the control thread only."""

    def __init__(self, window_s: float) -> None:
        """Start empty; a call without a connection is kept for ``window_s``."""
        self._window_s = window_s
        self._calls: dict[bytes, ResumableCall] = {}
        self._gone: OrderedDict[bytes, str] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        """Whether the token is valid for a call."""
        return key in self._calls

    @property
    def calls(self) -> tuple[ResumableCall, ...]:
        """All resumable calls, each once."""
        return tuple(dict.fromkeys(self._calls.values()))

    def was_here(self, key: bytes) -> bool:
        """Whether the token is or was valid for a call of this worker that did not move to another one."""
        return key in self or not self._gone.get(key, MOVED).startswith(MOVED)

    def add(self, call: ResumableCall) -> None:
        """Make all tokens of a call valid."""
        for key in call.keys:
            self._calls[key] = call
            self._gone.pop(key, None)

    def renew(self, call: ResumableCall, claim: ResumeClaim) -> None:
        """Add the token of the connection that has claimed the call; the former token remains valid."""
        if claim.key == call.key:
            self.drop_former(call)
            call.former_key = call.key
        else:  # the client never received the answer with the last token
            self._calls.pop(call.key)
        call.key = claim.new_key
        self._calls[call.key] = call

    def drop_former(self, call: ResumableCall) -> None:
        """Invalidate the call's former token."""
        if call.former_key is not None:
            self._give_up(call.former_key, "replaced")
            call.former_key = None

    def give_up(self, call: ResumableCall, reason: str) -> None:
        """Invalidate all tokens of a call."""
        for key in call.keys:
            self._give_up(key, reason)

    def find(self, claim: ResumeClaim) -> ResumableCall:
        """The call that a token is valid for.

        Raises:
            ResumeError, MovedError: the call does not exist, or belongs to another client; the message
                has the reason.
        """
        call = self._calls.get(claim.key)
        if call is None or not any(hmac.compare_digest(claim.key, key) for key in call.keys):
            raise self._why_not(self._gone.get(claim.key, "unknown"))
        if call.owner != claim.owner:
            raise ResumeError("unknown: this call was started with another API key")
        if claim.seq >= call.next_seq:
            raise ResumeError(
                f"unknown: the client has message {claim.seq}, of {call.next_seq} that were noted"
            )
        if call.successor is not None:
            raise ResumeError("replaced: the call is being resumed through another connection")
        return call

    def _give_up(self, key: bytes, reason: str) -> None:
        self._calls.pop(key, None)
        self._gone[key] = reason
        if len(self._gone) > GONE_KEYS:
            self._gone.popitem(last=False)

    def _why_not(self, reason: str) -> SessionError:
        """The error for a token that is not valid."""
        if reason.startswith(MOVED):
            return MovedError(f"{reason.removeprefix(MOVED)}: the call continues at this worker")
        match reason:
            case "expired":
                words = f"expired: a call without a connection is kept for {self._window_s:g} s at most"
            case "replaced":
                words = "replaced: this token was used, and its call continues with another"
            case _:
                words = "unknown: no resumable call has this token"
        return ResumeError(words)
