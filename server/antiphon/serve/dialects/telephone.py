"""Telephone calls with a full-duplex model or a voice agent, over any telephone line.

A telephone plays audio in order, at its own pace. A model's silence is sent only while little audio waits to
be played, so that a burst of late audio does not delay later answers. An agent sends no silence, and sends
sound at the pace of playback.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from antiphon.agent.values import (
    CANCELLED,
    INTERRUPTED,
    AgentNews,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    Truncate,
)
from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply
from antiphon.protocol.wire_errors import close_only
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, Close, HelloFacts, Instruct, PushAudio
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

MOST_AHEAD_S: Final = 0.16
"""Seconds of sound waiting to be played, above which silence is not sent: two frames."""


@dataclass(frozen=True, slots=True)
class LineAudio:
    """A piece of the caller's audio."""

    data: bytes


@dataclass(frozen=True, slots=True)
class LineMark:
    """The telephone has played, or cleared, all audio before the mark of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class LineClosed:
    """The call is over."""


LineEvent: TypeAlias = LineAudio | LineMark | LineClosed


class TelephoneLine(ABC):
    """One telephone call's protocol: audio in both directions in the format ``form``, with ``bytes_per_s``
    bytes a second.

    If the line paces messages, ``due_s`` is the time at which :meth:`due` has messages.
    """

    due_s = math.inf

    def __init__(self, form: WireFormat) -> None:
        """Prepare."""
        self.form = form
        self.bytes_per_s = form.rate * (2 if form.codec == "pcm_s16le" else 1)

    def answer(self) -> Sequence[Message]:
        """Messages that answer the call, once there is a row."""
        return ()

    @abstractmethod
    def feed(self, message: Message) -> LineEvent | None:
        """Decode a telephone's message; None for a message that a server ignores.

        Raises:
            ProtocolError: the message does not belong to the protocol.
        """

    @abstractmethod
    def play(self, data: bytes) -> Sequence[Message]:
        """Messages with which the line plays ``data`` after all earlier audio."""

    def end_reply(self) -> Sequence[Message]:
        """Messages with the rest of a reply's audio, padded with silence if the line plays whole parts."""
        return ()

    def mark(self, name: str) -> Sequence[Message]:
        """Messages that make the telephone send :class:`LineMark`, if the line has marks."""
        return ()

    @abstractmethod
    def clear(self) -> Sequence[Message]:
        """Messages that discard all audio not yet played."""

    def due(self, now_s: float) -> Sequence[Message]:
        """Messages that are due."""
        return ()

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """Messages and the close code for an error; without a message, the connection only ends."""
        return close_only(error)


class TelephoneClient(ABC):
    """The common part of the dialects of telephone calls: the telephone's side.

    ``decoder`` turns the caller's audio into samples at ``rate``; it decodes a long message in steps.
    """

    due_s: float
    has_more: bool

    def __init__(self, line: TelephoneLine, decoder: Decoder, rate: int) -> None:
        """Prepare."""
        super().__init__()
        self.line, self._decoder, self._rate = line, decoder, rate

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        return self.line.answer()

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more:
            return self._hear()
        match self.line.feed(message):
            case LineAudio(data) if data:
                self._decoder.put(data)
                return self._hear()
            case LineMark(name):
                return self.played(name)
            case LineClosed():
                return (Close(),)
        return ()

    def _hear(self) -> Sequence[Action]:
        """Decode one step of the audio."""
        self.has_more = False  # in case this step fails
        pcm = self._decoder.step()
        self.has_more = self._decoder.has_more
        return () if pcm is None else (PushAudio(pcm, pcm.size / self._rate),)

    @abstractmethod
    def played(self, name: str) -> Sequence[Action]:
        """Handle a mark: the telephone has played, or cleared, all audio before it."""

    def due(self, now_s: float) -> Sequence[Message]:
        messages = self.line.due(now_s)
        self.due_s = self.line.due_s
        return messages

    def play(self, data: bytes) -> Sequence[Message]:
        """Messages with audio to play."""
        messages = self.line.play(data)
        self.due_s = self.line.due_s
        return messages

    def end_reply(self) -> Sequence[Message]:
        """Messages with the rest of a reply's audio."""
        messages = self.line.end_reply()
        self.due_s = self.line.due_s
        return messages

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self.line.error(error)


