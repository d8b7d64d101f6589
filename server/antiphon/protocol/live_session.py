"""The session of OpenAI Live: the client's request for it, and the object that clients see.

Derived from the types of the ``openai`` package 3.54.0 (``types/live/session_config.py``). Unknown fields are
ignored, so that clients newer than this server keep working.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from antiphon.protocol.fields import INVALID_VALUE, Fields

MAX_NAME_CHARS = 200
MAX_INSTRUCTIONS_CHARS = 65_536
"""Longest instructions in characters: the published limit is 16,384 tokens. The models' own limits are lower.
"""
MAX_MESSAGES = 128
"""Maximum number of messages of ``input``, of parts of a message, and of triggers: more than clients send."""

ROLES = ("developer", "user", "assistant")
DELEGATION_TYPES = ("client", "responses", "decisions")


class Encoding(StrEnum):
    """The encoding of audio samples."""

    PCM = "audio/pcm"  # signed 16-bit, little endian
    PCMU = "audio/pcmu"  # G.711 mu-law
    PCMA = "audio/pcma"  # G.711 A-law


RATES: Mapping[Encoding, tuple[int, ...]] = {
    Encoding.PCM: (24_000, 16_000),
    Encoding.PCMU: (8_000,),
    Encoding.PCMA: (8_000,),
}
"""The rates of each encoding in Hz, the default first."""


@dataclass(frozen=True, slots=True)
class LiveFormat:
    """The audio format of both directions; audio is mono."""

    encoding: Encoding = Encoding.PCM
    rate: int = 24_000


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message of the conversation so far."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """A requested session.

    The session object repeats ``delegation`` and ``triggers`` unchanged. Only an agent applies
    ``delegation``.
    """

    model: str
    instructions: str = ""
    history: tuple[InputMessage, ...] = ()
    format: LiveFormat = LiveFormat()
    voice: str | None = None
    delegation: Mapping[str, Any] | None = None
    triggers: tuple[Mapping[str, Any], ...] = ()
    store: bool = False

    def shown(self, *, session_id: str, expires_at: int) -> dict[str, Any]:
        """The session object of server events. The history is not repeated."""
        audio: dict[str, Any] = {"format": {"type": self.format.encoding.value, "rate": self.format.rate}}
        if self.voice is not None:
            audio["output"] = {"voice": self.voice}
        return {
            "id": session_id,
            "model": self.model,
            "status": "active",
            "expires_at": expires_at,
            "audio": audio,
            "delegation": None if self.delegation is None else dict(self.delegation),
            **({"instructions": self.instructions} if self.instructions else {}),
            **({"triggers": [dict(trigger) for trigger in self.triggers]} if self.triggers else {}),
        }


@dataclass(frozen=True, slots=True)
class SessionChange:
    """The fields that may change in a running session; None keeps the current value."""

    delegation: Mapping[str, Any] | None = None
    triggers: tuple[Mapping[str, Any], ...] | None = None


IMMUTABLE = ("model", "instructions", "input", "audio", "store", "client")
"""Fields of a session that cannot change once it has started."""


def read_session(fields: Fields) -> SessionConfig:
    """Read the session in a ``session.start`` event.

    Raises:
        FieldError: a field is missing, of the wrong type, or not supported.
    """
    if "client" in fields:
        raise fields.error("client", INVALID_VALUE, "is for WebRTC only, and this is a WebSocket")
    audio = fields.optional_object("audio")
    output = None if audio is None else audio.optional_object("output")
    return SessionConfig(
        model=fields.text("model", max_chars=MAX_NAME_CHARS),
        instructions=fields.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS) or "",
        history=tuple(_read_message(item) for item in fields.objects("input", most=MAX_MESSAGES)),
        format=LiveFormat() if audio is None else read_format(audio.optional_object("format")),
        voice=None if output is None else output.name_or_id("voice", max_chars=MAX_NAME_CHARS),
        delegation=_read_delegation(fields),
        triggers=_read_triggers(fields),
        store=fields.flag("store"),
    )


def read_change(fields: Fields) -> SessionChange:
    """Read the changes in a ``session.update`` event.

    Raises:
        FieldError: a field is of the wrong type, or cannot change.
    """
    for name in IMMUTABLE:
        if name in fields:
            raise fields.error(name, "immutable_field", "cannot change once the session has started")
    has_triggers = "triggers" in fields
    return SessionChange(_read_delegation(fields), _read_triggers(fields) if has_triggers else None)


def read_format(fields: Fields | None) -> LiveFormat:
    """Read an audio format; without a rate, it has the first rate of its encoding. Raises FieldError: the
    format is not supported.
    """
    if fields is None:
        return LiveFormat()
    encoding = Encoding(fields.choice("type", tuple(Encoding)))
    rates = RATES[encoding]
    return LiveFormat(encoding, fields.whole("rate", rates, default=rates[0]))


def _read_message(fields: Fields) -> InputMessage:
    role = fields.choice("role", ROLES)
    parts = fields.objects("content", most=MAX_MESSAGES)
    texts = [part.optional_text("text", max_chars=MAX_INSTRUCTIONS_CHARS) or "" for part in parts]
    return InputMessage(role, "".join(texts))


def _read_delegation(fields: Fields) -> Mapping[str, Any] | None:
    delegation = fields.optional_object("delegation")
    if delegation is None:
        return None
    delegation.choice("type", DELEGATION_TYPES)
    return delegation.values


def _read_triggers(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    return tuple(trigger.values for trigger in fields.objects("triggers", most=MAX_MESSAGES))
