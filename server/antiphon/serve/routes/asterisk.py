"""Asterisk: ``/asterisk``, its channel over a WebSocket, and AudioSocket on a TCP port.

Asterisk opens the connection. On the WebSocket, the query contains the model, the voice, the instructions and
the key (``auth_id``). AudioSocket has no query and no keys: the address of the port names the model and the
voice. A refused call is hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from antiphon.errors import AntiphonError, ProtocolError, SessionTimeoutError
from antiphon.models.spec import LIVE_KINDS
from antiphon.protocol import asterisk, audiosocket
from antiphon.protocol.wire_errors import close_only, wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import next_message, run_call, upgrade_then_admit
from antiphon.serve.dialects.asterisk import AsteriskLine, AudioSocketLine
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import Route, check_room_here, check_upgrade, named_model, refuse_in
from antiphon.serve.routes.tcp import Serve, TcpRoute, held
from antiphon.serve.routes.telephone import telephone_call
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message
from antiphon.tcp_port import TcpPort


async def handle_asterisk(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one call of Asterisk's channel over a WebSocket until it ends.

    Raises:
        web.HTTPException, SessionError: the request is refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)
    await check_room_here(request, services, model)

    async def begin(socket: Socket) -> Call | None:
        message = await next_message(socket, services.config.limits.handshake_timeout_s, "MEDIA_START")
        if message is None:
            return None
        start = socket.timed(asterisk.decode, message)
        if not isinstance(start, asterisk.MediaStart):
            raise ProtocolError("the first message has to be MEDIA_START")
        call = await telephone_call(
            services,
            AsteriskLine(start),
            caller,
            named_model(request),
            instructions=request.query.get("instructions", ""),
            voice=request.query.get("voice"),
        )
        await call.admit(format=start.codec, rate=start.rate, channel=start.channel)
        return call

    return await upgrade_then_admit(
        request, services, model.metrics, begin, hung_up, max_message_bytes=asterisk.MAX_MESSAGE_BYTES
    )


def hung_up(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """The command that hangs up, and the close code for an error."""
    return ("HANGUP",), wire_form(error).close


async def serve_audiosocket(services: Services, port: TcpPort, socket: Socket, caller: Caller) -> None:
    """Serve one call of AudioSocket. It begins with the first audio, and keeps the rate of this audio.

    Raises:
        AntiphonError: the call cannot begin.
    """
    begun = await _begin_of(socket, services.config.limits.handshake_timeout_s)
    if begun is None:
        return
    name, rate = begun
    async with held(services, socket, caller):
        line = AudioSocketLine(rate, services.clock)
        call = await telephone_call(services, line, caller, port.model, voice=port.voice)
        await call.admit(route="audiosocket", rate=rate, uuid=name)
        await run_call(call, socket)


async def _begin_of(socket: Socket, timeout_s: float) -> tuple[str, int] | None:
    """The UUID of a call, and the rate of its first audio, which is not consumed; None if the call ends
    before.

    Raises:
        ProtocolError: audio comes before the UUID, or a second UUID before audio.
        SessionTimeoutError: no audio arrived.
    """
    name = ""
    try:
        async with asyncio.timeout(timeout_s):
            while (message := await socket.receive_any()) is not None:
                match socket.timed(audiosocket.decode, message):
                    case audiosocket.CallNamed() if name:
                        raise ProtocolError("a second UUID, a call has one")
                    case audiosocket.CallNamed(name):
                        pass
                    case audiosocket.CallerAudio(rate) if name:
                        socket.unread(message)
                        return name, rate
                    case audiosocket.CallerAudio():
                        raise ProtocolError("audio before the UUID of the call")
                    case audiosocket.CallOver():
                        return None
    except TimeoutError:
        raise SessionTimeoutError(f"no audio for {timeout_s:g} s") from None
    return None


def make_audiosocket(services: Services, port: TcpPort) -> Serve:
    """The function that serves the connections of a port.

    Raises:
        UnknownModelError: no model that talks and no agent has the name in the port's address.
    """
    if services.agent_for(port.model) is None:
        services.models.find(port.model, LIVE_KINDS)
    return partial(serve_audiosocket, services, port)


ROUTES = (Route("GET", "/asterisk", handle_asterisk, refuse_in(lambda _: hung_up), has_agents=True),)
AUDIOSOCKET = TcpRoute(audiosocket.size_of, close_only, make_audiosocket, audiosocket.FAREWELL)
