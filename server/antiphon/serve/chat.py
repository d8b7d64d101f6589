"""``/api/chat``: from a request to a conversation, or to a refusal the client can read.

Everything that can be refused is refused before the upgrade, with an HTTP status: 403 origin, 400 query or
prompt, 404 model, 503 full or draining. Extended clients (``?ext=1``) are browsers, which cannot read a
failed upgrade: they are accepted, told why in an ``error`` event, and closed with its code.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from aiohttp import web

from antiphon.errors import ProtocolError, ServerFullError, SessionError
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol.chat import ChatRequest, parse_chat_query
from antiphon.serve.call import Call
from antiphon.serve.prompts import prompt_of
from antiphon.serve.security import check_origin
from antiphon.serve.services import SERVICES, Services
from antiphon.serve.socket import Socket

DRAINING_RETRY_AFTER_S = 10
"""What stock clients are told while the server drains: by then another one should have taken its place."""

SEED_BITS = 53
"""Seeds drawn here are reported in JSON, and a browser's numbers are exact up to 2^53."""


async def handle_chat(request: web.Request) -> web.WebSocketResponse:
    """One WebSocket of ``/api/chat``, for as long as it lasts.

    Raises:
        web.HTTPException: refused, see the module.
    """
    services = request.app[SERVICES]
    try:
        chat = check_request(services, request)
        prompt = await prompt_of(services, chat)
        check_upgrade(request)
        call = Call(services, chat, prompt)
        try:
            return await _converse(services, request, chat, call)
        finally:
            call.abandon()
    except web.HTTPException as refusal:
        services.metrics.refused(refusal.status)
        raise


async def _converse(
    services: Services, request: web.Request, chat: ChatRequest, call: Call
) -> web.WebSocketResponse:
    refusal: SessionError | None = None
    try:
        call.admit()
    except SessionError as error:
        if not chat.extended:
            raise unavailable(error) from error
        refusal = error
    socket = await Socket.open(request, services.config.limits, services.clock)
    with services.metrics.sockets.track_inprogress():
        if refusal is not None:
            await call.refuse(socket, refusal)
        else:
            await call.run(socket)
    return socket.response


def check_request(services: Services, request: web.Request) -> ChatRequest:
    """What the request asks for.

    Raises:
        web.HTTPForbidden: a foreign origin.
        web.HTTPBadRequest: a query that cannot be honoured.
        web.HTTPNotFound: a model that is not here.
    """
    check_origin(request, services.config.allow_origin)
    try:
        chat = parse_chat_query(request.query, defaults=with_seeds(services.defaults))
    except ProtocolError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from error
    name = services.engine.info.spec.name
    if chat.model not in (None, name, services.config.model):
        # What --model was given may be a path of this machine: understood, but nobody is told.
        raise web.HTTPNotFound(text=f"no model {chat.model!r} here; there is: {name}\n")
    return chat


def check_upgrade(request: web.Request) -> None:
    """Refuse what is no WebSocket: last, so that a plain GET is told first what else is wrong.

    Raises:
        web.HTTPUpgradeRequired: it is none.
    """
    if not web.WebSocketResponse().can_prepare(request):
        raise web.HTTPUpgradeRequired(
            text="this is a WebSocket: connect with ws:// or wss://\n", headers={"Upgrade": "websocket"}
        )


def with_seeds(defaults: SamplingParameters) -> SamplingParameters:
    """The defaults with seeds of their own, so that callers who name none do not all hear the same dice."""
    return replace(defaults, text_seed=secrets.randbits(SEED_BITS), audio_seed=secrets.randbits(SEED_BITS))


def unavailable(error: SessionError) -> web.HTTPServiceUnavailable:
    """503, and after how many seconds to try again."""
    retry_after_s = error.retry_after_s if isinstance(error, ServerFullError) else DRAINING_RETRY_AFTER_S
    return web.HTTPServiceUnavailable(text=f"{error}\n", headers={"Retry-After": str(retry_after_s)})
