"""A JSON event of OpenAI's socket protocols: its text, and the id that answers repeat."""

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
"""16 seconds of audio at once, far more than clients send."""

MAX_PLAIN_CHARS: Final = 524_288
"""Of one without audio, which a general parser reads: the longest instructions, escaped, have 393,216."""

MAX_EXPLAINED_CHARS: Final = 65_536
"""Of an event whose audio is no base64, to find out why."""

HEAD_CHARS: Final = 1024
"""Of an event with audio: its name stands there, behind a type and an id."""

MAX_EVENT_ID_CHARS = 512
"""The published limit."""


class _AudioEvent(msgspec.Struct):
    """An event whose ``audio`` is base64; what else it has is passed over and not built."""

    type: str
    audio: bytes
    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID_CHARS)] | None = None


class _AudioHead(msgspec.Struct):
    """The same where ``audio`` is something else."""

    type: str
    audio: msgspec.Raw
    event_id: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_ID_CHARS)] | None = None


_AUDIO_EVENT: Final = msgspec.json.Decoder(_AudioEvent)
_AUDIO_HEAD: Final = msgspec.json.Decoder(_AudioHead)
_NO_BASE64: Final = "Invalid base64 encoded string"


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
    """The fields of an event that appends audio, already bytes; None for every other one.

    Raises:
        FieldError: a long event whose audio is no base64; of a short one the general parser says why.
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
    """Raise FieldError for an event that appends audio, and do nothing for another one."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        head = _AUDIO_HEAD.decode(text)
        if head.type.endswith(".append"):
            fields = Fields({"type": head.type}, event_id=head.event_id)
            raise fields.error("audio", INVALID_VALUE, f"is not base64: {_NO_BASE64}")
