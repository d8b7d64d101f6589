"""Reads the JSON events of OpenAI's socket protocols, each with the id that replies repeat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from antiphon.errors import FieldError, ProtocolError
from antiphon.protocol.fields import INVALID_VALUE, Fields
from antiphon.protocol.payload import parse_object
from antiphon.values import shown

E = TypeVar("E")

MAX_EVENT_CHARS = 1_048_576
"""Longest event in characters: 16 seconds of audio, far more than clients send."""

MAX_PLAIN_CHARS: Final = 524_288
"""Longest event without audio, in characters. Such an event is parsed in full; the longest instructions,
escaped, have 393,216 characters.
"""

MAX_EXPLAINED_CHARS: Final = 65_536
"""Longest event with invalid base64 that is parsed to find the error, in characters."""

HEAD_CHARS: Final = 1024
"""Characters at the start of an event in which the name of its audio field is expected."""

MAX_EVENT_ID_CHARS = 512
"""Maximum number of characters of an id, the published limit."""


LIFE_S: Final = 86_400


def expiry_of(start_s: float) -> int:
    """``expires_at`` of a session, in seconds since 1970. The APIs require it, but sessions have no limit."""
    return int(start_s) + LIFE_S


class _AudioEvent(msgspec.Struct):
    """An event whose ``audio`` is base64; its other fields are skipped and not built."""

    type: str
    audio: bytes
    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID_CHARS)] | None = None


class _AudioHead(msgspec.Struct):
    """An event whose ``audio`` is not base64."""

    type: str
    audio: msgspec.Raw
    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID_CHARS)] | None = None


_AUDIO_EVENT: Final = msgspec.json.Decoder(_AudioEvent)
_AUDIO_HEAD: Final = msgspec.json.Decoder(_AudioHead)
_NO_BASE64: Final = "Invalid base64 encoded string"


def text_of(message: bytes | str) -> str:
    """The text of a WebSocket message.

    Raises:
        FieldError: the message is binary.
    """
    if isinstance(message, bytes):
        raise FieldError(
            f"a binary message of {len(message)} bytes, events are text", param=None, code="invalid_json"
        )
    return message


def fields_of(text: str) -> Fields:
    """Parse the text of an event into its fields.

    Raises:
        FieldError: the text is too long, is not a JSON object, or has an invalid ``event_id``.
    """
    if len(text) > MAX_EVENT_CHARS:
        raise FieldError(
            f"an event of {len(text)} characters, the limit is {MAX_EVENT_CHARS}",
            param=None,
            code="event_too_large",
        )
    if text.find('"audio"', 0, HEAD_CHARS) >= 0 and (audio := _audio_of(text)) is not None:
        return audio
    if len(text) > MAX_PLAIN_CHARS:
        raise FieldError(
            f"an event of {len(text)} characters without audio, the limit is {MAX_PLAIN_CHARS}",
            param=None,
            code="event_too_large",
        )
    try:
        values = parse_object(text, "an event")
    except ProtocolError as error:
        raise FieldError(str(error), param=None, code="invalid_json") from error
    event_id = Fields(values).optional_text("event_id", max_chars=MAX_EVENT_ID_CHARS)
    return Fields(values, event_id=event_id)


def read_event(text: str, readers: Mapping[str, Callable[[Fields], E]]) -> E:
    """One event, parsed by the reader of its type; unknown fields are ignored.

    Raises:
        FieldError: the text is not a JSON object, the type is unknown, or a field cannot be used.
    """
    fields = fields_of(text)
    kind = fields.text("type", max_chars=1000)
    if kind not in readers:
        raise fields.error("type", "unknown_event", f"is {shown(kind)}, which no client of this API sends")
    return readers[kind](fields)


def _audio_of(text: str) -> Fields | None:
    """The fields of an event that appends audio, decoded to bytes; None for every other event.

    Raises:
        FieldError: a long event whose audio is no base64; for a short one the general parser gives the
        reason.
    """
    try:
        event = _AUDIO_EVENT.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if len(text) > MAX_EXPLAINED_CHARS and _NO_BASE64 in str(error):
            _refuse_audio(text)
        return None
    if not event.type.endswith(".append"):
        return None
    return Fields({"type": event.type, "audio": event.audio}, event_id=event.event_id)


def _refuse_audio(text: str) -> None:
    """Raise FieldError for an event that appends audio; other events pass."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        head = _AUDIO_HEAD.decode(text)
        if head.type.endswith(".append"):
            fields = Fields({"type": head.type}, event_id=head.event_id)
            raise fields.error("audio", INVALID_VALUE, f"is not base64: {_NO_BASE64}")
