"""``/v1/live/sessions``: OpenAI Live over a WebSocket or by WebRTC, for full-duplex models and codecs.

A wrong key, a foreign origin and too many sessions are refused before the upgrade. All other refusals are an
``error`` event and a close, because they concern the first event, which comes after the upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from aiohttp import hdrs, web

from antiphon.errors import AntiphonError, FieldError, ProtocolError, ResumeError, UnsupportedError
from antiphon.models.prompt import Prompt, takes_persona
from antiphon.models.spec import LIVE_KINDS, PipelineKind
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.chat import ResumeMode
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.live_session import SessionConfig
from antiphon.protocol.sdp import read_offer
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.agent import Agent, AgentParts
from antiphon.serve.calls.call import Call, find_local
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.connect import next_message, upgrade_then_admit
from antiphon.serve.calls.local_resume import local_resume
from antiphon.serve.calls.participant import Place, Talker
from antiphon.serve.calls.resume import CLAIM_S, CallResume
from antiphon.serve.dialects.live import LiveDialect
from antiphon.serve.dialects.live_agent import LiveAgentDialect
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.live_watcher import handle_watcher
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.prompts import prompt_of_session, voice_of_agent
from antiphon.serve.routes.routing import Route, check_room_here, check_upgrade, named_model, refuse_in
from antiphon.serve.routes.upload import read_small
from antiphon.serve.routes.webrtc import answer_offer, peers_of
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message

MAX_EVENT_BYTES = MAX_EVENT_CHARS
"""The largest WebSocket message; a larger one ends the connection with 1009 before it is read."""


async def handle_live(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one session until it ends. ``model`` is used if the session names no model.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)
    if not is_resumption(request.query):  # a resumed session has its rows
        await check_room_here(request, services, model)

    async def begin(socket: Socket) -> Call | None:
        mode = live.read_mode(request.query)
        start = await _first_event(socket, mode, services.config.limits.handshake_timeout_s)
        if start is None:
            return None
        return await _begin(services, named_model(request), start, mode, caller, socket)

    return await upgrade_then_admit(
        request, services, model.metrics, begin, refusal, max_message_bytes=MAX_EVENT_BYTES
    )


async def handle_live_offer(
    request: web.Request, services: Services, _model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Answer an offer of WebRTC that has a session; the call continues after the answer.

    Raises:
        web.HTTPException, SessionError: refused.
    """
    try:
        _ = peers_of(services)
        body = await read_small(request, services, services.config.limits.max_message_bytes)
        start, sdp = live.read_offered(body)
        offer = read_offer(sdp)
        call = await _call_of(services, named_model(request), start, ResumeMode.NO, caller)
        answer, name = await answer_offer(request, services, call, offer, prefix="live")
    except (ProtocolError, UnsupportedError) as error:
        raise api_error(error).exception() from error
    answered = {"session": {"id": name}, "transport": {"type": "webrtc", "sdp": answer}}
    return web.json_response(answered, status=201, headers={hdrs.LOCATION: f"{request.path}/{name}"})


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """An ``error`` event, and its close code."""
    return (events.encode(events.error_of(error), "event_1"),), wire_form(error).openai_close


def is_resumption(query: Mapping[str, str]) -> bool:
    """Whether a connection resumes a session."""
    return query.get("resume") == ResumeMode.AGAIN


refuse_live = refuse_in(lambda _: refusal)

ROUTES = (
    Route("GET", "/v1/live/sessions", handle_live, refuse_live, resumes=is_resumption, has_agents=True),
    Route("POST", "/v1/live/sessions", handle_live_offer, has_agents=True),
    Route("GET", "/v1/live/sessions/{id}/attach", handle_watcher, refuse_live, has_agents=True),
)


async def _first_event(
    socket: Socket, mode: ResumeMode, timeout_s: float
) -> live.Start | live.ResumeSession | None:
    """Return the event that starts or resumes a session, or None if the peer has disconnected.

    Raises:
        FieldError: it is another event.
        SessionTimeoutError: no event arrived.
    """
    is_again = mode is ResumeMode.AGAIN
    name, kind = ("session.resume", live.ResumeSession) if is_again else ("session.start", live.Start)
    timeout_s = min(timeout_s, CLAIM_S) if is_again else timeout_s
    if (message := await next_message(socket, timeout_s, name)) is None:
        return None
    event = socket.timed(live.decode, message)
    if not isinstance(event, live.Start | live.ResumeSession) or not isinstance(event, kind):
        raise FieldError(
            f"the first event has to be {name}",
            param="type",
            code="session_not_started",
            event_id=event.event_id,
        )
    return event


async def _begin(
    services: Services,
    named: str | None,
    start: live.Start | live.ResumeSession,
    mode: ResumeMode,
    caller: Caller,
    socket: Socket,
) -> Call:
    """The requested call, with its row.

    Raises:
        AntiphonError: it is not available.
    """
    call = await _call_of(services, named, start, mode, caller, socket)
    if isinstance(start, live.Start):
        await call.admit(format=start.session.format.encoding)
    elif call.local is None:  # else the call has its rows
        await call.claim(start.claim)
    return call


