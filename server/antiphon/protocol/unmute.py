"""Events of Kyutai's Unmute: JSON texts over a WebSocket, with Ogg/Opus in base64.

Derived from its public description and source (kyutai-labs/unmute at 84aa28d, November 2026). Names follow an
early version of OpenAI Realtime; names that only Unmute uses begin with ``unmute.``. ``session.update`` is
the first event of a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from antiphon.errors import AntiphonError
from antiphon.protocol.event_text import read_event
from antiphon.protocol.fields import Fields
from antiphon.protocol.live_events import error_of
from antiphon.protocol.live_session import MAX_INSTRUCTIONS_CHARS, MAX_NAME_CHARS
from antiphon.protocol.realtime_events import Event, event

FATAL: Final = "fatal"
"""The type of an error that ends the connection."""

MAX_LOG_CHARS: Final = 8192
"""Characters of the conversation that events repeat. Older text is omitted."""

SHOWN: Final = ("type", "text", "language")
"""The fields of instructions."""


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """More of the caller's audio: a piece of one Ogg/Opus stream."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """The client changes the agent's settings. ``session`` is repeated in the answer.

    ``instructions`` "" means the agent's own instructions; None means that the event has none. Of Unmute's
    characters only ``constant`` has a text here; the texts of the others are part of Unmute's backend.
    """

    session: Mapping[str, Any]
    instructions: str | None = None
    voice: str | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """An event that a server ignores."""


ClientEvent: TypeAlias = AppendAudio | Update | Passed


def decode(text: str) -> ClientEvent:
    """Decode one event of a client; unknown fields are ignored.

    Raises:
        FieldError: the text is not an event of this protocol, or has a field that cannot be used.
    """
    return read_event(text, _READERS)


def _update(fields: Fields) -> Update:
    session = fields.object("session")
    voice = session.optional_text("voice", max_chars=MAX_NAME_CHARS)
    shown: dict[str, Any] = {
        "instructions": None,
        "voice": voice,
        "allow_recording": session.flag("allow_recording"),
    }
    text = None
    if (instructions := session.optional_object("instructions")) is not None:
        limits = zip(SHOWN, (MAX_NAME_CHARS, MAX_INSTRUCTIONS_CHARS, MAX_NAME_CHARS), strict=True)
        values = {name: instructions.optional_text(name, max_chars=most) for name, most in limits}
        text = (values["text"] or "") if values["type"] == "constant" else ""
        shown["instructions"] = {name: value for name, value in values.items() if name in instructions}
    return Update(shown, text, voice)


_READERS: Final[Mapping[str, Callable[[Fields], ClientEvent]]] = MappingProxyType(
    {
        "session.update": _update,
        "input_audio_buffer.append": lambda fields: AppendAudio(fields.base64("audio")),
        "unmute.input_audio_buffer.append_anonymized": lambda _fields: Passed(),
    }
)


def begins_stream(audio: bytes) -> bool:
    """Whether a piece of audio begins an Ogg stream: clients may send pages of an earlier connection."""
    return audio.startswith(b"OggS") and audio[5:6] > b"" and bool(audio[5] & 2)


class ChatLog:
    """The latest words of both sides, which events repeat."""

    def __init__(self) -> None:
        """Start without words."""
        self._said: deque[tuple[str, str]] = deque()
        self._chars = 0

    def add(self, role: str, words: str, *, is_new: bool = False) -> None:
        """Add words of the ``user`` or the ``assistant``; the words continue this side's last text unless
        ``is_new``.
        """
        if self._said and self._said[-1][0] == role and not is_new:
            words = f"{self._said.pop()[1]} {words}"
            self._chars = sum(len(text) for _, text in self._said)
        self._said.append((role, words[-MAX_LOG_CHARS:]))
        self._chars += len(self._said[-1][1])
        while self._chars > MAX_LOG_CHARS:
            self._chars -= len(self._said.popleft()[1])

    @property
    def shown(self) -> list[dict[str, str]]:
        """All texts, the oldest first."""
        return [{"role": role, "content": text} for role, text in self._said]


# Events of the server.


def session_updated(session: Mapping[str, Any]) -> Event:
    """The event that repeats the session as the client has set it."""
    return event("session.updated", session=session)


def heard(word: str, start_ms: int) -> Event:
    """The event with a word of the caller, and its start in milliseconds."""
    kind = "conversation.item.input_audio_transcription.delta"
    return event(kind, delta=word, start_time=round(start_ms / 1000, 3))


def response_created(voice: str, log: ChatLog) -> Event:
    """The event that the agent starts to answer."""
    response = {
        "object": "realtime.response",
        "status": "in_progress",
        "voice": voice,
        "chat_history": log.shown,
    }
    return event("response.created", response=response)


def outputs(log: ChatLog) -> Event:
    """The event with the conversation so far."""
    args = {"chat_history": log.shown, "debug_dict": {}, "debug_plot_data": []}
    return event("unmute.additional_outputs", args=args)


def error_event(reason: AntiphonError, *, is_fatal: bool = False) -> Event:
    """The event of an error; with ``is_fatal`` the connection ends."""
    error = error_of(reason)
    kind = FATAL if is_fatal else error.type
    values = {"type": kind, "code": error.code, "message": error.message, "param": error.param}
    return event("error", error={**values, "details": None})
