"""Telephone media over a WebSocket in JSON text: Twilio's Media Streams, and Telnyx's with other names.

Derived from their public references (twilio.com/docs/voice/media-streams/websocket-messages and
developers.telnyx.com, "Stream call media over WebSocket", both of November 2026). A message names its
``event``; audio is G.711 at 8 kHz in base64, mostly 20 ms a message.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, TypeAlias

import msgspec

from antiphon.errors import ProtocolError
from antiphon.values import shown

SAMPLE_RATE: Final = 8_000
MAX_MESSAGE_BYTES: Final = 65_536
"""Longest message: the base64 of six seconds of audio; these services send 20 ms."""

MAX_NAME_CHARS: Final = 256
MAX_PARAMETERS: Final = 32

CODECS: Final[Mapping[str, str]] = MappingProxyType(
    {"audio/x-mulaw": "pcmu", "audio/x-alaw": "pcma", "PCMU": "pcmu", "PCMA": "pcma"}
)
"""The names of encodings, and the codec of each."""

_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]
_Number: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,15}$")] | int


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The start of a stream: its name, in the field ``id_field``, its codec and the call's parameters."""

    stream: str
    id_field: str
    codec: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Media:
    """Audio of the caller; ``chunk`` is the number of the audio message, from 1, or 0 if messages have no
    numbers.
    """

    payload: bytes
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """All audio before the mark of this name was played or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The end of the call."""


StreamEvent: TypeAlias = StreamStart | Media | Played | StreamStop


class _Media(msgspec.Struct):
    payload: bytes
    track: str = "inbound"
    chunk: _Number = 0


class _Mark(msgspec.Struct):
    name: _Name


class _TwilioFormat(msgspec.Struct):
    encoding: str
    sampleRate: _Number = SAMPLE_RATE  # noqa: N815 - Twilio's name
    channels: _Number = 1


class _TelnyxFormat(msgspec.Struct):
    encoding: str
    sample_rate: _Number = SAMPLE_RATE
    channels: _Number = 1


_Parameters: TypeAlias = Annotated[
    dict[_Name, Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=MAX_PARAMETERS)
]


class _Start(msgspec.Struct):
    mediaFormat: _TwilioFormat | None = None  # noqa: N815
    media_format: _TelnyxFormat | None = None
    customParameters: _Parameters = {}  # noqa: N815
    custom_parameters: _Parameters | None = None


class _Message(msgspec.Struct):
    event: str
    streamSid: _Name = ""  # noqa: N815
    stream_id: _Name = ""
    start: _Start | None = None
    media: _Media | None = None
    mark: _Mark | None = None


_DECODER: Final = msgspec.json.Decoder(_Message)


def decode(message: bytes | str) -> StreamEvent | None:
    """Decode one message; return None for a message that a server ignores, such as ``connected`` and
    ``dtmf``.

    Raises:
        ProtocolError: the message does not belong to this protocol, or its audio has an unsupported encoding.
    """
    if isinstance(message, bytes):
        raise ProtocolError(f"a binary message of {len(message)} bytes, media streams are JSON text")
    if len(message) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(message)} characters, the limit is {MAX_MESSAGE_BYTES}")
    try:
        read = _DECODER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"a message of {len(message)} characters is none of a media stream: {error}"
        ) from error
    match read:
        case _Message(event="media", media=_Media() as media):
            return Media(media.payload, int(media.chunk)) if media.track == "inbound" else None
        case _Message(event="start", start=_Start() as start):
            return _started(read, start)
        case _Message(event="mark", mark=_Mark(name=name)):
            return Played(name)
        case _Message(event="stop"):
            return StreamStop()
        case _Message(event="media" | "start" | "mark" as event):
            raise ProtocolError(f"event is {event}, and there is no {event} in the message")
    return None


def _started(message: _Message, start: _Start) -> StreamStart:
    twilio, telnyx = start.mediaFormat, start.media_format
    encoding, rate, channels = "audio/x-mulaw", SAMPLE_RATE, 1
    if twilio is not None:
        encoding, rate, channels = twilio.encoding, int(twilio.sampleRate), int(twilio.channels)
    elif telnyx is not None:
        encoding, rate, channels = telnyx.encoding, int(telnyx.sample_rate), int(telnyx.channels)
    codec = CODECS.get(encoding)
    if codec is None or rate != SAMPLE_RATE or channels != 1:
        raise ProtocolError(
            f"the stream is {shown(encoding)} at {rate} Hz with {channels} channels; "
            f"{', '.join(CODECS)} at {SAMPLE_RATE} Hz with 1 are read: ask the service for PCMU"
        )
    stream = message.streamSid or message.stream_id
    if not stream:
        raise ProtocolError("event is start, and there is no streamSid or stream_id in the message")
    parameters = start.customParameters if start.custom_parameters is None else start.custom_parameters
    return StreamStart(stream, "streamSid" if message.streamSid else "stream_id", codec, parameters)


def encode_media(start: StreamStart, payload: bytes) -> str:
    """Encode audio that is played after all audio sent before."""
    return _written(start, "media", {"payload": base64.b64encode(payload).decode()})


def encode_mark(start: StreamStart, name: str) -> str:
    """Encode a mark, which the service returns as :class:`Played`."""
    return _written(start, "mark", {"name": name})


def encode_clear(start: StreamStart) -> str:
    """Encode the command to discard all audio that was sent and not played."""
    return _written(start, "clear", None)


def _written(start: StreamStart, event: str, value: Mapping[str, str] | None) -> str:
    message = {"event": event, start.id_field: start.stream}
    return msgspec.json.encode(message if value is None else {**message, event: value}).decode()
