"""The binary messages of ``/api/chat``: one tag byte, then the payload, little endian.

Tags 0 to 9 are those of the Moshi family of servers and clients (rust/protocol.md, moshi-backend,
moshi-server and the web client of kyutai-labs/moshi); 0x10 and 0x11 are Antiphon's own and are only sent
to clients that requested them. ``docs/protocol.md`` describes both; ``tests/protocol/vectors`` pins the
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from antiphon.errors import ProtocolError
from antiphon.protocol.payload import decode_object, decode_text, encode_object


class Tag(IntEnum):
    """The first byte of a message."""

    HANDSHAKE = 0x00
    AUDIO = 0x01
    TEXT = 0x02
    CONTROL = 0x03
    METADATA = 0x04
    ERROR = 0x05
    PING = 0x06
    COLOURED_TEXT = 0x07
    CODES = 0x09
    EVENT = 0x10
    STAMPED_AUDIO = 0x11


class ControlAction(IntEnum):
    """The payload of a control message."""

    START = 0
    END_TURN = 1
    PAUSE = 2
    RESTART = 3


@dataclass(frozen=True, slots=True)
class Handshake:
    """The server is ready. Both versions are u32; 0 is the only protocol version."""

    protocol_version: int = 0
    model_version: int = 0


@dataclass(frozen=True, slots=True)
class Audio:
    """A piece of audio in the session's format; with Ogg, any piece of one stream."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Text:
    """One SentencePiece piece, with spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Control:
    """A command of half-duplex clients about turns."""

    action: ControlAction


@dataclass(frozen=True, slots=True)
class Metadata:
    """A JSON object about the model and its parameters."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Error:
    """An error with its reason."""

    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    """A keepalive without content."""


@dataclass(frozen=True, slots=True)
class ColouredText:
    """A piece of text and the u8 index of its colour."""

    colour: int
    text: str


@dataclass(frozen=True, slots=True)
class Codes:
    """One frame of codec tokens, each a u32."""

    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A JSON object whose key ``type`` names the event; ``fields`` are its other keys."""

    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StampedAudio:
    """The audio that answers input frame ``frame`` (u32).

    ``step_ms`` is the time of the tick that made it and ``wait_ms`` the time that the frame waited for that
    tick; on the wire both are u16 in units of 0.1 ms and saturate at 6553.5 ms.
    """

    frame: int
    step_ms: float
    wait_ms: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message with an unknown tag, which the receiver discards."""

    tag: int
    data: bytes


Message: TypeAlias = (
    Handshake
    | Audio
    | Text
    | Control
    | Metadata
    | Error
    | Ping
    | ColouredText
    | Codes
    | Event
    | StampedAudio
    | Unknown
)

_TAGS = frozenset(Tag)
_VERSIONS = struct.Struct("<II")
_STAMP = struct.Struct("<IHH")
_STAMPED_HEAD = struct.Struct("<BIHH")
_U32_MAX = 0xFFFF_FFFF
_TENTHS_MAX = 0xFFFF


def decode(data: bytes) -> Message:
    """Read one message; an unknown tag is :class:`Unknown`, not an error.

    Raises:
        ProtocolError: an empty message, or a payload that is invalid for its tag.
    """
    if not data:
        raise ProtocolError("a message of 0 bytes: at least the tag is needed")
    tag, payload = data[0], data[1:]
    size = len(payload)
    match tag:
        case Tag.AUDIO:
            return Audio(payload)
        case Tag.STAMPED_AUDIO:
            if size < _STAMP.size:
                raise ProtocolError(f"stamped audio with {size} bytes after its tag, the stamp takes 8")
            frame, step, wait = _STAMP.unpack_from(payload)
            return StampedAudio(frame, step / 10, wait / 10, payload[_STAMP.size :])
        case Tag.TEXT:
            return Text(decode_text(payload, "text"))
        case Tag.EVENT:
            fields = decode_object(payload, "an event")
            type_ = fields.pop("type", None)
            if not isinstance(type_, str) or not type_:
                raise ProtocolError(f"an event of type {type_!r}, a word is needed")
            return Event(type_, fields)
        case Tag.HANDSHAKE:
            if size not in (0, 2, 8):  # Python servers, the web client's format, Rust servers
                raise ProtocolError(f"a handshake with {size} bytes after its tag, 0, 2 or 8 are known")
            return Handshake(*(_VERSIONS.unpack(payload) if size == 8 else payload))
        case Tag.CONTROL:
            if size != 1 or payload[0] > max(ControlAction):
                shown = payload[:4].hex() or "with no byte"
                raise ProtocolError(f"control {shown}, one byte of 00 to 03 is needed")
            return Control(ControlAction(payload[0]))
        case Tag.METADATA:
            return Metadata(decode_object(payload, "metadata"))
        case Tag.ERROR:
            return Error(decode_text(payload, "an error"))
        case Tag.PING:
            if payload:
                raise ProtocolError(f"a ping with {size} bytes after its tag, it has none")
            return Ping()
        case Tag.COLOURED_TEXT:
            if not payload:
                raise ProtocolError("coloured text with 0 bytes after its tag, the colour is missing")
            return ColouredText(payload[0], decode_text(payload[1:], "coloured text"))
        case Tag.CODES:
            if size % 4:
                raise ProtocolError(f"codes in {size} bytes, each one takes 4")
            return Codes(struct.unpack(f"<{size // 4}I", payload))
    return Unknown(tag, payload)


