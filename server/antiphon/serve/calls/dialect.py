"""The base of all dialects: a call's side of its client's protocol.

A dialect is state and functions without I/O: a client's messages become actions, the participant's replies
become messages. The methods of this class are the defaults for protocols without such messages.
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

    ``is_quiet``: the client has announced silence. ``is_speaking``: the participant is sending speech, or has
    just stopped. ``words`` counts words of text so far. ``has_more``: ``feed("")`` continues the last
    message. ``marks`` has new positions in the client's audio; a marker returns once the transcript has
    reached its position. The participant waits for the client's first message until ``listens_at_s``.
    ``due_s`` is the time at which :meth:`due` has messages.
    """

    policy = Policy()
    tokenizer: Tokenizer | None = None
    listens_at_s = -math.inf
    due_s = math.inf
    is_quiet = is_speaking = has_more = False
    words = 0

    def __init__(self) -> None:
        """Start without markers."""
        self.marks: list[int] = []

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        """The first messages to the client, once the call has a row."""
        return ()

    @abstractmethod
    def feed(self, message: Message) -> Sequence[Action]:
        """The actions that a client's message requests; takes less than a millisecond.

        Raises:
            FieldError: the message is invalid; the call continues.
            AntiphonError: the message ends the call.
        """

    @abstractmethod
    def messages(self, reply: R) -> Sequence[Message]:
        """The messages for one reply of the participant.

        Raises:
            AudioError: the audio cannot be encoded.
        """

    @abstractmethod
    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """The message for an error, and the close code if the error ends the call."""

    def text_of(self, reply: FrameReply) -> str:
        """The text of a frame, or ""; the method also counts its words."""
        if reply.text_token is None or self.tokenizer is None:
            return ""
        text = self.tokenizer.piece(reply.text_token)
        self.words += text.startswith(" ")
        return text

    def encode(self, event: Any) -> Sequence[Message]:
        """The message for the event of a :class:`Send` action."""
        raise NotImplementedError

    def listening(self) -> Sequence[Message]:
        """Messages for the moment when the participant starts to process audio."""
        return ()

    def heard(self, pcm: FloatArray) -> Sequence[Action]:
        """Actions for audio, float32 ``[N]``, that the participant processes. This method is used if the
        policy has ``hears``.
        """
        return ()

    def draining(self, deadline_s: float) -> Sequence[Message]:
        """The messages for a call that may continue for ``deadline_s`` seconds."""
        return ()

    def queued(self, ahead: int, retry_after_s: int) -> Sequence[Message]:
        """The message with the call's place in the queue."""
        return ()

    def interrupted(self, frame: int) -> Sequence[Message]:
        """Messages for the client after the server has dropped unsent replies to input before ``frame``."""
        return ()

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """Periodic messages; called a few times a second while the client reads."""
        return ()

    def due(self, now_s: float) -> Sequence[Message]:
        """The messages that are due, for a protocol that paces its messages."""
        return ()

    def caption(self, told: Word | Marked | Info) -> Sequence[Action]:
        """The actions for new words of the client's audio, from a recogniser."""
        return ()

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        """The last messages after all input is answered, and the error that ends the call, if any."""
        return (), None

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        """Release all resources; ``is_lost``: the client disconnected without a close."""
