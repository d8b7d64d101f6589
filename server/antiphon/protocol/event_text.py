"""A JSON event of OpenAI's socket protocols: its text, and the id that answers repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from antiphon.errors import FieldError, ProtocolError
from antiphon.protocol.fields import Fields
from antiphon.protocol.payload import parse_object
from antiphon.values import shown

E = TypeVar("E")

MAX_EVENT_CHARS = 1_048_576
"""16 seconds of audio at once, far more than clients send."""

HEAD_CHARS: Final = 1024
"""Of an event with audio: its name stands there, behind a type and an id."""

MAX_EVENT_ID_CHARS = 512
"""The published limit."""


class _AudioEvent(msgspec.Struct):
    """An event whose ``audio`` is text; what else it has is passed over and not built."""

    type: str
    audio: str
    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID_CHARS)] | None = None


_AUDIO_EVENT: Final = msgspec.json.Decoder(_AudioEvent)


def text_of(message: bytes | str) -> str:
    """The text of a WebSocket message.

    Raises:
        FieldError: a binary one.
    """
    if isinstance(message, bytes):
        raise FieldError(
            f"a binary message of {len(message)} bytes, events are text", param=None, code="invalid_json"
        )
    return message


def fields_of(text: str) -> Fields:
    """The fields of an event.

    Raises:
        FieldError: text that is too long, or no JSON object, or an ``event_id`` that is none.
    """
    if len(text) > MAX_EVENT_CHARS:
        raise FieldError(
            f"an event of {len(text)} characters, the limit is {MAX_EVENT_CHARS}",
            param=None,
            code="event_too_large",
        )
    if text.find('"audio"', 0, HEAD_CHARS) >= 0 and (audio := _audio_of(text)) is not None:
        return audio
    try:
        values = parse_object(text, "an event")
    except ProtocolError as error:
        raise FieldError(str(error), param=None, code="invalid_json") from error
    event_id = Fields(values).optional_text("event_id", max_chars=MAX_EVENT_ID_CHARS)
    return Fields(values, event_id=event_id)


def read_event(text: str, readers: Mapping[str, Callable[[Fields], E]]) -> E:
    """One event, by the reader of its type; fields that mean nothing here are ignored.

    Raises:
        FieldError: text that is no JSON object, an unknown type, or a field that cannot be used.
    """
    fields = fields_of(text)
    kind = fields.text("type", max_chars=1000)
    if kind not in readers:
        raise fields.error("type", "unknown_event", f"is {shown(kind)}, which no client of this API sends")
    return readers[kind](fields)


def _audio_of(text: str) -> Fields | None:
    """The fields of an event that appends audio; None for every other one."""
    try:
        event = _AUDIO_EVENT.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not event.type.endswith(".append"):
        return None
    return Fields({"type": event.type, "audio": event.audio}, event_id=event.event_id)
