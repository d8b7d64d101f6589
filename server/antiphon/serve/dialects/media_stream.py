"""A telephone line of Twilio or Telnyx: media in JSON over a WebSocket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from antiphon.audio.codecs import WireFormat
from antiphon.errors import ProtocolError
from antiphon.protocol import media_streams as wire
from antiphon.serve.dialects.telephone import LineAudio, LineClosed, LineEvent, LineMark, TelephoneLine
from antiphon.serve.transport.transport import Message

MOST_EARLY: Final = 5
"""Maximum number of chunks that wait for an earlier one: 100 ms. Telnyx does not guarantee the order."""


class MediaStreamLine(TelephoneLine):
    """One call of Twilio or Telnyx, whose first message was ``start``."""

    def __init__(self, start: wire.StreamStart) -> None:
        """Prepare."""
        super().__init__(WireFormat(start.codec, wire.SAMPLE_RATE))
        self._start, self._chunks = start, Chunks()

    def feed(self, message: Message) -> LineEvent | None:
        match wire.decode(message):
            case wire.Media() as media:
                return LineAudio(self._chunks.put(media))
            case wire.Played(name):
                return LineMark(name)
            case wire.StreamStop():
                return LineClosed()
            case wire.StreamStart():
                raise ProtocolError("event is start, and the stream has started")
        return None

    def play(self, data: bytes) -> Sequence[Message]:
        return (wire.encode_media(self._start, data),)

    def mark(self, name: str) -> Sequence[Message]:
        return (wire.encode_mark(self._start, name),)

    def clear(self) -> Sequence[Message]:
        return (wire.encode_clear(self._start),)


class Chunks:
    """Puts the audio of a stream in order: early chunks wait, late chunks are dropped."""

    def __init__(self) -> None:
        """Begin."""
        self._early: dict[int, bytes] = {}
        self._next = 0

    def put(self, media: wire.Media) -> bytes:
        """Add a chunk; return the audio that is next in order, possibly b""."""
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
