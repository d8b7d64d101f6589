"""``/v1/live/sessions``: OpenAI Live over a WebSocket, for models that talk.

A wrong key, a foreign origin and too many sessions are refused before the upgrade. Everything else is an
``error`` event and a close: it concerns what the first event says, which comes after the upgrade.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from antiphon.errors import (
    AntiphonError,
    FieldError,
    SessionError,
    SessionTimeoutError,
)
from antiphon.models.persona import takes_persona
from antiphon.models.prompt import Prompt
from antiphon.models.spec import PipelineKind
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.chat import ResumeMode
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.live_session import SessionConfig
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.resumable import CLAIM_S
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.routes.live_call import LiveCall
from antiphon.serve.routes.live_recogniser import LiveRecogniser
from antiphon.serve.routes.live_watcher import handle_watcher
from antiphon.serve.routes.prompts import prompt_of_session
from antiphon.serve.routes.resumable_live_call import ResumableLiveCall, is_resumption
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, named_model, refusal_of
from antiphon.serve.transport.frames import TEXT, frame
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.upgrade import is_upgrade

MAX_EVENT_BYTES = MAX_EVENT_CHARS
"""A WebSocket message beyond it ends the connection with 1009, before it is read."""

KINDS = (PipelineKind.DUPLEX, PipelineKind.CODEC)


async def handle_live(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One session, for as long as it lasts. ``model`` answers the request where the session names no other.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)
    if ELSEWHERE in request.headers:
        await model.engine.check_room(0.0)  # a proxy reads a status, and no event after the upgrade
    limits = services.config.limits
    socket = await Socket.open(request, limits, services.clock, max_message_bytes=MAX_EVENT_BYTES)
    call: LiveCall | None = None
    with model.metrics.sockets.track_inprogress():
        try:
            mode = live.read_mode(request.query)
            start = await _first_event(socket, mode, limits.handshake_timeout_s)
            if start is None:
                return socket.response
            call = await _make_call(services, named_model(request), start, mode, caller)
            await call.admit()
        except AntiphonError as error:
            kind = type(error).__name__
            services.provoked.info(
                "session refused", of=kind, path="/v1/live/sessions", error=kind, reason=str(error)
            )
            await refuse(socket, model.metrics, error)
        else:
            await call.run(socket)
        finally:
            if call is not None:
                call.abandon()
    return socket.response


async def refuse_live(
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
    socket.write(frame(events.encode(events.error_of(error), "event_1"), TEXT))
    await socket.close(wire_form(error).openai_close, str(error))
    metrics.closed(socket.close_code)


ROUTES = (
    Route("GET", "/v1/live/sessions", handle_live, refuse_live, resumes=is_resumption),
    Route("GET", "/v1/live/sessions/{id}/attach", handle_watcher, refuse_live),
)


async def _first_event(
    socket: Socket, mode: ResumeMode, timeout_s: float
) -> live.Start | live.ResumeSession | None:
    """The event that starts a session, or resumes one; None when the peer has left.

    Raises:
        FieldError: it is another one.
        SessionTimeoutError: there is none.
    """
    is_again = mode is ResumeMode.AGAIN
    name, kind = ("session.resume", live.ResumeSession) if is_again else ("session.start", live.Start)
    timeout_s = min(timeout_s, CLAIM_S) if is_again else timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            message = await socket.receive_any()
    except TimeoutError:
        raise SessionTimeoutError(f"no {name} for {timeout_s:g} s") from None
    if message is None:
        return None
    event = live.decode(message)
    if not isinstance(event, live.Start | live.ResumeSession) or not isinstance(event, kind):
        raise FieldError(
            f"the first event has to be {name}",
            param="type",
            code="session_not_started",
            event_id=event.event_id,
        )
    return event


async def _make_call(
    services: Services,
    named: str | None,
    start: live.Start | live.ResumeSession,
    mode: ResumeMode,
    caller: Caller,
) -> LiveCall:
    """The conversation that a client asks for.

    Raises:
        AntiphonError: it cannot be had.
    """
    session = start.session
    if named not in (None, session.model):
        raise FieldError(
            f"session.model is {session.model!r}, and the path names {named!r}",
            param="session.model",
            code="invalid_value",
            event_id=start.event_id,
        )
    resumes = isinstance(start, live.ResumeSession)
    model = services.model_for(session.model, caller, KINDS, resumes=resumes)
    prompt: Prompt | None = None
    notices: list[events.Info] = []
    if isinstance(start, live.Start):
        prompt, notices = await _prompt_of(services, model, session)
    recogniser = services.models.default_of((PipelineKind.STT,))
    rate = model.engine.info.spec.sample_rate
    return (LiveCall if mode is ResumeMode.NO else ResumableLiveCall)(
        services,
        model,
        start,
        prompt=prompt,
        recogniser=None if recogniser is None else LiveRecogniser(recogniser, rate, services.clock),
        notices=notices,
        caller=caller,
    )


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
    notices = _notices(model.name, session, takes_prompt=takes_prompt, has_voice=voice is not None)
    prompt = await prompt_of_session(services, model, session.instructions, voice, None)
    return prompt, notices


def _notices(model: str, session: SessionConfig, *, takes_prompt: bool, has_voice: bool) -> list[events.Info]:
    """One for each field that is accepted and has no effect."""
    delegation = (session.delegation or {}).get("type")
    ignored = {
        "instructions": bool(session.instructions.strip()) and not takes_prompt,
        "voice": session.voice is not None and not has_voice,
        "input": bool(session.history),
        "delegation": delegation not in (None, "client"),
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
