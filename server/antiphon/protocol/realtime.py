"""Events from a client of OpenAI Realtime over ``/v1/realtime``: JSON events, one in each WebSocket text
message.

Derived from the types of the ``openai`` package 3.54.0 (``types/realtime``). An event may have an
``event_id``, which an error about it repeats. ``docs/realtime.md`` has the table of events and fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from antiphon.errors import FieldError, RetiredApiError
from antiphon.protocol.event_text import read_event
from antiphon.protocol.fields import INVALID_VALUE, Fields
from antiphon.protocol.live_session import MAX_NAME_CHARS
from antiphon.protocol.realtime_session import read_modalities, refuse_tools

MAX_METADATA: Final = 16
MAX_METADATA_CHARS: Final = 512
"""The published limits of metadata."""


@dataclass(frozen=True, slots=True)
class Update:
    """The requested changes of the session; they are interpreted together with the current session."""

    session: Fields
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Audio in the session's format; it has no reply."""

    audio: bytes
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """The client ends the caller's turn."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """The client discards the audio that it has not committed."""

    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateItem:
    """The client adds an item to the conversation after the item ``previous``; "root" means first."""

    item: Mapping[str, Any]
    previous: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    """The client requests an item."""

    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """The client deletes an item."""

    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """The client has played an item only up to this position."""

    item_id: str
    content_index: int
    audio_end_ms: int
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """A request for a response. If ``modalities`` is empty, the session's modalities apply.

    ``unread`` lists fields of ``response`` that would change the answer and that only agents use.
    """

    metadata: Mapping[str, str] | None = None
    modalities: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    response: Fields = field(default_factory=lambda: Fields({}, "response"), compare=False)
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """The client cancels the response."""

    response_id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An event of the API for another type of connection."""

    type: str
    event_id: str | None = None


ClientEvent: TypeAlias = (
    Update
    | AppendAudio
    | Commit
    | Clear
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | Unsupported
)

BETA_FIELDS: Final = frozenset(
    {"modalities", "input_audio_format", "output_audio_format", "input_audio_transcription"}
)
"""Fields of a session in the API's beta, which have other paths in the current API."""

RETIRED: Final = "the beta of this API is retired, use its general availability form"

UNSUPPORTED: Final = frozenset({"output_audio_buffer.clear"})
"""Events for WebRTC and SIP."""


def decode(text: str, *, has_tools: bool = False) -> ClientEvent:
    """Read one event; unknown fields are ignored.

    Raises:
        FieldError: the text is no JSON object, the type is unknown, or a field cannot be used, such as tools
            of a response unless the session ``has_tools``.
    """
    asked = read_event(text, READERS)
    if isinstance(asked, CreateResponse) and not has_tools:
        refuse_tools(asked.response)
    return asked


def _read_update(fields: Fields) -> Update:
    session = fields.object("session")
    if beta := sorted(BETA_FIELDS & session.values.keys()):
        raise RetiredApiError(f"{RETIRED}; {session.path_of(beta[0])} is one of its fields")
    return Update(session, fields.event_id)


def _refuse_beta(fields: Fields) -> NoReturn:
    raise RetiredApiError(f"{RETIRED}; {fields.values['type']} is one of its events")


def _read_item(fields: Fields) -> CreateItem:
    item = fields.object("item")
    item.text("type", max_chars=MAX_NAME_CHARS)
    item.optional_text("id", max_chars=MAX_NAME_CHARS)
    previous = fields.optional_text("previous_item_id", max_chars=MAX_NAME_CHARS)
    return CreateItem(item.values, previous, fields.event_id)


def _item_id(fields: Fields) -> str:
    return fields.text("item_id", max_chars=MAX_NAME_CHARS)


def _read_truncate(fields: Fields) -> TruncateItem:
    index = round(fields.number("content_index", 0, 1000, default=0))
    end_ms = round(fields.number("audio_end_ms", 0, 2**53, default=0))
    return TruncateItem(_item_id(fields), index, end_ms, fields.event_id)


def _read_response(fields: Fields) -> CreateResponse:
    response = fields.optional_object("response")
    if response is None:
        return CreateResponse(event_id=fields.event_id)
    metadata = response.optional_object("metadata")
    unread = [response.path_of(name) for name in ("input", "instructions") if response.values.get(name)]
    if response.values.get("conversation") == "none":
        unread.append(response.path_of("conversation"))
    return CreateResponse(
        None if metadata is None else _read_metadata(metadata),
        read_modalities(response),
        tuple(unread),
        response,
        fields.event_id,
    )


def _read_metadata(fields: Fields) -> Mapping[str, str]:
    if len(fields.values) > MAX_METADATA:
        raise FieldError(
            f"{fields.path} has {len(fields.values)} keys, the limit is {MAX_METADATA}",
            param=fields.path,
            code=INVALID_VALUE,
            event_id=fields.event_id,
        )
    return {name: fields.optional_text(name, max_chars=MAX_METADATA_CHARS) or "" for name in fields.values}


READERS: Final[Mapping[str, Callable[[Fields], ClientEvent]]] = {
    "session.update": _read_update,
    "transcription_session.update": _refuse_beta,
    "input_audio_buffer.append": lambda it: AppendAudio(it.base64("audio"), it.event_id),
    "input_audio_buffer.commit": lambda it: Commit(it.event_id),
    "input_audio_buffer.clear": lambda it: Clear(it.event_id),
    "conversation.item.create": _read_item,
    "conversation.item.retrieve": lambda it: RetrieveItem(_item_id(it), it.event_id),
    "conversation.item.delete": lambda it: DeleteItem(_item_id(it), it.event_id),
    "conversation.item.truncate": _read_truncate,
    "response.create": _read_response,
    "response.cancel": lambda it: CancelResponse(
        it.optional_text("response_id", max_chars=MAX_NAME_CHARS), it.event_id
    ),
    **dict.fromkeys(UNSUPPORTED, lambda it: Unsupported(it.values["type"], it.event_id)),
}
"""The supported events, and the reader of each."""
