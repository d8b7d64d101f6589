"""``/v1/realtime``: OpenAI Realtime over a WebSocket or by WebRTC, for full-duplex models, codecs and
recognisers.

A wrong key, a foreign origin and a wrong query are refused before the upgrade. All other refusals are an
``error`` event and a close, which stock clients can read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import hdrs, web

from antiphon.errors import (
    AntiphonError,
    FieldError,
    ProtocolError,
    RetiredApiError,
    UnknownModelError,
    UnsupportedError,
)
from antiphon.models.prompt import Prompt
from antiphon.models.published import TRANSLATING
from antiphon.models.spec import LIVE_KINDS, PipelineKind
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.fields import Fields
from antiphon.protocol.payload import decode_object
from antiphon.protocol.realtime import RETIRED
from antiphon.protocol.realtime_events import encode, error_event
from antiphon.protocol.realtime_reply import ReplyRules
from antiphon.protocol.realtime_session import RealtimeSession, SessionType
from antiphon.protocol.translation import TranslationSession
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.keys import presented_key
from antiphon.serve.calls.agent import Agent, AgentParts
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.connect import upgrade_then_admit, upgrade_to_refuse
from antiphon.serve.calls.participant import Place, Talker
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.dialects.realtime import RealtimeDialect
from antiphon.serve.dialects.realtime_agent import AgentDialect
from antiphon.serve.dialects.realtime_transcription import TranscriptionDialect
from antiphon.serve.dialects.translation import TranslationDialect
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.client_secrets import handle_client_secrets, prepared_session, session_of
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.prompts import prompt_of_session, voice_of_agent
from antiphon.serve.routes.routing import (
    ELSEWHERE,
    Route,
    check_upgrade,
    named_model,
    plain_refusal,
    refuse_in,
)
from antiphon.serve.routes.webrtc import CALLS, answer_offer, offer_of, sdp_response
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message
from antiphon.serve.transport.upgrade import is_upgrade

PATH: Final = "/v1/realtime"

MIN_SILENCE_MS, MAX_SILENCE_MS = 400, 1000


async def handle_realtime(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one session until it ends.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    if requests_beta(request):
        error = RetiredApiError(f"{RETIRED}: connect without OpenAI-Beta")
        return await upgrade_to_refuse(request, services, model.metrics, error, refusal)
    rules = reply_rules(request.query)
    try:
        session = _session(request, services, model)
    except FieldError as error:
        raise plain_refusal(error) from error
    if ELSEWHERE in request.headers and (agent := services.agents.get(session.model)) is not None:
        await agent.check_room()
    call = await _call_of(services, session, caller, rules)
    return await _hold(request, services, call.model, call)


async def handle_offer(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Answer an offer of WebRTC (``POST /v1/realtime/calls``); the call continues after the answer.

    The offer is the body, or the part ``sdp`` of a form that also has a part ``session``.

    Raises:
        web.HTTPException, SessionError: refused.
    """
    rules = reply_rules(request.query)
    try:
        offer, asked = await offer_of(request, services)
        session = _session(request, services, model, asked)
        call = await _call_of(services, session, caller, rules, has_tracks=True)
        return sdp_response(request, *await answer_offer(request, services, call, offer))
    except (ProtocolError, UnsupportedError) as error:
        raise api_error(error).exception() from error


def _session(
    request: web.Request, services: Services, model: ServedModel, asked: bytes = b""
) -> RealtimeSession:
    """The session of an ephemeral key, of JSON, or of the query; ``model`` answers the path.

    Raises:
        ProtocolError: it cannot be used.
        UnknownModelError: there is no such model.
    """
    fields = prepared_session(services, presented_key(request.headers, request.query))
    if fields is None:
        fields = decode_object(asked, "session") if asked else _asked(request, services, model)
    return session_of(services, Fields(fields, "session"), named_model(request))


async def _call_of(
    services: Services,
    session: RealtimeSession,
    caller: Caller,
    rules: ReplyRules,
    *,
    has_tracks: bool = False,
) -> Call:
    """A call of the model or the agent of a session; ``has_tracks``: its audio is apart from its events.

    Raises:
        SessionFailedError: an agent's voice's file is broken.
    """
    if (agent := services.agents.get(session.model)) is not None:
        return await _agent_call(services, agent, session, caller, has_tracks=has_tracks)
    model = services.model_for(session.model, caller)
    if session.type is SessionType.TRANSCRIPTION:
        is_own = partial(services.models.are_one, session.model)
        dialect = TranscriptionDialect(session, model, is_own, has_tracks=has_tracks)
        return Call(services, model, dialect, Transcriber(model, services.clock), caller=caller)
    talking = RealtimeDialect(
        session,
        model,
        prompt_of=partial(prompt_of_session, services, model),
        captions_of=partial(_captions_of, services, model),
        rules=rules,
        has_tracks=has_tracks,
    )
    talker = Talker(model, Place(model.engine, model.parameters()), fills_gaps=True)
    return Call(services, model, talking, talker, caller=caller)