def encode(message: Message) -> bytes:
    """Write one message.

    Raises:
        ProtocolError: a value that its field cannot hold.
    """
    match message:
        case StampedAudio(frame, step_ms, wait_ms, data):
            return stamped_head(frame, step_ms, wait_ms) + data
        case Audio(data):
            return b"\x01" + data
        case Text(text):
            return b"\x02" + _utf8(text, "text")
        case Event(type_, fields):
            if not type_ or "type" in fields:
                names = f"fields {sorted(fields)}: one type, outside its fields"
                raise ProtocolError(f"an event of type {type_!r} with {names}")
            return b"\x10" + encode_object({"type": type_, **fields}, "an event")
        case Handshake(protocol_version, model_version):
            versions = (_u32(protocol_version, "protocol_version"), _u32(model_version, "model_version"))
            return b"\x00" + _VERSIONS.pack(*versions)
        case Control(action):
            return bytes((Tag.CONTROL, action))
        case Metadata(values):
            return b"\x04" + encode_object(values, "metadata")
        case Error(words):
            return b"\x05" + _utf8(words, "an error")
        case Ping():
            return b"\x06"
        case ColouredText(colour, text):
            return bytes((Tag.COLOURED_TEXT, _u8(colour, "colour"))) + _utf8(text, "coloured text")
        case Codes(codes):
            return b"\x09" + b"".join(_u32(code, "a code").to_bytes(4, "little") for code in codes)
        case Unknown(tag, data):
            if tag in _TAGS:
                raise ProtocolError(f"tag {tag:#04x} is {Tag(tag).name}, not unknown")
            return bytes((_u8(tag, "tag"),)) + data


def stamped_head(frame: int, step_ms: float, wait_ms: float) -> bytes:
    """The bytes before the data of :class:`StampedAudio`, the same for all packets of one frame.

    Raises:
        ProtocolError: a value that its field cannot hold.
    """
    return _STAMPED_HEAD.pack(
        Tag.STAMPED_AUDIO, _u32(frame, "frame"), _tenths(step_ms, "step_ms"), _tenths(wait_ms, "wait_ms")
    )


def _u8(value: int, what: str) -> int:
    if not 0 <= value <= 0xFF:
        raise ProtocolError(f"{what} is {value}, a byte holds 0 to 255")
    return value


def _u32(value: int, what: str) -> int:
    if not 0 <= value <= _U32_MAX:
        raise ProtocolError(f"{what} is {value}, a u32 holds 0 to {_U32_MAX}")
    return value


def _tenths(milliseconds: float, what: str) -> int:
    if not milliseconds >= 0:  # also false for NaN
        raise ProtocolError(f"{what} is {milliseconds} ms, a time is 0 or more")
    return round(min(milliseconds * 10, _TENTHS_MAX))


def _utf8(text: str, what: str) -> bytes:
    """Text to UTF-8.

    Raises:
        ProtocolError: a lone surrogate, which UTF-8 cannot carry.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{what} cannot be UTF-8 at character {error.start}: {error.reason}") from error
