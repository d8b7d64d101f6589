"""The base of all dialects: what a call asks of the protocol that its client speaks.

A dialect is state and functions without I/O: messages of the client become actions, replies of the
participant become frames. The defaults are those of a protocol that has no word for it.
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
from antiphon.models.transcript import Marked
from antiphon.models.words import Word
from antiphon.protocol.live_events import Info
from antiphon.serve.calls.actions import Action
from antiphon.serve.calls.policy import HelloFacts, Policy

R = TypeVar("R")


class Dialect(ABC, Generic[R]):
    """One client's protocol, with replies of the type ``R``.

    ``is_quiet``: the client has announced to send nothing. ``is_speaking``: the participant speaks, or has
    just spoken. ``words`` of text so far. ``has_more``: ``feed("")`` goes on with the last message.
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

    def hello(self, facts: HelloFacts) -> bytes:
        """There is a row: what the client gets first, framed."""
        return b""

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

    def listening(self) -> bytes:
        """From now on the participant hears."""
        return b""

    def heard(self, pcm: FloatArray) -> Sequence[Action]:
        """The participant hears this now, float32 ``[N]``; asked where the policy says so."""
        return ()

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