async def _agent_call(
    services: Services, agent: AgentParts, session: RealtimeSession, caller: Caller, *, has_tracks: bool
) -> Call:
    """A call of an agent.

    Raises:
        SessionFailedError: the voice's file is broken.
    """

    async def prompt_of(name: str | None) -> Prompt | None:
        return await voice_of_agent(agent, name, services)

    if session.output.voice is None:
        session = replace(session, output=replace(session.output, voice=agent.voice))
    dialect = AgentDialect(session, agent, voice_of=prompt_of, has_tracks=has_tracks)
    voice = await prompt_of(session.output.voice)
    parts = replace(agent, settings=dialect.settings)
    speaker = Agent(parts, services.clock, voice=voice, new_id=dialect.client.ids.new)
    return Call(services, agent.stt, dialect, speaker, caller=caller)


def _captions_of(services: Services, talker: ServedModel, named: str) -> tuple[Captions, str] | None:
    """The recogniser of the caller's speech, and its name: the requested one, or the served one."""
    recognisers = (PipelineKind.STT,)
    model = services.models.named(named, recognisers)
    if model is None or model.kind not in recognisers:
        model = services.models.default_of(recognisers)
    rate = talker.engine.info.spec.sample_rate
    return None if model is None else (Captions(model, rate, services.clock), model.name)


def _asked(request: web.Request, services: Services, model: ServedModel) -> dict[str, str]:
    """The kind of session that a connection requests; ``model`` answers its path."""
    named, wants_text = named_model(request), request.query.get("intent") == SessionType.TRANSCRIPTION
    if services.agent_for(named) is not None and not wants_text:
        return {"type": SessionType.REALTIME}
    is_named = named is not None or services.models.default_of(LIVE_KINDS) is None
    is_writer = is_named and not model.kind.gives_audio
    if is_writer or wants_text:
        return {"type": SessionType.TRANSCRIPTION}
    return {"type": SessionType.REALTIME}


async def handle_translation(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one translation session until it ends.

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
    return await _hold(request, services, model, call)


async def _hold(
    request: web.Request, services: Services, model: ServedModel, call: Call
) -> web.StreamResponse:
    """Upgrade, and hold a call; a refusal by the engine is an event."""
    try:
        await check_upgrade(request, model, wait_s=0.0)
        if ELSEWHERE in request.headers:
            await model.engine.check_room(0.0)  # a proxy reads a status, but no event after the upgrade

        async def begin(_socket: Socket) -> Call:
            await call.admit(route=request.path)
            return call

        return await upgrade_then_admit(
            request, services, model.metrics, begin, refusal, max_message_bytes=MAX_EVENT_CHARS
        )
    finally:
        call.abandon()


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """An ``error`` event, and its close code."""
    return (encode(error_event(error), "event_1"),), wire_form(error).openai_close


def requests_beta(request: web.Request) -> bool:
    """Whether the client requests the API's retired beta version."""
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    has_said = "realtime=v1" in request.headers.get("OpenAI-Beta", "") or "openai-beta.realtime-v1" in offered
    return has_said and is_upgrade(request)


def reply_rules(query: Mapping[str, str]) -> ReplyRules:
    """Read the rules for responses from the query.

    Raises:
        web.HTTPBadRequest: an invalid value.
    """
    interrupt, silence = query.get("duplex_interrupt", "soft"), query.get("reply_silence_ms", "600")
    if interrupt not in ("soft", "hard"):
        raise web.HTTPBadRequest(text="duplex_interrupt is soft or hard\n")
    if not (silence.isascii() and silence.isdigit() and MIN_SILENCE_MS <= int(silence[:9]) <= MAX_SILENCE_MS):
        raise web.HTTPBadRequest(text=f"reply_silence_ms is {MIN_SILENCE_MS} to {MAX_SILENCE_MS}\n")
    return ReplyRules(int(silence[:9]), interrupt == "hard")


refuse_realtime = refuse_in(lambda _: refusal)

REALTIME = Route("GET", PATH, handle_realtime, refuse_realtime)
SECRETS = Route("POST", f"{PATH}/client_secrets", handle_client_secrets)

TRANSLATIONS = Route("GET", f"{PATH}/translations", handle_translation, refuse_realtime)

OFFERS = Route("POST", CALLS, handle_offer)

TALKER_ROUTES = (REALTIME, SECRETS, TRANSLATIONS, OFFERS)
LISTENER_ROUTES = (REALTIME, SECRETS, OFFERS)
