"""``/unmute/v1/...``: Kyutai's Unmute, for its own front end and clients; only voice agents answer.

It has a separate base path, because its ``/v1/realtime`` and ``/v1/voices`` are also paths of other
protocols. ``?model=`` or ``/m/NAME`` names one of several agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from aiohttp import web

from antiphon.errors import AntiphonError, UnknownModelError
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.protocol.realtime_events import encode
from antiphon.protocol.unmute import error_event
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import upgrade_then_admit
from antiphon.serve.dialects.unmute import UnmuteDialect
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.prompts import participant_of, voice_of_agent
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, named_model, refusal_of, refuse_in
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message

BASE: Final = "/unmute/v1"


async def handle_unmute(
    request: web.Request, services: Services, _model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one session until it ends.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    agent = services.agent_for(named_model(request), is_needed=True)
    await check_upgrade(request, agent.stt, wait_s=0.0)
    if ELSEWHERE in request.headers:
        await agent.check_room()  # a proxy reads a status, but no event after the upgrade

    async def begin(_socket: Socket) -> Call:
        dialect = UnmuteDialect(agent, voice_of=partial(voice_of_agent, agent, services=services))
        speaker = await participant_of(agent, services, fills_gaps=True)
        call = Call(services, agent.stt, dialect, speaker, caller=caller)
        await call.admit(route=request.path)
        return call

    return await upgrade_then_admit(
        request, services, agent.stt.metrics, begin, refusal, max_message_bytes=MAX_EVENT_CHARS
    )


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """An ``error`` event, and its close code."""
    return (encode(error_event(error, is_fatal=True), "event_1"),), wire_form(error).openai_close


REALTIME = Route("GET", f"{BASE}/realtime", handle_unmute, refuse_in(lambda _: refusal), has_agents=True)


async def list_voices(
    request: web.Request, services: Services, _models: Sequence[ServedModel]
) -> web.Response:
    """The voices of an agent as an array that begins with the agent's own voice. If the synthesiser has no
    named voices, the array has only that voice.
    """
    agent = _agent_of(request, services)
    names = [] if agent.tts.speakers is None else agent.tts.speakers.names()
    ordered = sorted(names, key=lambda name: name != agent.voice)
    unknown = {"description": None, "description_link": None}
    voices = [
        {
            "name": name,
            "good": True,
            "instructions": None,
            "source": {"source_type": "file", "path_on_server": name, **unknown},
        }
        for name in ordered or [agent.name]
    ]
    return web.json_response(voices)


async def health(request: web.Request, services: Services, _models: Sequence[ServedModel]) -> web.Response:
    """Answer whether each part of an agent works; ``ok`` if all do. This server does not clone voices."""
    agent = _agent_of(request, services)
    engines = (await services.status.health()).models
    up = {
        "tts_up": engines[agent.tts.name].is_healthy,
        "stt_up": engines[agent.stt.name].is_healthy,
        "llm_up": await agent.text_model.is_up(),
    }
    return web.json_response({**up, "voice_cloning_up": False, "ok": all(up.values())})


def _agent_of(request: web.Request, services: Services) -> AgentParts:
    try:
        agent: AgentParts = services.agent_for(named_model(request), is_needed=True)
    except UnknownModelError as error:
        raise refusal_of(request, error) from error
    return agent
