"""One call that can be resumed: what is kept of it, and the words for why it cannot be."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from antiphon.engine.call_state import CallFacts
from antiphon.engine.rows import FramesUsed
from antiphon.engine.sessions import EngineSession
from antiphon.errors import ReplacedError, ResumeError
from antiphon.ipc.resumption import Note, ResumeClaim

MOVED = "moved to "
"""Before a worker's name, in place of a reason."""


NOTHING: Final = FramesUsed(0, 0)


@dataclass(eq=False, slots=True)
class ResumableCall:
    """One call, whatever connection it has. ``former_key`` is good until the client has shown the new one.

    ``recorded`` is what was used before its connection, or before those of front ends that were killed.
    """

    session: EngineSession
    key: bytes
    owner: str
    call: str
    former_key: bytes | None = None
    successor: EngineSession | None = None
    claim: ResumeClaim | None = None
    detached_s: float | None = None
    is_leaving: bool = False  # its connection was asked to let go
    is_moving: bool = False  # another worker is to have it: who claims it waits for how that ends
    is_changing: bool = False  # its row is on the way to the session
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
