"""``/v1/realtime``: OpenAI Realtime over a WebSocket, with models that talk and models that write.

A wrong key, a foreign origin and a wrong query are refused before the upgrade. Everything else is an
``error`` event and a close, which stock clients can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from antiphon.errors import AntiphonError, FieldError, SessionError, UnknownModelError
from antiphon.models.published import TRANSLATING
from antiphon.models.spec import PipelineKind
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.fields import Fields
from antiphon.protocol.realtime_events import encode, error_event
from antiphon.protocol.realtime_reply import ReplyRules
from antiphon.protocol.realtime_session import SessionType
from antiphon.protocol.translation import TranslationSession
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.keys import presented_key
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.participant import Place, Talker
from antiphon.serve.dialects.translation import TranslationDialect
from antiphon.serve.hosting.dialogue import SocketConversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.routes.client_secrets import TALKERS, handle_client_secrets, prepared_session, session_of
from antiphon.serve.routes.realtime_call import RealtimeCall
from antiphon.serve.routes.realtime_transcription import RealtimeTranscription
from antiphon.serve.routes.routing import (
    ELSEWHERE,
    Route,
    check_upgrade,
    named_model,
    plain_refusal,
    refusal_of,
)
from antiphon.serve.transport.frames import TEXT, frame
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.upgrade import is_upgrade

PATH: Final = "/v1/realtime"

MIN_SILENCE_MS, MAX_SILENCE_MS = 400, 1000


async def handle_realtime(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One session, for as long as it lasts.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    rules, named = reply_rules(request.query), named_model(request)
    prepared = prepared_session(services, presented_key(request.headers, request.query))
    try:
        session = session_of(services, Fields(prepared or _asked(request, services, model), "session"), named)
    except FieldError as error:
        raise plain_refusal(error) from error
    model = services.model_for(session.model, caller)
    if session.type is SessionType.TRANSCRIPTION:
        call: SocketConversation = RealtimeTranscription(services, model, session, caller=caller)
    else:
        call = RealtimeCall(services, model, session, rules=rules, caller=caller)
    return await converse(request, services, model, call)


def _asked(request: web.Request, services: Services, model: ServedModel) -> dict[str, str]:
    """The kind of session that a connection asks for; ``model`` is what answers its path."""
    is_named = named_model(request) is not None or services.models.default_of(TALKERS) is None
    is_writer = is_named and model.kind is PipelineKind.STT
    if is_writer or request.query.get("intent") == SessionType.TRANSCRIPTION:
        return {"type": SessionType.TRANSCRIPTION}
    return {"type": SessionType.REALTIME}


async def handle_translation(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One translation session, for as long as it lasts.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    named = named_model(request)
    translators = [it for it in services.models if it.checkpoint.spec.family in TRANSLATING]
    if named is None and translators:
        model = services.model_for(translators[0].name, caller)
    if model.checkpoint.spec.family not in TRANSLATING:
        words = f"the model {model.name} does not translate; there is: "
        names = [it.name for it in translators]
        raise UnknownModelError(words + (", ".join(names) or "none that does"), known=names)
    dialect = TranslationDialect(TranslationSession(model.name), model)
    talker = Talker(model, Place(model.engine, model.parameters()), fills_gaps=True)
    call = Call(services, model, dialect, talker, caller=caller)
    return await converse(request, services, model, call)


async def converse(
    request: web.Request, services: Services, model: ServedModel, call: SocketConversation | Call
) -> web.StreamResponse:
    """Upgrade, and hold a conversation; a refusal by the engine comes as an event."""
    await check_upgrade(request, model, wait_s=0.0)
    if ELSEWHERE in request.headers:
        await model.engine.check_room(0.0)  # a proxy reads a status, and no event after the upgrade
    socket = await Socket.open(
        request, services.config.limits, services.clock, max_message_bytes=MAX_EVENT_CHARS
    )
    with model.metrics.sockets.track_inprogress():
        try:
            await call.admit()
        except AntiphonError as error:
            kind = type(error).__name__
            services.provoked.info(
                "session refused", of=kind, path=request.path, error=kind, reason=str(error)
            )
            await refuse(socket, model.metrics, error)
            call.abandon()
        else:
            await call.run(socket)
    return socket.response


def reply_rules(query: Mapping[str, str]) -> ReplyRules:
    """What of a response's rules the query says.

    Raises:
        web.HTTPBadRequest: a value that is none.
    """
    interrupt, silence = query.get("duplex_interrupt", "soft"), query.get("reply_silence_ms", "600")
    if interrupt not in ("soft", "hard"):
        raise web.HTTPBadRequest(text="duplex_interrupt is soft or hard\n")
    if not (silence.isascii() and silence.isdigit() and MIN_SILENCE_MS <= int(silence[:9]) <= MAX_SILENCE_MS):
        raise web.HTTPBadRequest(text=f"reply_silence_ms is {MIN_SILENCE_MS} to {MAX_SILENCE_MS}\n")
    return ReplyRules(int(silence[:9]), interrupt == "hard")


async def refuse_realtime(
    request: web.Request, services: Services, metrics: ServeMetrics, error: SessionError
) -> web.StreamResponse:
    """Tell a client in its own words why it gets no session.

    Raises:
        web.HTTPException: to one that asks for no WebSocket.
    """
    if not is_upgrade(request):
        raise refusal_of(request, error)
    socket = await Socket.open(request, services.config.limits, services.clock)
    with metrics.sockets.track_inprogress():
        await refuse(socket, metrics, error)
    return socket.response


async def refuse(socket: Socket, metrics: ServeMetrics, error: AntiphonError) -> None:
    """An ``error`` event, and the close that belongs to it."""
    socket.write(frame(encode(error_event(error), "event_1"), TEXT))
    await socket.close(wire_form(error).openai_close, str(error))
    metrics.closed(socket.close_code)


REALTIME = Route("GET", PATH, handle_realtime, refuse_realtime)
SECRETS = Route("POST", f"{PATH}/client_secrets", handle_client_secrets)

TRANSLATIONS = Route("GET", f"{PATH}/translations", handle_translation, refuse_realtime)

TALKER_ROUTES = (REALTIME, SECRETS, TRANSLATIONS)
LISTENER_ROUTES = (REALTIME, SECRETS)
