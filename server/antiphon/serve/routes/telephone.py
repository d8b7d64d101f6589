"""``/twilio`` and ``/telnyx``: telephone calls over a WebSocket, for full-duplex models and agents.

Both paths accept the messages of either service. The services send neither the query nor headers of the
configured address, so the key, the model and the persona are parameters of the ``start`` message: ``key``,
``model``, ``voice``, ``instructions``. A refusal after the upgrade closes the connection with a code and a
reason.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from aiohttp import web

from antiphon.errors import ProtocolError, SessionTimeoutError
from antiphon.models.spec import LIVE_KINDS
from antiphon.protocol import media_streams as wire
from antiphon.protocol.wire_errors import close_only
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.twilio_signature import HEADER, is_signed
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import upgrade_then_admit
from antiphon.serve.calls.participant import Place, Talker
from antiphon.serve.dialects.media_stream import MediaStreamLine
from antiphon.serve.dialects.telephone import AgentTelephoneDialect, TelephoneDialect, TelephoneLine
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.prompts import participant_of, prompt_of_session
from antiphon.serve.routes.routing import Route, check_room_here, check_upgrade, named_model, refuse_in
from antiphon.serve.transport.socket import Socket


async def handle_twilio(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one call, whose request is signed if the server has Twilio's token.

    Raises:
        web.HTTPForbidden: the signature is missing or wrong.
        web.HTTPException, SessionError: refused before the upgrade.
    """
    token = services.access.twilio_token
    header = request.headers.get(HEADER, "")
    if token is not None and not is_signed(header, request.host, request.raw_path, token):
        raise web.HTTPForbidden(text=f"{HEADER} is missing, or not that of this address\n")
    return await handle_stream(request, services, model, caller)


async def handle_stream(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one call until it ends.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)
    await check_room_here(request, services, model)
    async with AsyncExitStack() as held:

        async def begin(socket: Socket) -> Call | None:
            start = await _start_of(socket, services.config.limits.handshake_timeout_s)
            if start is None:
                return None
            known = services.access.identified_by(start.parameters.get("key"), caller)
            if known is not caller:
                await services.access.admit(known)
                await held.enter_async_context(services.access.ledger.hold(Caller(known.key, "")))
            return await _begin(services, named_model(request), start, known)

        return await upgrade_then_admit(
            request, services, model.metrics, begin, close_only, max_message_bytes=wire.MAX_MESSAGE_BYTES
        )


refuse_call = refuse_in(lambda _: close_only)

ROUTES = (
    Route("GET", "/twilio", handle_twilio, refuse_call, has_agents=True, shows_key_later=True),
    Route("GET", "/telnyx", handle_stream, refuse_call, has_agents=True, shows_key_later=True),
)


async def _start_of(socket: Socket, timeout_s: float) -> wire.StreamStart | None:
    """The message that begins a stream; None when the peer has disconnected.

    Raises:
        ProtocolError: another message than ``connected`` comes first.
        SessionTimeoutError: no message arrived.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while (message := await socket.receive_any()) is not None:
                event = socket.timed(wire.decode, message)
                if isinstance(event, wire.StreamStart):
                    return event
                if event is not None:
                    raise ProtocolError("the first event after connected has to be start")
    except TimeoutError:
        raise SessionTimeoutError(f"no start for {timeout_s:g} s") from None
    return None


async def _begin(services: Services, named: str | None, start: wire.StreamStart, caller: Caller) -> Call:
    wishes = start.parameters
    call = await telephone_call(
        services,
        MediaStreamLine(start),
        caller,
        wishes.get("model", named),
        instructions=wishes.get("instructions", ""),
        voice=wishes.get("voice"),
    )
    await call.admit(format=start.codec)
    return call


async def telephone_call(
    services: Services,
    line: TelephoneLine,
    caller: Caller,
    name: str | None,
    *,
    instructions: str = "",
    voice: str | None = None,
) -> Call:
    """The call of a line with the model or the agent of this name. It does not have a row yet.

    Raises:
        AntiphonError: the call is not available.
    """
    if (agent := services.agent_for(name)) is not None:
        speaker = await participant_of(
            agent, services, instructions=instructions, voice=voice, fills_gaps=True
        )
        return Call(services, agent.stt, AgentTelephoneDialect(line, agent), speaker, caller=caller)
    model = services.model_for(name, caller, LIVE_KINDS)
    prompt = await prompt_of_session(services, model, instructions, voice, None)
    talker = Talker(model, Place(model.engine, model.parameters(), prompt=prompt), fills_gaps=True)
    return Call(services, model, TelephoneDialect(line, model, services.clock), talker, caller=caller)
