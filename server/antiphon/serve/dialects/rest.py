"""Requests by POST: a text, which is answered with speech, or a recording, which is answered with its
words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from antiphon.audio.word_ends import WordEnds
from antiphon.errors import AntiphonError
from antiphon.ipc.values import SessionStats
from antiphon.protocol import kyutai
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.synthesiser import Piece
from antiphon.serve.calls.transcriber import AsrNews
from antiphon.serve.calls.values import Action, EndInput, Policy, PushAudio, PushWords
from antiphon.serve.dialects.speech_body import SpeechBody
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message


class SpeechDialect(Dialect[Piece]):
    """The dialect of a request that has one text read aloud; ``body`` encodes the audio.

    ``words`` is the number of words of the text, ``unspoken`` the number of words that the model cannot
    speak.

    ``event_of`` returns the event of an error that ends a stream of events.
    """

    policy = Policy(is_live=False, awaits="reading of the speech", expects_input=False)

    def __init__(
        self, body: SpeechBody, words: int, unspoken: int, event_of: Callable[[AntiphonError], bytes]
    ) -> None:
        """Begin a body."""
        super().__init__()
        self._body, self._words, self._unspoken, self._event_of = body, words, unspoken, event_of
        self._frames = 0

    def feed(self, message: Message) -> Sequence[Action]:
        assert isinstance(message, str)
        return PushWords(message), EndInput()

    def messages(self, reply: Piece) -> Sequence[Message]:
        if isinstance(reply, Spoken):
            return ()
        self._frames += 1
        return (self._body.feed(reply),)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        return (self._body.finish(self._words, self._unspoken, self._frames),), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        is_told = self._body.is_sse and self._frames > 0
        return (self._event_of(error),) if is_told else (), wire_form(error).close

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        self._body.close()


class TranscriptBody(Protocol):
    """The format of the response with a recording's words."""

    def take(self, message: kyutai.Word | kyutai.EndWord) -> bytes:
        """The bytes for one more word, or for the end of the last one."""
        ...

    def finish(self, seconds: float) -> bytes:
        """The end of the body, after ``seconds`` of audio."""
        ...


class RecordingDialect(Dialect[AsrNews]):
    """The dialect of a request that has one recording transcribed. Its messages are float32 samples in
    pieces, and "" for its end; its words become a ``body``.
    """

    policy = Policy(is_live=False, expects_input=False)

    def __init__(
        self,
        body: TranscriptBody,
        model: ServedModel,
        event_of: Callable[[AntiphonError], bytes] | None,
        ends: WordEnds | None = None,
    ) -> None:
        """Begin a body; ``event_of`` returns the event of an error that ends a stream of events, ``ends``
        processes the recording."""
        super().__init__()
        self._body, self._event_of, self._ends = body, event_of, ends
        self._rate = model.checkpoint.spec.sample_rate
        self._samples = 0
        self._has_begun = False

    def feed(self, message: Message) -> Sequence[Action]:
        if isinstance(message, str):
            return (EndInput(),)
        pcm = np.frombuffer(message, np.float32)
        self._samples += pcm.size
        if self._ends is not None:
            self._ends.feed(pcm)
        return (PushAudio(pcm, pcm.size / self._rate),)

    def messages(self, reply: AsrNews) -> Sequence[Message]:
        told = [it for it in reply.messages if isinstance(it, kyutai.Word | kyutai.EndWord)]
        data = b"".join(map(self._body.take, told))
        self._has_begun = self._has_begun or bool(data)
        return (data,)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        return (self._body.finish(self._samples / self._rate),), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        is_told = self._event_of is not None and self._has_begun
        return (self._event_of(error),) if is_told and self._event_of else (), wire_form(error).close
