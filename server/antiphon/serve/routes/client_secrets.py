"""``POST /v1/realtime/client_secrets``: answers with an ephemeral key and its session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from antiphon.errors import FieldError, ProtocolError
from antiphon.models.spec import LIVE_KINDS, PipelineKind
from antiphon.protocol.fields import INVALID_VALUE, Fields
from antiphon.protocol.live_session import MAX_NAME_CHARS
from antiphon.protocol.payload import decode_object
from antiphon.protocol.realtime_session import RealtimeSession, SessionType, change
from antiphon.protocol.realtime_tools import reply_fields
from antiphon.serve.access.callers import Caller, error_body
from antiphon.serve.access.ephemeral import DEFAULT_SECONDS, MAX_SECONDS, MIN_SECONDS
from antiphon.serve.dialects.realtime_client import RealtimeClient
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.upload import read_small


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request for an ephemeral key."""

    session: Fields
    seconds: int


async def handle_client_secrets(
    request: web.Request, services: Services, _model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Answer with one ephemeral key.

    Raises:
        web.HTTPException: 400 for an unusable body or an unavailable session, 408 for a body that is too
        slow. UnknownModelError: the session names an unknown model.
    """
    try:
        asked = read_secret_request(
            await read_small(request, services, services.config.limits.max_message_bytes)
        )
        session = session_of(services, asked.session)
        value, expires_at = services.access.ephemeral.issue(caller.key, asked.session.values, asked.seconds)
    except ProtocolError as error:
        param, code = (error.param, error.code) if isinstance(error, FieldError) else (None, "invalid_json")
        text = error_body(str(error), code=code, param=param)
        raise web.HTTPBadRequest(text=text, content_type="application/json") from error
    shown = RealtimeClient().shown(session)
    return web.json_response({"value": value, "expires_at": expires_at, "session": shown})


def read_secret_request(body: bytes) -> Asked:
    """Read the body of a request.

    Raises:
        ProtocolError: the body is not a JSON object, or a field cannot be used.
    """
    fields = Fields(decode_object(body, "the body") if body else {})
    expires = fields.optional_object("expires_after") or Fields({}, "expires_after")
    if "anchor" in expires:
        expires.choice("anchor", ("created_at",))
    seconds = expires.number("seconds", MIN_SECONDS, MAX_SECONDS, default=DEFAULT_SECONDS)
    session = fields.optional_object("session") or Fields({}, "session")
    return Asked(session, round(seconds))


def session_of(services: Services, fields: Fields, named: str | None = None) -> RealtimeSession:
    """The requested session, with the model ``named`` by the connection or by a field of the session.

    Raises:
        FieldError: a field cannot be used, or the names of two models differ.
    """
    kind = SessionType(fields.choice("type", tuple(SessionType)) if "type" in fields else "realtime")
    is_written = kind is SessionType.TRANSCRIPTION
    name = (
        _transcription_model(fields)
        if is_written
        else fields.optional_text("model", max_chars=MAX_NAME_CHARS)
    )
    if name is not None and named is not None and not services.models.are_one(name, named):
        raise fields.error("model", INVALID_VALUE, f"is {name!r}, and the connection names {named!r}")
    if not is_written and (agent := services.agent_for(name or named)) is not None:
        asked = change(RealtimeSession(agent.name, kind, has_tools=True), fields)
        reply_fields(asked)
        return asked
    model = services.models.find(name or named, (PipelineKind.STT,) if is_written else LIVE_KINDS)
    return change(RealtimeSession(model.name, kind), fields)


def _transcription_model(fields: Fields) -> str | None:
    audio = fields.optional_object("audio")
    heard = None if audio is None else audio.optional_object("input")
    transcription = None if heard is None else heard.optional_object("transcription")
    return None if transcription is None else transcription.optional_text("model", max_chars=MAX_NAME_CHARS)


def prepared_session(services: Services, presented: str | None) -> Mapping[str, Any] | None:
    """The session in the ephemeral key of a connection, if it has one."""
    found = None if presented is None else services.access.ephemeral.read(presented)
    return None if found is None or not found.session else found.session
