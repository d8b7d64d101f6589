"""Telephone lines of Asterisk: AudioSocket, for which the server sets the pace, and the channel over a
WebSocket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from antiphon.audio.codecs import WireFormat
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.protocol import asterisk, audiosocket
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.dialects.telephone import LineAudio, LineClosed, LineEvent, LineMark, TelephoneLine
from antiphon.serve.transport.transport import Message

PACKET_S: Final = 0.02
"""Seconds between two messages: Asterisk passes each one on when it arrives."""

MOST_LATE_S: Final = 0.1
"""Maximum lag in seconds; after a longer lag the server continues at the normal pace, without a burst of
overdue audio.
"""


SILENCE: Final[Mapping[str, bytes]] = MappingProxyType({"pcm_s16le": b"\0", "pcmu": b"\xff", "pcma": b"\xd5"})
"""A byte of silence in each codec."""


class AudioSocketLine(TelephoneLine):
    """One call of AudioSocket, at the ``rate`` of its first audio."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        """Prepare."""
        super().__init__(WireFormat("pcm_s16le", rate))
        self._clock, self._rate = clock, rate
        self._packet_bytes = self.bytes_per_s // 50
        self._waiting = bytearray()
        self._next_s = -math.inf

    def feed(self, message: Message) -> LineEvent | None:
        match audiosocket.decode(message):
            case audiosocket.CallerAudio(rate, pcm):
                if rate != self._rate:
                    raise ProtocolError(f"audio is at {rate} Hz, and the call began with {self._rate} Hz")
                return LineAudio(pcm)
            case audiosocket.CallOver():
                return LineClosed()
            case audiosocket.CallNamed():
                raise ProtocolError("a second UUID, a call has one")
        return None

    def play(self, data: bytes) -> Sequence[Message]:
        self._waiting += data
        return self.due(self._clock())

    def end_reply(self) -> Sequence[Message]:
        return self.play(bytes(-len(self._waiting) % self._packet_bytes))

    def clear(self) -> Sequence[Message]:
        self._waiting.clear()
        self.due_s = math.inf
        return ()

    def due(self, now_s: float) -> Sequence[Message]:
        """The packets that are due."""
        messages: list[Message] = []
        if self._next_s < now_s - MOST_LATE_S:
            self._next_s = now_s
        while len(self._waiting) >= self._packet_bytes and self._next_s <= now_s:
            messages.append(audiosocket.encode_audio(self._rate, bytes(self._waiting[: self._packet_bytes])))
            del self._waiting[: self._packet_bytes]
            self._next_s += PACKET_S
        self.due_s = self._next_s if len(self._waiting) >= self._packet_bytes else math.inf
        return messages


class AsteriskLine(TelephoneLine):
    """One call of Asterisk's channel over a WebSocket, after the message ``start``; Asterisk paces it."""

    def __init__(self, start: asterisk.MediaStart) -> None:
        """Prepare."""
        super().__init__(WireFormat(start.codec, start.rate))
        self._start, self._rest = start, b""

    def answer(self) -> Sequence[Message]:
        return (asterisk.encode(self._start, "ANSWER"),)

    def feed(self, message: Message) -> LineEvent | None:
        if isinstance(message, bytes):
            return LineAudio(message)
        match asterisk.decode(message):
            case asterisk.MediaPlayed(name):
                return LineMark(name)
            case asterisk.MediaStart():
                raise ProtocolError("a second MEDIA_START, a call has one")
        return None

    def play(self, data: bytes) -> Sequence[Message]:
        """Encode only whole frames, because Asterisk discards a part of a frame."""
        data = self._rest + data
        end = len(data) - len(data) % self._start.frame_bytes
        self._rest = data[end:]
        return (data[:end],) if end else ()

    def end_reply(self) -> Sequence[Message]:
        return self.play(SILENCE[self.form.codec] * (-len(self._rest) % self._start.frame_bytes))

    def mark(self, name: str) -> Sequence[Message]:
        return (asterisk.encode(self._start, "MARK_MEDIA", name),)

    def clear(self) -> Sequence[Message]:
        self._rest = b""
        return (asterisk.encode(self._start, "FLUSH_MEDIA"),)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return (asterisk.encode(self._start, "HANGUP"),), wire_form(error).close
