"""The session object of OpenAI Realtime: the client's request, and the form that clients see.

Derived from the types of the ``openai`` package 3.54.0 (``types/realtime/realtime_session_create_request.py``
and ``realtime_transcription_session_create_request.py``). A change contains only the changed fields. Fields
without effect are kept and repeated, and unknown ones are ignored, so that newer clients keep working.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from antiphon.errors import FieldError
from antiphon.protocol.fields import INVALID_VALUE, UNSUPPORTED_VALUE, Fields
from antiphon.protocol.live_session import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_NAME_CHARS,
    Encoding,
    LiveFormat,
    read_format,
)
from antiphon.values import shown

MAX_KEPT_CHARS: Final = 262_144
"""Maximum bytes of all fields without effect, as JSON. The server repeats them after every change."""


class SessionType(StrEnum):
    """The purpose of a session."""

    REALTIME = "realtime"
    TRANSCRIPTION = "transcription"


class DetectionType(StrEnum):
    """The method that detects the caller's turns."""

    SERVER_VAD = "server_vad"
    SEMANTIC_VAD = "semantic_vad"


EAGERNESS: Final[Mapping[str, int]] = {"low": 1000, "medium": 600, "auto": 600, "high": 300}
"""Milliseconds of silence that end a turn with ``semantic_vad``, by its eagerness. The server does not
consider the words.
"""


@dataclass(frozen=True, slots=True)
class Detection:
    """The field ``turn_detection``. ``level_dbfs`` and ``silence_ms`` are the detector's parameters."""

    type: DetectionType = DetectionType.SERVER_VAD
    threshold: float = 0.5
    prefix_ms: int = 300
    silence_ms: int = 500
    eagerness: str | None = None
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None

    @property
    def level_dbfs(self) -> float:
        """Level above which a block is speech: -45 at the default threshold of 0.5."""
        return -60.0 + 30.0 * self.threshold

    def shown(self) -> dict[str, Any]:
        """The field as a session shows it."""
        answers = {"create_response": self.create_response, "interrupt_response": self.interrupt_response}
        if self.type is DetectionType.SEMANTIC_VAD:
            return {"type": self.type.value, "eagerness": self.eagerness, **answers}
        return {
            "type": self.type.value,
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_ms,
            "silence_duration_ms": self.silence_ms,
            "idle_timeout_ms": self.idle_timeout_ms,
            **answers,
        }


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of a response."""

    modalities: tuple[str, ...] = ("audio",)
    format: LiveFormat = field(default_factory=LiveFormat)
    voice: str | None = None

    @property
    def has_audio(self) -> bool:
        """Whether the response is spoken; otherwise it is text only."""
        return "audio" in self.modalities

    def shown(self) -> dict[str, Any]:
        """The field ``audio.output`` as a session or a response shows it."""
        return {"format": show_format(self.format), "voice": self.voice}


@dataclass(frozen=True, slots=True)
class RealtimeSession:
    """A requested session. ``kept`` maps the paths of fields without effect to their values.

    With ``has_tools`` (sessions of an agent) tools have an effect.
    """

    model: str
    type: SessionType = SessionType.REALTIME
    instructions: str = ""
    input_format: LiveFormat = field(default_factory=LiveFormat)
    detection: Detection | None = field(default_factory=Detection)
    transcription: Mapping[str, Any] | None = None
    output: OutputFormat = field(default_factory=OutputFormat)
    has_tools: bool = False
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def transcription_model(self) -> str | None:
        """The name of the recogniser, if any."""
        return None if self.transcription is None else self.transcription.get("model")

    def shown(self, *, session_id: str, expires_at: int) -> dict[str, Any]:
        """The session object of server events."""
        audio_input = {
            "format": show_format(self.input_format),
            "transcription": None if self.transcription is None else dict(self.transcription),
            "noise_reduction": self.kept.get("noise_reduction"),
            "turn_detection": None if self.detection is None else self.detection.shown(),
        }
        common = {"id": session_id, "type": self.type.value, "expires_at": expires_at}
        if self.type is SessionType.TRANSCRIPTION:
            return {
                **common,
                "object": "realtime.transcription_session",
                "audio": {"input": audio_input},
                "include": self.kept.get("include"),
            }
        return {
            **common,
            "object": "realtime.session",
            "model": self.model,
            "instructions": self.instructions,
            "output_modalities": list(self.output.modalities),
            "audio": {"input": audio_input, "output": {**self.output.shown(), "speed": self._kept("speed")}},
            **{name: self._kept(name) for name in KEPT},
        }

    def _kept(self, name: str) -> Any:
        return self.kept.get(name, DEFAULTS.get(name))


KEPT: Final = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_output_tokens",
    "reasoning",
    "tracing",
    "truncation",
    "prompt",
    "include",
)
"""Fields of a session that are shown unchanged, and have no effect."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "tools": [],
    "tool_choice": "auto",
    "max_output_tokens": "inf",
    "truncation": "auto",
    "speed": 1.0,
}


def show_format(audio: LiveFormat) -> dict[str, Any]:
    """A format as the API writes it: G.711 has no rate."""
    rate = {"rate": audio.rate} if audio.encoding is Encoding.PCM else {}
    return {"type": audio.encoding.value, **rate}


