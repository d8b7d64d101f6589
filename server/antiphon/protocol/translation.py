"""OpenAI's translation sessions over ``/v1/realtime/translations``: audio in one language, out in another.

The events follow the types of the ``openai`` package 3.54.0 (``types/realtime/realtime_translation_*.py``).
Client and server send 16-bit audio at 24 kHz all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from antiphon.protocol.event_text import read_event
from antiphon.protocol.fields import Fields
from antiphon.protocol.live_session import MAX_NAME_CHARS
from antiphon.protocol.realtime import AppendAudio, Update
from antiphon.protocol.realtime_events import Event, event

SAMPLE_RATE = 24_000


@dataclass(frozen=True, slots=True)
class TranslationSession:
    """A requested translation session. Fields other than the model are shown, and have no effect."""

    model: str
    language: str | None = None
    transcription: Mapping[str, Any] | None = None
    noise_reduction: Mapping[str, Any] | None = None

    def shown(self, *, session_id: str, expires_at: int) -> dict[str, Any]:
        """The session object of server events."""
        audio_input = {"transcription": self.transcription, "noise_reduction": self.noise_reduction}
        return {
            "id": session_id,
            "type": "translation",
            "model": self.model,
            "expires_at": expires_at,
            "audio": {"input": audio_input, "output": {"language": self.language}},
        }


@dataclass(frozen=True, slots=True)
class Close:
    """The end of the audio: the server translates the rest and ends the session."""

    event_id: str | None = None


ClientEvent: TypeAlias = Update | AppendAudio | Close

READERS: Final[Mapping[str, Callable[[Fields], ClientEvent]]] = {
    "session.update": lambda it: Update(it.object("session"), it.event_id),
    "session.input_audio_buffer.append": lambda it: AppendAudio(it.base64("audio"), it.event_id),
    "session.close": lambda it: Close(it.event_id),
}
"""The supported events, and the reader of each."""


def decode(text: str) -> ClientEvent:
    """Read one event; unknown fields are ignored.

    Raises:
        FieldError: the text is not a JSON object, the type is unknown, or a field cannot be used.
    """
    return read_event(text, READERS)


def change(session: TranslationSession, fields: Fields) -> TranslationSession:
    """The session after the changes of a ``session.update`` event.

    Raises:
        FieldError: a field has the wrong type.
    """
    audio = fields.optional_object("audio")
    heard = None if audio is None else audio.optional_object("input")
    said = None if audio is None else audio.optional_object("output")
    language, transcription, noise = session.language, session.transcription, session.noise_reduction
    if said is not None:
        language = said.optional_text("language", max_chars=MAX_NAME_CHARS) or language
    if heard is not None and "transcription" in heard.values:
        transcription = _values(heard, "transcription")
    if heard is not None and "noise_reduction" in heard.values:
        noise = _values(heard, "noise_reduction")
    return TranslationSession(session.model, language, transcription, noise)


def output_audio(pcm: bytes, elapsed_ms: int) -> Event:
    """The event with the next audio."""
    place = {"format": "pcm16", "sample_rate": SAMPLE_RATE, "channels": 1, "elapsed_ms": elapsed_ms}
    return event("session.output_audio.delta", delta=pcm, **place)


def output_transcript(text: str, elapsed_ms: int) -> Event:
    """The event with the text of the next audio."""
    return event("session.output_transcript.delta", delta=text, elapsed_ms=elapsed_ms)


def _values(fields: Fields, name: str) -> Mapping[str, Any] | None:
    found = fields.optional_object(name)
    return None if found is None else found.values
