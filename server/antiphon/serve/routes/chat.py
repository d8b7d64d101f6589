"""``/api/chat``: turns a request into a conversation, or into a refusal that the client can read.

A GET is a WebSocket, a POST an offer of WebRTC. Every refusal is sent before the upgrade, with an HTTP
status: 400 for the query or the prompt, and from the checks of :mod:`antiphon.serve.routes.routing` 401 for
the key, 403 for the origin, 404 for the model, 429 for the number of sessions, and 503 for a full or draining
server. Extended clients (``?ext=1``) are browsers, which cannot read a failed upgrade: for a status of 404 or
above, their request is upgraded, answered with the reason in an ``error`` event, and closed with its code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from aiohttp import web

from antiphon.errors import (
    AntiphonError,
    ProtocolError,
    ResumeError,
    SessionError,
    SessionTimeoutError,
    UnsupportedError,
)
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat, ChatRequest, ResumeMode, parse_chat_query
from antiphon.protocol.resume import decode_claim
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.call import Call, find_local
from antiphon.serve.calls.connect import admit_then_upgrade, upgrade_then_admit
from antiphon.serve.calls.local_resume import local_resume
from antiphon.serve.calls.participant import Place, Talker
from antiphon.serve.calls.resume import CLAIM_S, CallResume
from antiphon.serve.dialects.chat import AUDIO_TAG, ChatDialect
from antiphon.serve.dialects.chat_agent import AgentChatDialect
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.prompts import participant_of, prompt_of
from antiphon.serve.routes.routing import (
    ELSEWHERE,
    Route,
    check_upgrade,
    named_model,
    plain_refusal,
    refuse_in,
)
from antiphon.serve.routes.webrtc import answer_offer, offer_of, sdp_response
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message


async def handle_chat(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one WebSocket of ``/api/chat`` until it closes.

    Raises:
        web.HTTPException, SessionError: the request is refused; see the module.
    """
    agent = services.agent_for(named_model(request))
    chat = check_request(request, model, services.config.limits.max_wait_s)
    if ELSEWHERE in request.headers:
        chat = replace(chat, wait_s=0.0)
    if chat.resume is ResumeMode.AGAIN:
        return await resume_chat(request, services, model, chat, caller, is_agent=agent is not None)
    if agent is not None:
        await check_upgrade(request, model, wait_s=0.0)
        call = await agent_call(services, agent, chat, caller)
        return await admit_then_upgrade(
            request, services, model.metrics, call, format=chat.format, ext=chat.extended
        )
    prompt = await prompt_of(model, chat, services)
    await check_upgrade(request, model, wait_s=chat.wait_s)
    call = chat_call(services, model, chat, prompt, caller=caller)
    return await admit_then_upgrade(
        request, services, model.metrics, call, format=chat.format, ext=chat.extended
    )


def chat_call(
    services: Services,
    model: ServedModel,
    chat: ChatRequest,
    prompt: Prompt | None = None,
    *,
    caller: Caller = ANYBODY,
    has_tracks: bool = False,
) -> Call:
    """The call of a request; ``has_tracks``: audio arrives on a track, which may lose packets."""
    has_resume = chat.resume is not ResumeMode.NO
    resume = CallResume(services, caller, model.engine.info.spec.frame_ms) if has_resume else None
    dialect = ChatDialect(chat, model, services.clock(), None if resume is None else resume.sequence)
    dialect.is_stamped = dialect.is_stamped and not has_tracks
    place = Place(model.engine, chat.parameters, chat.wait_s, prompt)
    talker = Talker(model, place, fills_gaps=has_tracks)
    return Call(services, model, dialect, talker, caller=caller, resume=resume, may_record=chat.may_record)


