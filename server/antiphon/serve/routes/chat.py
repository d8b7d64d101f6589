"""``/api/chat``: from a request to a conversation, or to a refusal the client can read.

Everything that can be refused is refused before the upgrade, with an HTTP status: 400 query or prompt, and
what :mod:`antiphon.serve.routes.routing` finds, 401 key, 403 origin, 404 model, 429 sessions, 503 full or
draining.
Extended clients (``?ext=1``) are browsers, which cannot read a failed upgrade: from 404 on they are accepted,
answered with the reason in an ``error`` event, and closed with its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from antiphon.errors import ProtocolError, SessionError
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import ChatRequest, ResumeMode, parse_chat_query
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.routes.call import ChatCall
from antiphon.serve.routes.prompts import prompt_of
from antiphon.serve.routes.resumable_call import ResumableChatCall, resume_chat
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, plain_refusal, refusal_of, tell
from antiphon.serve.transport.upgrade import is_upgrade


async def handle_chat(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One WebSocket of ``/api/chat``, for as long as it lasts.

    Raises:
        web.HTTPException, SessionError: refused, see the module.
    """
    chat = check_request(request, model, services.config.limits.max_wait_s)
    if ELSEWHERE in request.headers:
        chat = replace(chat, wait_s=0.0)
    if chat.resume is ResumeMode.AGAIN:
        return await resume_chat(request, services, model, chat, caller)
    prompt = await prompt_of(model, chat, services)
    await check_upgrade(request, model, wait_s=chat.wait_s)
    kind = ChatCall if chat.resume is ResumeMode.NO else ResumableChatCall
    return await kind(services, model, chat, prompt, caller=caller).converse(request)


async def refuse_chat(
    request: web.Request, services: Services, metrics: ServeMetrics, error: SessionError
) -> web.StreamResponse:
    """Tell a client why there is no conversation: an extended one in an event, any other with a status.

    Raises:
        web.HTTPException: to all others.
    """
    if request.query.get("ext") != "1" or not is_upgrade(request):
        raise refusal_of(request, error)
    return await tell(request, services, metrics, error, moshi.encode(events.error_of(error)))


def is_resumption(query: Mapping[str, str]) -> bool:
    """Whether a connection goes on with a call; without the extension it begins one."""
    return query.get("ext") == "1" and query.get("resume") == ResumeMode.AGAIN


ROUTES = (Route("GET", "/api/chat", handle_chat, refuse_chat, resumes=is_resumption),)


def check_request(request: web.Request, model: ServedModel, max_wait_s: float) -> ChatRequest:
    """What the request asks for; ``max_wait_s`` is the longest wait that is accepted.

    Raises:
        web.HTTPBadRequest: a query that cannot be honoured.
    """
    try:
        return parse_chat_query(request.query, defaults=model.parameters(), max_wait_s=max_wait_s)
    except ProtocolError as error:
        raise plain_refusal(error) from error
