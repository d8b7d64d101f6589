"""Events from a server of OpenAI Live, in JSON, and the errors among them.

Derived from the types of the ``openai`` package 3.54.0 (``types/live``). Times are milliseconds of audio
since the start of the session, not wall-clock time.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias

from antiphon.errors import AntiphonError, FieldError
from antiphon.protocol.payload import object_text
from antiphon.protocol.wire_errors import ErrorType, wire_form


class CloseReason(StrEnum):
    """The reason for the end of a session, in ``session.closed``."""

    CLOSE_REQUESTED = "close_requested"
    EXPIRED = "expired"
    CONNECTION_LOST = "connection_lost"


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The session has started, and the model gets its audio.

    ``session`` is ``SessionConfig.shown``; ``resume`` has the data for resuming the session.
    """

    session: Mapping[str, Any]
    client_event_id: str | None = None
    resume: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The session continues with this connection, at ``input_frame``; see docs/live.md."""

    session: Mapping[str, Any]
    resume: Mapping[str, Any]
    input_frame: int
    replay_from: int
    missed_frames: int
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    """The session after a change."""

    session: Mapping[str, Any]
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputAudioMuted:
    """The model gets silence from now on."""

    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputAudioUnmuted:
    """The model gets the caller's audio again."""

    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutputAudio:
    """The next audio, in the session's format; for watchers, PCM of 24 kHz with its times.

    ``frame`` is its number, for a client that may resume.
    """

    delta: bytes
    start_ms: int | None = None
    end_ms: int | None = None
    frame: int | None = None


@dataclass(frozen=True, slots=True)
class InputAudio:
    """The caller's audio for watchers: PCM of 24 kHz."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class OutputTranscript:
    """Text of the model, and the time of its audio."""

    delta: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class InputTranscript:
    """Text of the caller, and the time of its audio."""

    delta: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class TextAppended:
    """The text of an :class:`antiphon.protocol.live.AppendText` of this ``kind`` is in the conversation."""

    kind: str
    start_ms: int
    end_ms: int
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DelegationCreated:
    """The model has work for the client, or calls tools; ``delegation`` has its id and its target."""

    offset_ms: int
    delegation: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseEvent:
    """An ``event`` of the Responses API that belongs to a delegation with tools."""

    event: Mapping[str, Any]
    delegation_id: str


@dataclass(frozen=True, slots=True)
class UsageUpdated:
    """Seconds of audio so far, and the share of the model's context that they fill, from 0 to 1."""

    seconds: float
    context_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The last event of a session."""

    reason: CloseReason
    session: Mapping[str, Any]
    seconds: float
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """An error, with its code in the API. Before ``session.started`` it ends the connection; afterwards the
    session continues.
    """

    message: str
    code: str
    type: str = ErrorType.INVALID
    param: str | None = None
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Info:
    """A notice, for example about a field that was accepted and has no effect."""

    code: str
    message: str
    client_event_id: str | None = None


ServerEvent: TypeAlias = (
    SessionStarted
    | SessionResumed
    | SessionUpdated
    | InputAudioMuted
    | InputAudioUnmuted
    | OutputAudio
    | InputAudio
    | OutputTranscript
    | InputTranscript
    | TextAppended
    | DelegationCreated
    | ResponseEvent
    | UsageUpdated
    | SessionClosed
    | Error
    | Info
)

TYPES: Mapping[type, str] = {
    SessionStarted: "session.started",
    SessionResumed: "session.resumed",
    SessionUpdated: "session.updated",
    InputAudioMuted: "session.input_audio.muted",
    InputAudioUnmuted: "session.input_audio.unmuted",
    OutputAudio: "session.output_audio.delta",
    InputAudio: "session.input_audio.append",
    OutputTranscript: "session.output_transcript.delta",
    InputTranscript: "session.input_transcript.delta",
    TextAppended: "session.{kind}.appended",
    DelegationCreated: "session.delegation.created",
    ResponseEvent: "response.event",
    UsageUpdated: "session.usage.updated",
    SessionClosed: "session.closed",
    Error: "error",
    Info: "info",
}


def encode(event: ServerEvent, event_id: str, seq: int | None = None) -> str:
    """One event as JSON, with its number if it has one.

    Audio to the caller has no id and no times.
    """
    shown: dict[str, Any]
    kind = TYPES[type(event)]
    match event:
        case OutputAudio(delta, None, None, int(number)):
            return f'{{"type":"session.output_audio.delta","frame":{number},"delta":"{_text(delta)}"}}'
        case OutputAudio(delta, None, None):
            return f'{{"type":"session.output_audio.delta","delta":"{_text(delta)}"}}'
        case OutputAudio(delta, start_ms, end_ms):
            shown = {"delta": _text(delta), "start_ms": start_ms, "end_ms": end_ms}
        case InputAudio(audio):
            shown = {"audio": _text(audio)}
        case Error():
            error = {"type": event.type, "code": event.code, "message": event.message}
            optional = {"param": event.param, "client_event_id": event.client_event_id}
            shown = {"error": {**error, **_given(optional)}}
        case TextAppended(appended, start_ms, end_ms):
            kind = kind.format(kind=appended)
            shown = {
                "start_ms": start_ms,
                "end_ms": end_ms,
                **_given({"client_event_id": event.client_event_id}),
            }
        case UsageUpdated(seconds, ratio):
            shown = {"usage": {"seconds": seconds}}
            if ratio is not None:
                shown["context_window"] = {"usage_ratio": ratio}
        case SessionClosed():
            shown = {"reason": event.reason, "session": event.session, "usage": {"seconds": event.seconds}}
            shown |= _given({"client_event_id": event.client_event_id})
        case _:
            shown = _given({field.name: getattr(event, field.name) for field in fields(event)})
    numbered = {"event_id": event_id, **_given({"seq": seq})}
    return object_text({"type": kind, **numbered, **shown}, "an event")


def error_of(reason: AntiphonError) -> Error:
    """The ``error`` event of an exception."""
    if isinstance(reason, FieldError):
        return Error(str(reason), reason.code, param=reason.param, client_event_id=reason.event_id)
    form = wire_form(reason)
    kind, code = form.in_events
    return Error(str(reason), code, kind, param=form.param and f"session.{form.param}")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
