"""The base of all dialects: what a call asks of the protocol that its client speaks.

A dialect is state and functions without I/O: messages of the client become actions, replies of the
participant become frames. The defaults are those of a protocol that has no word for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.models.sampling import SamplingParameters
from antiphon.models.tokenizer import Tokenizer
from antiphon.models.transcript import Marked
from antiphon.models.words import Word
from antiphon.protocol.live_events import Info
from antiphon.serve.calls.actions import Action
from antiphon.serve.calls.resume import ResumedCall

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Policy:
    """How a call of this protocol is held.

    ``is_live``: what one side cannot take in time gives way; else nothing is dropped. ``awaits`` names the
    input in errors. ``expects_input``: the first input has to come within the limit of a handshake; else the
    client asks for its microphone first. ``has_answers``: messages have answers, so that all but audio wait
    while the client does not read. ``at_once`` is the first byte of messages that are followed where they are
    read.
    """

    is_live: bool = True
    awaits: str = "audio"
    expects_input: bool = True
    has_answers: bool = False
    at_once: bytes = b""


@dataclass(frozen=True, slots=True)
class HelloFacts:
    """What a client may be told when its call begins.

    ``terms`` say how to resume it, None where that cannot be. ``resumed`` is set where it goes on with a call
    of another connection, whose next input frame is ``next_frame``.
    """

    session: str
    parameters: SamplingParameters
    now_s: float
    is_recorded: bool = False
    terms: Mapping[str, Any] | None = None
    resumed: ResumedCall | None = None
    next_frame: int = 0


class Dialect(ABC, Generic[R]):
    """One client's protocol, with replies of the type ``R``.

    ``is_quiet``: the client has announced to send nothing. ``is_speaking``: the participant speaks, or has
    just spoken. ``words`` of text so far. ``has_more``: ``feed("")`` goes on with the last message.
    """

    policy = Policy()
    tokenizer: Tokenizer | None = None
    is_quiet = is_speaking = has_more = False
    words = 0

    @abstractmethod
    def hello(self, facts: HelloFacts) -> bytes:
        """There is a row: what the client gets first, framed."""

    @abstractmethod
    def feed(self, message: bytes | str) -> Sequence[Action]:
        """What a message of the client asks for, in less than a millisecond.

        Raises:
            FieldError: it cannot be followed; the call goes on.
            AntiphonError: it ends the call.
        """

    @abstractmethod
    def frames(self, reply: R) -> bytes:
        """What one reply of the participant becomes, framed.

        Raises:
            SessionFailedError: it cannot be encoded.
        """

    @abstractmethod
    def error(self, error: AntiphonError) -> tuple[bytes, int]:
        """What went wrong, framed, and the code of the close that follows if the call ends."""

    def text_of(self, reply: FrameReply) -> str:
        """The piece of text that a frame speaks, or ""; its words are counted."""
        if reply.text_token is None or self.tokenizer is None:
            return ""
        text = self.tokenizer.piece(reply.text_token)
        self.words += text.startswith(" ")
        return text

    def encode(self, event: Any) -> bytes:
        """An event of a :class:`Send`, framed."""
        raise NotImplementedError

    def draining(self, deadline_s: float) -> bytes:
        """The call may go on for ``deadline_s`` seconds."""
        return b""

    def queued(self, ahead: int, retry_after_s: int) -> bytes:
        """The place of the call in the queue."""
        return b""

    def interrupted(self, frame: int) -> bytes:
        """Replies to input before ``frame`` that were not sent never come."""
        return b""

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> bytes:
        """What is due by the clock; asked a few times a second while the client reads."""
        return b""

    def caption(self, told: Word | Marked | Info) -> Sequence[Action]:
        """A recogniser has written something of the client's audio."""
        return ()

    def finish(self, stats: SessionStats) -> tuple[bytes, AntiphonError | None]:
        """All is answered: the last frames, and the error that the call ends with, if any."""
        return b"", None

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        """Give back what is held; ``is_lost``: the client left without a word."""
