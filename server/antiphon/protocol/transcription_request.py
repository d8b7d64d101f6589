"""The request of OpenAI's ``POST /v1/audio/transcriptions``.

Read off the types of the ``openai`` package 3.54.0 (``types/audio``). ``docs/rest.md`` has a table of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.errors import FieldError
from antiphon.protocol.fields import INVALID_VALUE, MISSING, Fields
from antiphon.protocol.speech_request import MAX_NAME_CHARS
from antiphon.values import shown

PATH: Final = "/v1/audio/transcriptions"
FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED: Final = ("json", "text")
GRANULARITIES: Final = ("segment", "word")
MAX_LANGUAGE_CHARS: Final = 40
MAX_FIELD_BYTES: Final = 65_536
"""Of all fields together, the file apart: prompts are the longest."""

IGNORED: Final = frozenset(
    {
        "prompt",
        "temperature",
        "languages",
        "keywords",
        "include",
        "chunking_strategy",
        "known_speaker_names",
        "known_speaker_references",
    }
)
"""Fields that no model here follows."""

_GRANULARITY_FIELDS: Final = ("timestamp_granularities[]", "timestamp_granularities")
"""Clients that write forms themselves leave the brackets out."""

_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """How a recording is to be written down. ``ignored`` are the fields without effect."""

    model: str | None = None
    language: str = ""
    format: str = "json"
    granularities: tuple[str, ...] = ("segment",)
    is_stream: bool = False
    ignored: tuple[str, ...] = ()


def parse_form(values: Mapping[str, Sequence[str]], *, has_file: bool) -> TranscriptionRequest:
    """What the fields of a form ask for, each with all its values; those that mean nothing are passed over.

    Raises:
        FieldError: a field that cannot be used.
    """
    if not has_file:
        raise FieldError("file is missing", param="file", code=MISSING)
    fields = Fields({name: entries[-1] for name, entries in values.items() if entries[-1]})
    format_ = fields.optional_choice("response_format", FORMATS) or "json"
    is_stream = _flag(fields, "stream")
    if is_stream and format_ not in STREAMED:
        words = f"needs response_format {' or '.join(STREAMED)}, got {format_}"
        raise fields.error("stream", INVALID_VALUE, words)
    return TranscriptionRequest(
        model=fields.optional_text("model", max_chars=MAX_NAME_CHARS),
        language=fields.optional_text("language", max_chars=MAX_LANGUAGE_CHARS) or "",
        format=format_,
        granularities=_granularities(values, format_),
        is_stream=is_stream,
        ignored=tuple(sorted({base_of(name) for name in fields.values} & IGNORED)),
    )


def base_of(name: str) -> str:
    """A field's name without the brackets of lists and objects, as in ``include[]``."""
    return name.partition("[")[0]


def _granularities(values: Mapping[str, Sequence[str]], format_: str) -> tuple[str, ...]:
    asked = tuple(entry for name in _GRANULARITY_FIELDS for entry in values.get(name, ()))
    wrong = [entry for entry in asked if entry not in GRANULARITIES]
    words = ""
    if wrong:
        words = f"is {shown(wrong[0])}, not one of {', '.join(GRANULARITIES)}"
    elif asked and format_ != "verbose_json":
        words = f"needs response_format verbose_json, got {format_}"
    if words:
        raise Fields(values).error("timestamp_granularities", INVALID_VALUE, words)
    return asked or ("segment",)


def _flag(fields: Fields, name: str) -> bool:
    value = (fields.optional_text(name, max_chars=1000) or "false").lower()
    if value not in (*_TRUE, *_FALSE):
        raise fields.error(name, INVALID_VALUE, f"is {shown(value)}, true or false is needed")
    return value in _TRUE
