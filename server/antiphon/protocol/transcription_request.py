"""The request of OpenAI's ``POST /v1/audio/transcriptions``.

Derived from the types of the ``openai`` package 3.54.0 (``types/audio``). ``docs/rest.md`` has a table of
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.errors import FieldError, ProtocolError
from antiphon.protocol.fields import INVALID_VALUE, MISSING, Fields
from antiphon.protocol.payload import parse_object
from antiphon.protocol.speech_request import MAX_NAME_CHARS
from antiphon.values import shown

PATH: Final = "/v1/audio/transcriptions"
FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED: Final = ("json", "text", "verbose_json")
GRANULARITIES: Final = ("segment", "word")
MAX_LANGUAGE_CHARS: Final = 40
MAX_FIELD_BYTES: Final = 65_536
"""Maximum bytes of all fields together, without the file. The longest field is a prompt."""

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
"""Fields that no supported model uses."""

KNOWN: Final = frozenset({"model", "language", "response_format", "stream", "timestamp_granularities"})
MAX_NAMED: Final = 16
_NAMEABLE: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}", re.ASCII)
"""Maximum number of unknown field names in a reply, and the pattern of a name."""

_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """The options of a transcription. ``ignored`` are the fields without effect."""

    model: str | None = None
    language: str = ""
    format: str = "json"
    granularities: tuple[str, ...] = ("segment",)
    is_stream: bool = False
    ignored: tuple[str, ...] = ()


def parse_form(named: Mapping[str, Sequence[str]], *, has_file: bool) -> TranscriptionRequest:
    """The options in a form's fields, each with all its values; unknown fields are listed as ignored.

    Clients write ``response-format``, ``timestamp_granularities[0]`` and lists in JSON too.

    Raises:
        FieldError: a field cannot be used, or has two values although one is needed.
    """
    if not has_file:
        raise FieldError("file is missing", param="file", code=MISSING)
    values: dict[str, list[str]] = {}
    for name, entries in named.items():
        values.setdefault(base_of(name), []).extend(entry for entry in entries if entry)
    fields = Fields(
        {
            name: _one(name, entries)
            for name, entries in values.items()
            if entries and name in KNOWN - {"timestamp_granularities"}
        }
    )
    format_ = fields.optional_choice("response_format", FORMATS) or "json"
    is_stream = _flag(fields, "stream")
    if is_stream and format_ not in STREAMED:
        words = f"needs response_format {', '.join(STREAMED)}, got {format_}"
        raise fields.error("stream", INVALID_VALUE, words)
    others = {name for name, entries in values.items() if entries} - KNOWN
    unknown = sorted(name for name in others - IGNORED if _NAMEABLE.fullmatch(name))
    return TranscriptionRequest(
        model=fields.optional_text("model", max_chars=MAX_NAME_CHARS),
        language=fields.optional_text("language", max_chars=MAX_LANGUAGE_CHARS) or "",
        format=format_,
        granularities=_granularities(values, format_),
        is_stream=is_stream,
        ignored=tuple(sorted([*(others & IGNORED), *unknown[:MAX_NAMED]])),
    )


def base_of(name: str) -> str:
    """A field's name without the brackets of lists and objects, as in ``include[]``, and without hyphens."""
    return name.partition("[")[0].replace("-", "_")


def _one(name: str, entries: Sequence[str]) -> str:
    """The value of a field that may have only one.

    Raises:
        FieldError: it has two values.
    """
    other = next((entry for entry in entries if entry != entries[0]), None)
    if other is not None:
        raise Fields({}).error(name, INVALID_VALUE, f"is both {shown(entries[0])} and {shown(other)}")
    return entries[0]


def _listed(entry: str) -> Sequence[object]:
    """The entries of a field that may hold a list in JSON."""
    try:
        found = parse_object(f'{{"list":{entry}}}', "a list")["list"] if entry.startswith("[") else [entry]
    except ProtocolError:
        return [entry]
    return found if isinstance(found, list) else [entry]


def _granularities(values: Mapping[str, Sequence[str]], format_: str) -> tuple[str, ...]:
    asked = tuple(it for entry in values.get("timestamp_granularities", ()) for it in _listed(entry))
    wrong = [entry for entry in asked if entry not in GRANULARITIES]
    words = ""
    if wrong:
        words = f"is {shown(wrong[0])}, not one of {', '.join(GRANULARITIES)}"
    elif asked and format_ != "verbose_json":
        words = f"needs response_format verbose_json, got {format_}"
    if words:
        raise Fields(values).error("timestamp_granularities", INVALID_VALUE, words)
    return tuple(map(str, asked)) or ("segment",)


def _flag(fields: Fields, name: str) -> bool:
    value = (fields.optional_text(name, max_chars=1000) or "false").lower()
    if value not in (*_TRUE, *_FALSE):
        raise fields.error(name, INVALID_VALUE, f"is {shown(value)}, true or false is needed")
    return value in _TRUE