async def _call_of(
    services: Services,
    named: str | None,
    start: live.Start | live.ResumeSession,
    mode: ResumeMode,
    caller: Caller,
    socket: Socket | None = None,
) -> Call:
    """The requested call without a row; a resumed call of an agent continues on ``socket``.

    Raises:
        AntiphonError: it is not available.
    """
    session = start.session
    if named is not None and not services.models.are_one(named, session.model):
        raise FieldError(
            f"session.model is {session.model!r}, and the path names {named!r}",
            param="session.model",
            code="invalid_value",
            event_id=start.event_id,
        )
    if (agent := services.agent_for(session.model)) is not None:
        return await _agent_call(services, agent, start, mode, caller, socket)
    is_again = isinstance(start, live.ResumeSession)
    model = services.model_for(session.model, caller, LIVE_KINDS, resumes=is_again)
    prompt, notices = (None, []) if is_again else await _prompt_of(services, model, session)
    spec, recogniser = model.engine.info.spec, services.models.default_of((PipelineKind.STT,))
    resume = None if mode is ResumeMode.NO else CallResume(services, caller, spec.frame_ms)
    sequence = None if resume is None else resume.sequence
    return Call(
        services,
        model,
        LiveDialect(start, model, notices=notices, sequence=sequence),
        # A client that may resume has its own clock: frame N of the input is the client's frame N.
        Talker(model, Place(model.engine, model.parameters(), prompt=prompt), fills_gaps=resume is None),
        caller=caller,
        resume=resume,
        captions=None if recogniser is None else Captions(recogniser, spec.sample_rate, services.clock),
    )


async def _agent_call(
    services: Services,
    agent: AgentParts,
    start: live.Start | live.ResumeSession,
    mode: ResumeMode,
    caller: Caller,
    socket: Socket | None,
) -> Call:
    """The call of a voice agent that a client requests; a resumed one continues on ``socket``.

    Raises:
        AntiphonError: it is not available.
    """
    if isinstance(start, live.ResumeSession):
        found = find_local(services, start.claim.token)
        if not isinstance(dialect := found.dialect, LiveAgentDialect):
            raise ResumeError("unknown: the call that has this token is of another protocol")
        assert socket is not None
        found.take_over(socket, start.claim, partial(dialect.resumed, start))
        return found
    session, speakers = start.session, agent.tts.speakers
    has_voice = session.voice is not None and speakers is not None and session.voice in speakers.names()
    notices = _notices(agent.name, session, takes_text=True, has_voice=has_voice)
    local = None if mode is ResumeMode.NO else local_resume(services, caller)
    dialect = LiveAgentDialect(start, agent, notices=notices, resume=local)
    speaker = Agent(
        replace(agent, settings=dialect.settings),
        services.clock,
        voice=await voice_of_agent(agent, session.voice, services),
        new_id=dialect.new_id,
        fills_gaps=local is None,
    )
    for entry in dialect.history:
        speaker.obey(entry)
    return Call(services, agent.stt, dialect, speaker, caller=caller, local=local)


async def _prompt_of(
    services: Services, model: ServedModel, session: SessionConfig
) -> tuple[Prompt | None, list[events.Info]]:
    """The prompt of the session, and a notice for each field without effect.

    Raises:
        FieldError: instructions that are too long.
        SessionFailedError: a voice's file is broken.
    """
    takes_prompt = takes_persona(model.engine.info.spec) and model.engine.info.can_prime
    voices = model.voices.names() if takes_prompt and model.voices is not None else []
    voice = session.voice if session.voice in voices else None
    notices = _notices(
        model.name, session, takes_prompt=takes_prompt, takes_text=False, has_voice=voice is not None
    )
    prompt = await prompt_of_session(services, model, session.instructions, voice, None)
    return prompt, notices


def _notices(
    model: str, session: SessionConfig, *, has_voice: bool, takes_prompt: bool = True, takes_text: bool
) -> list[events.Info]:
    """A notice for each field that is accepted and has no effect."""
    delegation = (session.delegation or {}).get("type")
    ignored = {
        "instructions": bool(session.instructions.strip()) and not takes_prompt,
        "voice": session.voice is not None and not has_voice,
        "input": bool(session.history) and not takes_text,
        "delegation": delegation not in (None, "client", *(("responses",) if takes_text else ())),
        "triggers": bool(session.triggers),
        "store": session.store,
    }
    return [
        events.Info(f"{name}_ignored", f"{name} has no effect: the model {model} {_REASONS[name]}")
        for name, is_ignored in ignored.items()
        if is_ignored
    ]


_REASONS = {
    "instructions": "takes no instructions",
    "voice": "has no voice of that name",
    "input": "reads no earlier conversation",
    "delegation": "delegates nothing",
    "triggers": "makes no decisions",
    "store": "is not recorded for the client",
}