class TelephoneDialect(TelephoneClient, Dialect[FrameReply]):
    """One telephone call with a full-duplex model."""

    def __init__(self, line: TelephoneLine, model: ServedModel, clock: Callable[[], float]) -> None:
        """Prepare."""
        spec = model.engine.info.spec
        self._audio = DuplexLine(line.form, spec)
        super().__init__(line, self._audio.decoder, spec.sample_rate)
        self.tokenizer = model.tokenizer
        self._clock = clock
        self._played_s = 0.0  # when all sent audio will have been played
        self._marks = 0
        self._since_mark_s = 0.0  # seconds of sound after the last mark

    def played(self, name: str) -> Sequence[Action]:
        if name == self._mark:
            self._played_s = self._clock() + self._since_mark_s
        return ()

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """One frame of the model, and a mark after the last frame of speech."""
        self.text_of(reply)
        said = self._audio.say(reply)
        if said is None:
            return ()
        has_spoken, self.is_speaking = self.is_speaking, self._audio.is_speaking
        messages: list[Message] = []
        if np.any(said.pcm) or self._played_s - self._clock() <= MOST_AHEAD_S:
            messages += self.play(said.data)
            seconds = len(said.data) / self.line.bytes_per_s
            self._played_s = max(self._played_s, self._clock()) + seconds
            self._since_mark_s += seconds
        if has_spoken and not self.is_speaking:
            self._marks, self._since_mark_s = self._marks + 1, 0.0
            messages += (*self.end_reply(), *self.line.mark(self._mark))
        return messages

    @property
    def _mark(self) -> str:
        return f"said {self._marks}"

    def interrupted(self, frame: int) -> Sequence[Message]:
        self._played_s, self._since_mark_s = self._clock(), 0.0
        return self.line.clear()


class AgentTelephoneDialect(TelephoneClient, Dialect[AgentNews]):
    """One telephone call with a voice agent.

    A mark after each piece of a reply reports how much of it the telephone has played. If the line returns
    marks, the history of an interrupted reply ends with the last returned mark.
    """

    def __init__(self, line: TelephoneLine, agent: AgentParts) -> None:
        """Prepare."""
        rate = agent.stt.engine.info.spec.sample_rate
        super().__init__(line, make_decoder(line.form, rate), rate)
        self._encoder = make_encoder(line.form, agent.tts.engine.info.spec.sample_rate)
        self._replies = self._sent_ms = self._played_ms = 0
        self._sent_bytes = 0
        self._item = ""
        self._has_marks = False
        self._cut: Truncate | None = None

    def feed(self, message: Message) -> Sequence[Action]:
        actions, cut, self._cut = super().feed(message), self._cut, None
        return actions if cut is None else (Instruct(cut), *actions)

    def played(self, name: str) -> Sequence[Action]:
        reply, _, ms = name.partition(" ")
        if reply == str(self._replies) and ms.isascii() and ms.isdigit() and int(ms) <= self._sent_ms:
            self._has_marks, self._played_ms = True, max(self._played_ms, int(ms))
        return ()

    def messages(self, reply: AgentNews) -> Sequence[Message]:
        match reply:
            case ReplyBegan():
                self._replies += 1
                self._sent_bytes = self._sent_ms = self._played_ms = 0
            case ReplySound(item, pcm):
                data = b"".join(self._encoder.encode(pcm))
                self._item, self.is_speaking = item, True
                self._sent_bytes += len(data)
                self._sent_ms = 1000 * self._sent_bytes // self.line.bytes_per_s
                return (*self.play(data), *self.line.mark(f"{self._replies} {self._sent_ms}"))
            case ReplyOver(outcome):
                was_speaking, self.is_speaking = self.is_speaking, False
                if was_speaking and outcome in (INTERRUPTED, CANCELLED):
                    self._cut = Truncate(self._item, self._played_ms) if self._has_marks else None
                    return self.line.clear()
                return self.end_reply()
        return ()
