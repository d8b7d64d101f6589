"""Asterisk's channel over a WebSocket (``chan_websocket``): control messages to text and back.

Derived from its public documentation (docs.asterisk.org, "WebSocket channel") and from what Asterisk's main
branch of August 2026 sends. Audio is binary, in the codec of the channel. Control messages are text: a word
and ``name:value`` pairs, or JSON, depending on the channel's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from antiphon.errors import ProtocolError
from antiphon.values import shown

MAX_MESSAGE_BYTES: Final = 16_384
"""Largest audio message in bytes (a second at 8 kHz), and largest control message. Asterisk sends 20 ms at a
time."""

MAX_NAME_CHARS: Final = 256
MAX_FRAME_BYTES: Final = 8_192

FORMATS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "slin": ("pcm_s16le", 8_000),
        "slin12": ("pcm_s16le", 12_000),
        "slin16": ("pcm_s16le", 16_000),
        "slin24": ("pcm_s16le", 24_000),
        "slin32": ("pcm_s16le", 32_000),
        "slin44": ("pcm_s16le", 44_100),
        "slin48": ("pcm_s16le", 48_000),
        "ulaw": ("pcmu", 8_000),
        "alaw": ("pcma", 8_000),
    }
)
"""Asterisk's name of each accepted format, its codec and its rate."""


@dataclass(frozen=True, slots=True)
class MediaStart:
    """The first message, with the format and the bytes of a frame. ``is_json``: answers are JSON as well."""

    channel: str
    codec: str
    rate: int
    frame_bytes: int
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class MediaPlayed:
    """All audio before the mark of this name was played."""

    name: str


AsteriskEvent: TypeAlias = MediaStart | MediaPlayed


class _Event(msgspec.Struct):
    event: str
    channel: str = ""
    format: str = ""
    optimal_frame_size: int | str = 0
    correlation_id: str = ""


_DECODER: Final = msgspec.json.Decoder(_Event)


def decode(message: bytes | str) -> AsteriskEvent | None:
    """Decode a control message; return None for a message that needs no answer.

    Raises:
        ProtocolError: the message is invalid, or starts media in an unsupported format.
    """
    if isinstance(message, bytes):
        raise ProtocolError(f"a binary message of {len(message)} bytes before MEDIA_START")
    if len(message) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(message)} characters, the limit is {MAX_MESSAGE_BYTES}")
    is_json = message.startswith("{")
    event = _from_json(message) if is_json else _from_words(message)
    if event.event == "MEDIA_START":
        return _started(event, is_json=is_json)
    if event.event == "MEDIA_MARK_PROCESSED":
        return MediaPlayed(event.correlation_id[:MAX_NAME_CHARS])
    return None


def _from_json(message: str) -> _Event:
    try:
        return _DECODER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"a message of {len(message)} characters is none of this channel: {error}"
        ) from error


def _from_words(message: str) -> _Event:
    """Parse ``NAME key:value key:value``; an event about a mark has the mark's name after a space."""
    name, _, rest = message.partition(" ")
    if name == "MEDIA_MARK_PROCESSED":
        return _Event(name, correlation_id=rest)
    values = dict(part.split(":", 1) for part in rest.split(" ") if ":" in part)
    return _Event(
        name, values.get("channel", ""), values.get("format", ""), values.get("optimal_frame_size", "")
    )


def _started(event: _Event, *, is_json: bool) -> MediaStart:
    known = FORMATS.get(event.format)
    if known is None:
        raise ProtocolError(
            f"the format is {shown(event.format)}, not one of {', '.join(FORMATS)}: add c(slin24) to Dial"
        )
    size = str(event.optimal_frame_size)
    if not (size.isascii() and size.isdigit() and len(size) < 6 and 0 < int(size) <= MAX_FRAME_BYTES):
        raise ProtocolError(f"optimal_frame_size is {shown(size)}, 1 to {MAX_FRAME_BYTES} are allowed")
    return MediaStart(event.channel[:MAX_NAME_CHARS], *known, int(size), is_json=is_json)


def encode(start: MediaStart, command: str, mark: str = "") -> str:
    """Encode a command, such as ``ANSWER``, ``FLUSH_MEDIA`` and ``MARK_MEDIA`` (with a mark's name)."""
    if not start.is_json:
        return f"{command} {mark}" if mark else command
    return json.dumps({"command": command, "correlation_id": mark} if mark else {"command": command})
