"""The request of OpenAI's ``POST /v1/audio/speech``, and the events of its response.

Derived from the types of the ``openai`` package 3.54.0 (``types/audio``). ``docs/rest.md`` has a table of
them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from antiphon.errors import FieldError, ProtocolError
from antiphon.protocol.fields import INVALID_VALUE, Fields
from antiphon.protocol.payload import MAX_JSON_BYTES, decode_object, encode_object

PATH: Final = "/v1/audio/speech"
CODECS: Final[Mapping[str, str]] = MappingProxyType(
    {"mp3": "mp3", "opus": "ogg_file", "aac": "aac", "flac": "flac", "wav": "wav", "pcm": "pcm"}
)
"""The formats by name, and the codec of each."""

EVENTS: Final = "text/event-stream"
MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0

MAX_NAME_CHARS: Final = 200
"""Maximum number of characters of a model's or a voice's name."""


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A text and the options of its speech. ``ignored`` are the fields without effect."""

    text: str
    model: str | None = None
    voice: str | None = None
    format: str = "mp3"
    speed: float = 1.0
    is_sse: bool = False
    ignored: tuple[str, ...] = ()


def parse_speech_request(data: bytes) -> SpeechRequest:
    """Parse the JSON of a request; unknown fields are ignored.

    Raises:
        FieldError: the body is not a JSON object, or a field cannot be used.
    """
    try:
        fields = Fields(decode_object(data, "the request"))
    except ProtocolError as error:
        raise FieldError(str(error), param=None, code="invalid_json") from error
    text = fields.text("input", max_chars=MAX_JSON_BYTES)
    if not text.strip():
        raise fields.error("input", INVALID_VALUE, "has no words")
    return SpeechRequest(
        text=text,
        model=fields.optional_text("model", max_chars=MAX_NAME_CHARS) or None,
        voice=None
        if fields.values.get("voice") == ""
        else fields.name_or_id("voice", max_chars=MAX_NAME_CHARS),
        format=fields.optional_choice("response_format", tuple(CODECS)) or "mp3",
        speed=fields.number("speed", MIN_SPEED, MAX_SPEED, default=1.0),
        is_sse=fields.optional_choice("stream_format", ("audio", "sse")) == "sse",
        ignored=("instructions",) if fields.optional_text("instructions", max_chars=MAX_JSON_BYTES) else (),
    )


def audio_delta(audio: bytes) -> bytes:
    """The event with a piece of the audio file."""
    return sse({"type": "speech.audio.delta", "audio": base64.b64encode(audio).decode("ascii")})


def audio_done(words: int, unspoken: int, frames: int) -> bytes:
    """The end event, with usage: input is the number of words given to the model, output the number of frames
    of 80 ms.

    ``unspoken`` is the number of words that the model cannot speak and did not get.
    """
    usage = {"input_tokens": words, "output_tokens": frames, "total_tokens": words + frames}
    usage |= {"unspoken_words": unspoken} if unspoken else {}
    return sse({"type": "speech.audio.done", "usage": usage})


def sse(event: dict[str, object]) -> bytes:
    """One event of a ``text/event-stream``."""
    return b"data: " + encode_object(event, "an event") + b"\n\n"
