"""Telephone media in JSON: one call of Twilio or Telnyx with a model that talks, or with a voice agent.

The telephone plays audio in order, at its own pace. So that a burst of late audio does not delay every later
answer, a model's silence is sent only while little waits to be played. An agent sends no silence, and its
sound as it is heard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

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
from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.values import FrameReply
from antiphon.protocol import media_streams as wire
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, Close, Instruct, PushAudio
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

MOST_AHEAD_S: Final = 0.16
"""Seconds of sound waiting to be played, above which silence is left out: two frames."""

MOST_EARLY: Final = 5
"""Chunks that wait for an earlier one: 100 ms. Telnyx promises no order."""


class MediaStreamClient(ABC):
    """What the dialects of telephone calls share, each of which is a dialect too: the telephone's side.

    ``start`` is the message that began the call; ``decode`` makes samples of the caller's audio.
    """

    def __init__(self, start: wire.StreamStart, decode: Callable[[bytes], FloatArray]) -> None:
        """Prepare."""
        super().__init__()
        self.start, self._decode, self._chunks = start, decode, Chunks()

    def feed(self, message: Message) -> Sequence[Action]:
        match wire.decode(message):
            case wire.Media() as media:
                data = self._chunks.put(media)
                return (PushAudio(self._decode(data), len(data) / wire.SAMPLE_RATE),) if data else ()
            case wire.Played(name):
                return self.played(name)
            case wire.StreamStop():
                return (Close(),)
            case wire.StreamStart():
                raise ProtocolError("event is start, and the stream has started")
        return ()

    @abstractmethod
    def played(self, name: str) -> Sequence[Action]:
        """The telephone has played, or cleared, all audio before this mark."""

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """The protocol has no message for an error: the close is the only sign."""
        return (), wire_form(error).close


class MediaStreamDialect(MediaStreamClient, Dialect[FrameReply]):
    """One telephone call with a model that talks."""

    def __init__(self, start: wire.StreamStart, model: ServedModel, clock: Callable[[], float]) -> None:
        """Prepare."""
        self._line = DuplexLine(WireFormat(start.codec, wire.SAMPLE_RATE), model.engine.info.spec)
        super().__init__(start, self._line.decode)
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
        said = self._line.say(reply)
        if said is None:
            return ()
        has_spoken, self.is_speaking = self.is_speaking, self._line.is_speaking
        messages = []
        if np.any(said.pcm) or self._played_s - self._clock() <= MOST_AHEAD_S:
            messages.append(wire.encode_media(self.start, said.data))
            seconds = len(said.data) / wire.SAMPLE_RATE
            self._played_s = max(self._played_s, self._clock()) + seconds
            self._since_mark_s += seconds
        if has_spoken and not self.is_speaking:
            self._marks, self._since_mark_s = self._marks + 1, 0.0
            messages.append(wire.encode_mark(self.start, self._mark))
        return messages

    @property
    def _mark(self) -> str:
        return f"said {self._marks}"

    def interrupted(self, frame: int) -> Sequence[Message]:
        self._played_s, self._since_mark_s = self._clock(), 0.0
        return (wire.encode_clear(self.start),)


class AgentMediaStreamDialect(MediaStreamClient, Dialect[AgentNews]):
    """One telephone call with a voice agent.

    A mark behind each piece of a reply says how much of it the telephone has played. Where the service sends
    marks back, an interrupted reply keeps in the history no word behind the last mark that came.
    """

    def __init__(self, start: wire.StreamStart, agent: AgentParts) -> None:
        """Prepare."""
        line = WireFormat(start.codec, wire.SAMPLE_RATE)
        super().__init__(start, make_decoder(line, agent.stt.engine.info.spec.sample_rate).feed)
        self._encoder = make_encoder(line, agent.tts.engine.info.spec.sample_rate)
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
                self._sent_ms = 1000 * self._sent_bytes // wire.SAMPLE_RATE
                mark = wire.encode_mark(self.start, f"{self._replies} {self._sent_ms}")
                return (wire.encode_media(self.start, data), mark)
            case ReplyOver(outcome):
                was_speaking, self.is_speaking = self.is_speaking, False
                if was_speaking and outcome in (INTERRUPTED, CANCELLED):
                    self._cut = Truncate(self._item, self._played_ms) if self._has_marks else None
                    return (wire.encode_clear(self.start),)
        return ()


class Chunks:
    """The audio of a stream in order: early chunks wait, late ones are left out."""

    def __init__(self) -> None:
        """Begin."""
        self._early: dict[int, bytes] = {}
        self._next = 0

    def put(self, media: wire.Media) -> bytes:
        """The chunks that are next now, possibly none, possibly several."""
        if not media.chunk:
            return media.payload
        self._next = self._next or media.chunk
        if media.chunk >= self._next:
            self._early[media.chunk] = media.payload
        if len(self._early) > MOST_EARLY:
            self._next = min(self._early)
        ready = deque[bytes]()
        while (payload := self._early.pop(self._next, None)) is not None:
            ready.append(payload)
            self._next += 1
        return b"".join(ready)
