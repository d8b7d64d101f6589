"""Telephone media in JSON: one call of Twilio or Telnyx with a model that talks.

The telephone plays audio in order, at its own pace. So that a burst of late audio does not delay every later
answer, the model's silence is sent only while little waits to be played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from antiphon.audio.codecs import WireFormat
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.values import FrameReply
from antiphon.protocol import media_streams as wire
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, Close, PushAudio
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

MOST_AHEAD_S: Final = 0.16
"""Seconds of sound waiting to be played, above which silence is left out: two frames."""

MOST_EARLY: Final = 5
"""Chunks that wait for an earlier one: 100 ms. Telnyx promises no order."""


class MediaStreamDialect(Dialect[FrameReply]):
    """One telephone call; ``start`` is the message that began it."""

    def __init__(self, start: wire.StreamStart, model: ServedModel, clock: Callable[[], float]) -> None:
        """Prepare."""
        super().__init__()
        self.tokenizer = model.tokenizer
        self._start, self._clock = start, clock
        self._line = DuplexLine(WireFormat(start.codec, wire.SAMPLE_RATE), model.engine.info.spec)
        self._chunks = Chunks()
        self._played_s = 0.0  # when all sent audio will have been played
        self._marks = 0
        self._since_mark_s = 0.0  # seconds of sound after the last mark

    # From the telephone.

    def feed(self, message: Message) -> Sequence[Action]:
        match wire.decode(message):
            case wire.Media() as media:
                data = self._chunks.put(media)
                return (PushAudio(self._line.decode(data), len(data) / wire.SAMPLE_RATE),) if data else ()
            case wire.Played(name) if name == self._mark:
                self._played_s = self._clock() + self._since_mark_s
            case wire.StreamStop():
                return (Close(),)
            case wire.StreamStart():
                raise ProtocolError("event is start, and the stream has started")
        return ()

    # To the telephone.

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """One frame of the model, and a mark after the last frame of speech."""
        self.text_of(reply)
        said = self._line.say(reply)
        if said is None:
            return ()
        has_spoken, self.is_speaking = self.is_speaking, self._line.is_speaking
        messages = []
        if np.any(said.pcm) or self._played_s - self._clock() <= MOST_AHEAD_S:
            messages.append(wire.encode_media(self._start, said.data))
            seconds = len(said.data) / wire.SAMPLE_RATE
            self._played_s = max(self._played_s, self._clock()) + seconds
            self._since_mark_s += seconds
        if has_spoken and not self.is_speaking:
            self._marks, self._since_mark_s = self._marks + 1, 0.0
            messages.append(wire.encode_mark(self._start, self._mark))
        return messages

    @property
    def _mark(self) -> str:
        return f"said {self._marks}"

    def interrupted(self, frame: int) -> Sequence[Message]:
        self._played_s, self._since_mark_s = self._clock(), 0.0
        return (wire.encode_clear(self._start),)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """The protocol has no message for an error: the close is the only sign."""
        return (), wire_form(error).close


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
