"""``/api/speech/asr`` and ``/api/speech/tts``: the JSON speech dialect over a WebSocket.

The first message, ``setup``, names the model, the voice and the format; unknown names select the first model
and its first voice, because clients send names from other servers. Clients read errors as messages, so a
refused request is upgraded, answered with ``error``, and closed with its code.
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from antiphon.errors import ProtocolError, SessionTimeoutError
from antiphon.protocol import json_speech as wire
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import admit_and_run, upgrade_then_admit
from antiphon.serve.calls.synthesiser import Synthesiser
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.dialects.json_speech import JsonAsrDialect, JsonTtsDialect, refusal
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import Route, check_upgrade, refuse_in
from antiphon.serve.routes.tts import voice_of
from antiphon.serve.transport.liveness import LivenessRules
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message
from antiphon.serve.transport.upgrade import open_socket


async def handle_asr(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve transcripts over a WebSocket until it closes.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)

    async def begin(socket: Socket) -> Call | None:
        setup = await next_setup(socket, services, services.config.limits.handshake_timeout_s)
        if setup is None:
            return None
        chosen = find_model(services, setup.model, model, caller)
        dialect = JsonAsrDialect(setup, chosen)
        call = Call(services, chosen, dialect, Transcriber(chosen, services.clock), caller=caller)
        await call.admit(route="speech asr", format=setup.form)
        return call

    return await upgrade_then_admit(
        request, services, model.metrics, begin, refusal, max_message_bytes=wire.MAX_MESSAGE_CHARS
    )


async def handle_tts(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve the requests of one connection, one after the other. There is one request, or several if the
    client asks for that.

    Raises:
        web.HTTPException, SessionError: refused before the upgrade.
    """
    await check_upgrade(request, model, wait_s=0.0)
    limits = services.config.limits
    socket, response = await open_socket(
        request, limits, services.clock, max_message_bytes=wire.MAX_MESSAGE_CHARS
    )

    async def begin(socket: Socket) -> Call | None:
        limit_s = limits.quiet_timeout_s if socket.keeps_open else limits.handshake_timeout_s
        socket.keeps_open = False
        setup = await next_setup(socket, services, limit_s)
        if setup is None:
            return None
        await services.access.admit(caller)  # the key may have been revoked or used up meanwhile
        socket.keeps_open = setup.keeps_open
        chosen = find_model(services, setup.model, model, caller)
        dialect = JsonTtsDialect(setup, chosen, socket.unread)
        voice = await voice_of(chosen, setup.voice, services)
        speaker = Synthesiser(chosen, services.clock, voice.prompt)
        call = Call(services, chosen, dialect, speaker, caller=caller)
        await call.admit(route="speech tts", format=setup.form)
        return call

    with model.metrics.sockets.track_inprogress():
        while True:
            await admit_and_run(socket, services, model.metrics, begin, refusal, request.path)
            if socket.has_ended or not socket.keeps_open:
                return response


def find_model(services: Services, name: str | None, usual: ServedModel, caller: Caller) -> ServedModel:
    """The model called ``name`` if it has the same kind as ``usual``, otherwise ``usual``."""
    known = None if name is None else services.models.named(name, (usual.kind,))
    if known is None or known.kind is not usual.kind:
        return usual
    return services.model_for(known.name, caller, (usual.kind,))


async def next_setup(socket: Socket, services: Services, timeout_s: float) -> wire.SpeechSetup | None:
    """The message that begins a request; None when the peer has disconnected.

    Raises:
        ProtocolError: audio precedes it. SessionTimeoutError: no message arrived, or the peer does not answer
        pings. DrainingError: the server shuts down.
    """
    services.waiting.add(socket)
    try:
        async with asyncio.timeout(timeout_s):
            while (message := await _next_alive(socket, services)) is not None:
                match socket.timed(wire.decode, message):
                    case wire.SpeechSetup() as setup:
                        return setup
                    case wire.SpeechAudio():
                        raise ProtocolError("audio before setup")
    except TimeoutError:
        raise SessionTimeoutError(f"no setup for {timeout_s:g} s") from None
    finally:
        services.waiting.discard(socket)
    return None


async def _next_alive(socket: Socket, services: Services) -> Message | None:
    rules = LivenessRules(services.config.limits)
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rules.period_s):
                return await socket.receive_any()
        rules.check(services.clock(), socket.silent_s())
        if rules.wants_ping(socket.silent_s()):
            socket.ping()


ASR_ROUTES = (Route("GET", wire.ASR_PATH, handle_asr, refuse_in(lambda _: refusal)),)
TTS_ROUTES = (Route("GET", wire.TTS_PATH, handle_tts, refuse_in(lambda _: refusal)),)
