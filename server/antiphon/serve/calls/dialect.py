"""The base of all dialects: what a call asks of the protocol that its client speaks.

A dialect is state and functions without I/O: messages of the client become actions, replies of the
participant become messages. The defaults are those of a protocol that has no word for it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.models.tokenizer import Tokenizer
from antiphon.models.transcript import Marked, Word
from antiphon.protocol.live_events import Info
from antiphon.serve.calls.values import Action, HelloFacts, Policy
from antiphon.serve.transport.transport import Message

R = TypeVar("R")


class Dialect(ABC, Generic[R]):
    """One client's protocol, with replies of the type ``R``.

    ``is_quiet``: the client has announced to send nothing. ``is_speaking``: the participant speaks, or has
    just spoken. ``words`` of text so far. ``has_more``: ``feed("")`` continues the last message.
    ``marks`` are new places in the client's audio: their markers come back once it is written down so far.
    The participant waits for the client's first message until ``listens_at_s``.
    """

    policy = Policy()
    tokenizer: Tokenizer | None = None
    listens_at_s = -math.inf
    is_quiet = is_speaking = has_more = False
    words = 0

    def __init__(self) -> None:
        """Begin without markers."""
        self.marks: list[int] = []

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        """There is a row: what the client gets first."""
        return ()

    @abstractmethod
    def feed(self, message: Message) -> Sequence[Action]:
        """What a message of the client requests, in less than a millisecond.

        Raises:
            FieldError: it cannot be followed; the call continues.
            AntiphonError: it ends the call.
        """

    @abstractmethod
    def messages(self, reply: R) -> Sequence[Message]:
        """What one reply of the participant becomes.

        Raises:
            AudioError: it cannot be encoded.
        """

    @abstractmethod
    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """What went wrong, and the code of the close that follows if the call ends."""

    def text_of(self, reply: FrameReply) -> str:
        """The piece of text that a frame speaks, or ""; its words are counted."""
        if reply.text_token is None or self.tokenizer is None:
            return ""
        text = self.tokenizer.piece(reply.text_token)
        self.words += text.startswith(" ")
        return text

    def encode(self, event: Any) -> Sequence[Message]:
        """An event of a :class:`Send`."""
        raise NotImplementedError

    def listening(self) -> Sequence[Message]:
        """From now on the participant hears."""
        return ()

    def heard(self, pcm: FloatArray) -> Sequence[Action]:
        """The participant hears this now, float32 ``[N]``; asked where the policy says so."""
        return ()

    def draining(self, deadline_s: float) -> Sequence[Message]:
        """The call may continue for ``deadline_s`` seconds."""
        return ()

    def queued(self, ahead: int, retry_after_s: int) -> Sequence[Message]:
        """The place of the call in the queue."""
        return ()

    def interrupted(self, frame: int) -> Sequence[Message]:
        """Unsent replies to input before ``frame`` are dropped."""
        return ()

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """What is due by the clock; asked a few times a second while the client reads."""
        return ()

    def caption(self, told: Word | Marked | Info) -> Sequence[Action]:
        """A recogniser has written something of the client's audio."""
        return ()

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        """All is answered: the last messages, and the error that the call ends with, if any."""
        return (), None

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        """Give back what is held; ``is_lost``: the client left without a word."""
