"""Events from a client of OpenAI Live over ``/v1/live/sessions``: JSON events, one in each WebSocket text
message.

Derived from the types of the ``openai`` package 3.54.0 (``types/live``). An event may have an ``event_id``,
which the reply repeats as ``client_event_id``. ``docs/live.md`` has the table of events and fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from antiphon.errors import ProtocolError
from antiphon.protocol.chat import ResumeMode
from antiphon.protocol.event_text import read_event, text_of
from antiphon.protocol.fields import INVALID_VALUE, UNSUPPORTED_VALUE, Fields
from antiphon.protocol.live_session import (
    MAX_NAME_CHARS,
    LiveFormat,
    SessionChange,
    SessionConfig,
    read_change,
    read_session,
)
from antiphon.protocol.payload import decode_object
from antiphon.protocol.realtime_tools import WrittenItem, read_item
from antiphon.protocol.resume import Claim, token_of
from antiphon.protocol.sdp import MAX_OFFER_BYTES


@dataclass(frozen=True, slots=True)
class Start:
    """The first event, with the requested session; if ``has_tracks``, audio and events use separate
    channels."""

    session: SessionConfig
    event_id: str | None = None
    has_tracks: bool = False


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """The first event of a connection that resumes a session: the claim, and the session's original request.

    ``is_muted``: the model gets silence from the first sample on.
    """

    claim: Claim
    session: SessionConfig
    is_muted: bool = False
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeEvents:
    """Acknowledges all numbered events up to this one."""

    seq: int
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """The client changes the session."""

    session: SessionChange
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Audio in the session's format; it has no reply."""

    audio: bytes
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Mute:
    """The model must get silence instead of the caller's audio."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unmute:
    """The model must get the caller's audio again."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """End the session after the outstanding speech."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AppendText:
    """``content`` for the model: ``kind`` is instructions, thinking or commentary, as the API defines them.

    With a delegation's id the text is the result of the delegation.
    """

    kind: str
    content: str
    delegation_id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AddItem:
    """The client adds an item to the conversation of the model with tools."""

    item: WrittenItem
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ContinueResponse:
    """The client requests that the model with tools continues its response."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An event of the API that the model does not support."""

    type: str
    event_id: str | None = None


ClientEvent: TypeAlias = (
    Start
    | ResumeSession
    | AcknowledgeEvents
    | Update
    | AppendAudio
    | Mute
    | Unmute
    | Close
    | AppendText
    | AddItem
    | ContinueResponse
    | Unsupported
)

MAX_APPENDED_CHARS = 4000
"""Longest appended text in characters: the published limit is 500 tokens."""

MAX_NUMBER = 2**32 - 2
"""Largest number of an event or a frame, as in the claims of ``/api/chat``."""

UNSUPPORTED: frozenset[str] = frozenset(
    {
        "session.output_audio.fixture.play",
        "session.instructions.append",
        "session.thinking.append",
        "session.commentary.append",
        "response.item.create",
        "response.create",
        "decision.create",
        "decision.item.create",
        "decision.item.delete",
        "transport.dtmf.send",
    }
)
"""Events that need a model with text input, a backend model, or a telephone line."""


def decode(message: str | bytes, *, has_text: bool = False) -> ClientEvent:
    """Read one event, a text message; unknown fields are ignored.

    Without ``has_text``, events with text are unsupported.

    Raises:
        FieldError: the text is not a JSON object, the type is unknown, or a field cannot be used.
    """
    return read_event(text_of(message), TEXT_READERS if has_text else READERS)


def read_offered(body: bytes) -> tuple[Start, bytes]:
    """The session of a ``POST /v1/live/sessions``, and the offer in SDP.

    Raises:
        ProtocolError: the body is not a JSON object, or a field cannot be used.
    """
    fields = Fields(decode_object(body, "the body"))
    transport, session = fields.object("transport"), fields.object("session")
    transport.choice("type", ("webrtc",))
    if "client" in session:
        words = "cannot be followed: the data channel carries all events in both directions"
        raise session.error("client", UNSUPPORTED_VALUE, words)
    config = replace(read_session(session), format=LiveFormat())
    return Start(config, has_tracks=True), transport.text("sdp", max_chars=MAX_OFFER_BYTES).encode()


def read_mode(query: Mapping[str, str]) -> ResumeMode:
    """The value of ``resume`` in the query of a client's connection.

    Raises:
        FieldError: another value.
    """
    return ResumeMode(Fields(query).optional_choice("resume", tuple(ResumeMode)) or ResumeMode.NO)


def _read_resume(fields: Fields) -> ResumeSession:
    try:
        token = token_of(fields.text("token", max_chars=100))
    except ProtocolError as error:
        raise fields.error("token", INVALID_VALUE, f"is {error}") from error
    seq, frame = (fields.count(name, low=-1, high=MAX_NUMBER, default=-1) for name in ("seq", "frame"))
    input_frame = fields.count("input_frame", low=0, high=MAX_NUMBER, default=0)
    session = read_session(fields.object("session"))
    claim = Claim(token, seq, frame, input_frame)
    return ResumeSession(claim, session, fields.flag("muted"), fields.event_id)


READERS: Mapping[str, Callable[[Fields], ClientEvent]] = {
    "session.start": lambda it: Start(read_session(it.object("session")), it.event_id),
    "session.resume": _read_resume,
    "session.acknowledge": lambda it: AcknowledgeEvents(
        it.count("seq", low=-1, high=MAX_NUMBER, default=-1), it.event_id
    ),
    "session.update": lambda it: Update(read_change(it.object("session")), it.event_id),
    "session.input_audio.append": lambda it: AppendAudio(it.base64("audio"), it.event_id),
    "session.input_audio.mute": lambda it: Mute(it.event_id),
    "session.input_audio.unmute": lambda it: Unmute(it.event_id),
    "session.close": lambda it: Close(it.event_id),
    **dict.fromkeys(UNSUPPORTED, lambda it: Unsupported(it.values["type"], it.event_id)),
}
"""The supported events, and the reader of each."""


def _append_reader(kind: str) -> Callable[[Fields], ClientEvent]:
    return lambda it: AppendText(
        kind,
        it.text("content", max_chars=MAX_APPENDED_CHARS),
        it.optional_text("delegation_id", max_chars=MAX_NAME_CHARS),
        it.event_id,
    )


TEXT_READERS: Mapping[str, Callable[[Fields], ClientEvent]] = {
    **READERS,
    **{f"session.{it}.append": _append_reader(it) for it in ("instructions", "thinking", "commentary")},
    "response.item.create": lambda it: AddItem(read_item(it.object("item")), it.event_id),
    "response.create": lambda it: ContinueResponse(it.event_id),
}
"""The supported events of a model with text input, and the reader of each."""
