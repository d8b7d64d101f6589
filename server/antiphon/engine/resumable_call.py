"""One call that can be resumed: what is kept of it, and the words for why it cannot be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from types import MappingProxyType
from typing import Final

from antiphon.engine.call_state import CallFacts
from antiphon.engine.rows import FramesUsed
from antiphon.engine.sessions import EngineSession
from antiphon.errors import ReplacedError, ResumeError
from antiphon.ipc.resumption import Note, ResumeClaim

MOVED = "moved to "
"""Before a worker's name, in place of a reason."""


NOTHING: Final = FramesUsed(0, 0)


class ResumeState(StrEnum):
    """Where a call is that can be resumed; :data:`TRANSITIONS` are drawn in docs/engine.md."""

    ATTACHED = "attached"  # a connection has it
    DETACHED = "detached"  # none has it, and its row waits
    CLAIMED = "claimed"  # another connection waits for its row, or is getting it
    MOVING = "moving"  # another worker is to have it, and a claim waits for how that ends
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
"""What may follow each state."""


@dataclass(eq=False, slots=True)
class ResumableCall:
    """One call, whatever connection it has. ``former_key`` is good until the client has shown the new one.

    ``has_let_go`` is set while no connection has it. ``recorded`` is what was used before its connection, or
    before those of front ends that were killed.
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
    has_let_go: Event = field(default_factory=Event)
    is_leaving: bool = False  # its connection was asked to let go
    is_changing: bool = False  # claimed, and its row is on the way to the session
    notes: deque[Note] = field(default_factory=deque)
    notes_bytes: int = 0
    next_seq: int = 0
    told_frame: int = 0
    recorded: FramesUsed = NOTHING
    given: int = 0  # replies that any connection was given

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The hashes of the tokens that are good."""
        return (self.key,) if self.former_key is None else (self.key, self.former_key)

    def enter(self, state: ResumeState) -> None:
        """Go to another state."""
        self.state = state

    def settle(self) -> None:
        """Go to the state that the call is in when no other worker is to have it, unless it is gone."""
        if self.state is ResumeState.GONE:
            return
        state = ResumeState.ATTACHED if self.detached_s is None else ResumeState.DETACHED
        if self.successor is not None or self.is_changing:
            state = ResumeState.CLAIMED
        if state is not self.state:
            self.enter(state)

    def drop_until(self, seq: int) -> None:
        """The client has got everything up to this number."""
        while self.notes and self.notes[0][0] <= seq:
            self.notes_bytes -= len(self.notes.popleft()[1])

    def use(self, now: FramesUsed, session: EngineSession) -> FramesUsed:
        """The call leaves a connection; returns what its front end, if it was killed, has not recorded."""
        self.given = max(self.given, now.given)
        used = FramesUsed(now.came, self.given)
        if session.is_orphaned:
            return FramesUsed(used.came - self.recorded.came, used.given - self.recorded.given)
        self.recorded = used
        return NOTHING

    def facts(self, now: FramesUsed) -> CallFacts:
        """What another worker needs to know of a call that has let its connection go."""
        self.use(now, self.session)
        parameters, is_new = self.session.parameters_now()
        notes = tuple(self.notes)
        return CallFacts(
            *(self.call, self.owner, parameters, is_new, self.keys, notes, self.next_seq, self.told_frame),
            *(*self.recorded, self.given),
        )


def call_of(session: EngineSession) -> ResumableCall | None:
    """The session's call, where it can be resumed."""
    call = session.resumable
    assert call is None or isinstance(call, ResumableCall)
    return call


def replaced() -> ReplacedError:
    """The end of the connection before."""
    return ReplacedError("the call was resumed through another connection")


def too_late() -> ResumeError:
    """The end of a connection that waited for a call."""
    return ResumeError("unknown: the call has ended, or said too much that was not acknowledged")