def change(session: RealtimeSession, fields: Fields) -> RealtimeSession:
    """The session after the changes of a ``session.update`` event.

    Raises:
        FieldError: a field has the wrong type or an invalid value, or the type or the model would change.
    """
    kind = fields.optional_text("type", max_chars=MAX_NAME_CHARS)
    if kind not in (None, session.type.value):
        if kind not in tuple(SessionType):
            fields.choice("type", tuple(SessionType))
        raise fields.error("type", INVALID_VALUE, f"is '{kind}', and this is a {session.type} session")
    session = replace(session, kept={**session.kept, **_kept(fields, session)})
    if "instructions" in fields:
        instructions = fields.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS) or ""
        session = replace(session, instructions=instructions)
    output = session.output
    if modalities := read_modalities(fields):
        output = replace(output, modalities=modalities)
    if (audio := fields.optional_object("audio")) is not None:
        if (heard := audio.optional_object("input")) is not None:
            session = _change_input(session, heard)
        if (said := audio.optional_object("output")) is not None:
            output = _change_output(output, said)
            session = replace(session, kept={**session.kept, **_only(said, "speed")})
    _check_size(fields, session)
    return replace(session, output=output)


def _check_size(fields: Fields, session: RealtimeSession) -> None:
    chars = len(json.dumps([session.kept, session.transcription]))
    if chars > MAX_KEPT_CHARS:
        words = f"has {chars} characters in fields without effect, the limit is {MAX_KEPT_CHARS}"
        raise FieldError(
            f"{fields.path} {words}", param=fields.path, code=INVALID_VALUE, event_id=fields.event_id
        )


def read_modalities(fields: Fields) -> tuple[str, ...]:
    """Read ``output_modalities``: ("audio",) or ("text",), or () if absent."""
    value = fields.values.get("output_modalities")
    if value is None:
        return ()
    if not isinstance(value, list) or value not in (["audio"], ["text"]):
        raise fields.error("output_modalities", INVALID_VALUE, 'is neither ["audio"] nor ["text"]')
    return tuple(value)


def _change_input(session: RealtimeSession, fields: Fields) -> RealtimeSession:
    if "format" in fields:
        session = replace(session, input_format=read_format(fields.object("format")))
    if "transcription" in fields.values:
        session = replace(session, transcription=_read_transcription(fields))
    if "turn_detection" in fields.values:
        found = fields.optional_object("turn_detection")
        detection = None if found is None else _read_detection(found)
        session = replace(session, detection=detection)
    return replace(session, kept={**session.kept, **_only(fields, "noise_reduction")})


def _change_output(output: OutputFormat, fields: Fields) -> OutputFormat:
    if "format" in fields:
        output = replace(output, format=read_format(fields.object("format")))
    voice = fields.name_or_id("voice", max_chars=MAX_NAME_CHARS)
    return output if voice is None else replace(output, voice=voice)


def _read_transcription(fields: Fields) -> Mapping[str, Any] | None:
    found = fields.optional_object("transcription")
    if found is None:
        return None
    found.optional_text("model", max_chars=MAX_NAME_CHARS)
    return found.values


def _read_detection(fields: Fields) -> Detection:
    kind = DetectionType(fields.choice("type", tuple(DetectionType)))
    eagerness = None
    silence_ms = fields.number("silence_duration_ms", 100, 60_000, default=500)
    if kind is DetectionType.SEMANTIC_VAD:
        eagerness = fields.choice("eagerness", tuple(EAGERNESS)) if "eagerness" in fields else "auto"
        silence_ms = EAGERNESS[eagerness]
    idle_ms = fields.number("idle_timeout_ms", 0, 3_600_000, default=0)
    return Detection(
        kind,
        threshold=fields.number("threshold", 0.0, 1.0, default=0.5),
        prefix_ms=round(fields.number("prefix_padding_ms", 0, 60_000, default=300)),
        silence_ms=round(silence_ms),
        eagerness=eagerness,
        create_response=fields.flag("create_response", default=True),
        interrupt_response=fields.flag("interrupt_response", default=True),
        idle_timeout_ms=round(idle_ms) or None,
    )


def refuse_tools(fields: Fields) -> None:
    """Refuse tools, and a ``tool_choice`` that needs one: this model does not call tools.

    Raises:
        FieldError: the session names tools, or requires one.
    """
    choice = fields.values.get("tool_choice")
    if fields.values.get("tools"):
        raise fields.error("tools", UNSUPPORTED_VALUE, "is not empty, and no model here calls tools")
    if choice not in (None, "auto", "none"):
        words = f"is {shown(choice)}, and no model here calls tools: auto and none may be"
        raise fields.error("tool_choice", UNSUPPORTED_VALUE, words)


def _kept(fields: Fields, session: RealtimeSession) -> dict[str, Any]:
    if not session.has_tools:
        refuse_tools(fields)
    return _only(fields, *KEPT)


def _only(fields: Fields, *names: str) -> dict[str, Any]:
    return {name: fields.values[name] for name in names if name in fields.values}