async def agent_call(
    services: Services, agent: AgentParts, chat: ChatRequest, caller: Caller, *, has_tracks: bool = False
) -> Call:
    """The call of a voice agent; ``text_prompt`` contains instructions, ``voice_prompt`` a voice.

    ``has_tracks``: audio arrives on a track, which may lose packets.

    Raises:
        SessionFailedError: the voice's file is broken.
    """
    speaker = await participant_of(
        agent,
        services,
        instructions=chat.text_prompt or "",
        voice=chat.voice_prompt,
        fills_gaps=has_tracks,  # else its client gets a frame for each of its own
    )
    local = None if chat.resume is ResumeMode.NO else local_resume(services, caller)
    dialect = AgentChatDialect(chat, agent, services.clock(), local)
    dialect.is_stamped = dialect.is_stamped and not has_tracks
    return Call(services, agent.stt, dialect, speaker, caller=caller, local=local)


async def handle_chat_offer(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Answer a WebRTC offer (``POST /api/chat``) and start its call, which continues after the response.

    Audio uses the tracks; all other messages use a data channel, if the offer has one.

    Raises:
        web.HTTPException, SessionError: refused.
    """
    agent = services.agent_for(named_model(request))
    chat = check_request(request, model, services.config.limits.max_wait_s)
    if chat.resume is not ResumeMode.NO:
        raise web.HTTPBadRequest(text="a call by WebRTC cannot be resumed: leave out resume\n")
    chat = replace(chat, format=AudioFormat.PCM_S16LE, wait_s=0.0)
    try:
        offer, _ = await offer_of(request, services)
        if agent is not None:
            call = await agent_call(services, agent, chat, caller, has_tracks=True)
        else:
            prompt = await prompt_of(model, chat, services)
            call = chat_call(services, model, chat, prompt, caller=caller, has_tracks=True)
        answered = await answer_offer(request, services, call, offer, head=AUDIO_TAG, ext=chat.extended)
    except (ProtocolError, UnsupportedError) as error:
        raise plain_refusal(error) from error
    return sdp_response(request, *answered)


async def resume_chat(
    request: web.Request,
    services: Services,
    model: ServedModel,
    chat: ChatRequest,
    caller: Caller,
    *,
    is_agent: bool,
) -> web.StreamResponse:
    """Serve a WebSocket that resumes a call, until it closes.

    Raises:
        web.HTTPException: the request is not a WebSocket upgrade.
    """
    await check_upgrade(request, model, wait_s=chat.wait_s)

    async def begin(socket: Socket) -> Call:
        try:
            async with asyncio.timeout(CLAIM_S):
                message = await socket.receive()
        except TimeoutError:
            raise SessionTimeoutError(f"no claim to a call within {CLAIM_S:g} s") from None
        if message is None:
            raise SessionError("the client has disconnected without a claim")
        claim = decode_claim(message)
        if is_agent:
            found = find_local(services, claim.token)
            if not isinstance(dialect := found.dialect, AgentChatDialect):
                raise ResumeError("unknown: the call that has this token is of another protocol")
            found.take_over(socket, claim, partial(dialect.resumed, chat, claim))
            return found
        call = chat_call(services, model, chat, caller=caller)
        await call.claim(claim)
        return call

    return await upgrade_then_admit(request, services, model.metrics, begin, refusal)


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """The event of an error, and its close code."""
    return (moshi.encode(events.error_of(error)),), wire_form(error).close


def is_resumption(query: Mapping[str, str]) -> bool:
    """Whether a connection resumes a call. Without the extension every connection begins a new call."""
    return query.get("ext") == "1" and query.get("resume") == ResumeMode.AGAIN


refuse_chat = refuse_in(lambda request: refusal if request.query.get("ext") == "1" else None)

ROUTES = (
    Route("GET", "/api/chat", handle_chat, refuse_chat, resumes=is_resumption, has_agents=True),
    Route("POST", "/api/chat", handle_chat_offer, has_agents=True),
)


def check_request(request: web.Request, model: ServedModel, max_wait_s: float) -> ChatRequest:
    """The parameters of a request; ``max_wait_s`` is the longest accepted wait.

    Raises:
        web.HTTPBadRequest: the query is invalid.
    """
    try:
        return parse_chat_query(request.query, defaults=model.parameters(), max_wait_s=max_wait_s)
    except ProtocolError as error:
        raise plain_refusal(error) from error
