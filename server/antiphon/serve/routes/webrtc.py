"""Calls by WebRTC: a POST with an offer starts a call that continues after the answer, and a DELETE ends it.

The offer is refused, or admitted with a row, before the answer. The answer's ``Location`` names the call.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

from aiohttp import hdrs, web

from antiphon.errors import PeerConnectionError, ProtocolError, UnknownSessionError, UnsupportedError
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.multipart import FORM, FormReader, boundary_of
from antiphon.protocol.sdp import CONTENT_TYPE, PeerOffer, read_offer
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.security import check_origin
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.peers import Peers
from antiphon.serve.hosting.services import SERVICES, Services
from antiphon.serve.routes.routing import MODEL_PREFIX, refusal_of
from antiphon.serve.routes.upload import read_small
from antiphon.serve.transport.peer import Peer

CALLS: Final = "/v1/realtime/calls"
LIVE: Final = "/v1/live/sessions"
CHAT: Final = "/api/chat"

PARTS: Final = ("sdp", "session")
"""The parts of a form with an offer; others are ignored."""


async def offer_of(request: web.Request, services: Services) -> tuple[PeerOffer, bytes]:
    """The offer in a request, and the session in its form, or b"" if there is none.

    Raises:
        UnsupportedError: the server accepts no calls by WebRTC.
        ProtocolError: the body is invalid. web.HTTPException: it is too large, or too slow.
    """
    _ = peers_of(services)
    data = await read_small(request, services, services.config.limits.max_message_bytes)
    if request.content_type == CONTENT_TYPE:
        return read_offer(data), b""
    if request.content_type != FORM:
        raise ProtocolError(
            f"the body is {request.content_type[:40]}; an offer is {CONTENT_TYPE}, or in a form"
        )
    reader = FormReader(boundary_of(request.headers.get(hdrs.CONTENT_TYPE, "")))
    parts = {name: bytearray() for name in PARTS}
    for piece in reader.feed(data):
        if piece.name in parts:
            parts[piece.name] += piece.data
    reader.check_complete()
    return read_offer(bytes(parts["sdp"])), bytes(parts["session"])


async def answer_offer(
    request: web.Request,
    services: Services,
    call: Call,
    offer: PeerOffer,
    *,
    head: bytes = b"",
    prefix: str = "rtc",
    **facts: Any,
) -> tuple[str, str]:
    """The SDP answer to an offer of a call, which starts when its peer is connected, and the call's name.

    ``head`` is the prefix of its dialect's messages with sound, ``prefix`` the prefix of its name.

    Raises:
        ProtocolError: the offer is invalid.
        SessionError: no connection or no row is free.
    """
    peers, ledger = peers_of(services), services.access.ledger
    async with AsyncExitStack() as stack:
        stack.callback(call.abandon)
        peer = await stack.enter_async_context(peers.opened(head))
        await call.admit(route=request.path, **facts)
        call.expect(peer)
        # The request counts until it is answered.
        await stack.enter_async_context(ledger.hold(call.caller, rows=services.models.rows, extra=1))
        answer = await peer.answer(offer)  # last: it sends packets to the offer's addresses
        name = f"{prefix}_{call.participant.id}"
        peers.hold(name, peer, call.caller, _hold(services, call, peer), stack.pop_all())
    return answer, name


def sdp_response(request: web.Request, answer: str, name: str) -> web.Response:
    """The response to an offer whose body is SDP."""
    headers = {hdrs.LOCATION: f"{request.path}/{name}"}
    return web.Response(status=201, text=answer, content_type=CONTENT_TYPE, headers=headers)


async def _hold(services: Services, call: Call, peer: Peer) -> None:
    """Hold an admitted call until it ends, or its peer has not connected in time."""
    metrics = call.model.metrics
    with metrics.sockets.track_inprogress():
        try:
            await peer.connected()
            await call.run(peer)
        except PeerConnectionError as error:
            kind = type(error).__name__
            services.provoked.info("call by WebRTC failed", of=kind, error=kind, reason=str(error))
            peer.close_code = peer.close_code or wire_form(error).close
        except Exception as error:  # a boundary: no request waits for this call
            services.log.error("call by WebRTC failed", exc_info=error)
            peer.close_code = CloseCode.INTERNAL_ERROR
        finally:
            metrics.closed(peer.close_code)


def peers_of(services: Services) -> Peers:
    """The calls by WebRTC of this process.

    Raises:
        UnsupportedError: the server accepts no calls by WebRTC.
    """
    if services.peers is None:
        raise UnsupportedError(
            "this server takes no calls by WebRTC: start it with --webrtc CALLS, the most at once "
            "(extra webrtc)"
        )
    return services.peers


async def hang_up(request: web.Request) -> web.Response:
    """End a call at the request of a caller with the same key.

    Raises:
        web.HTTPException: 404 if this key has no such call, 401 or 403 if access is refused.
    """
    services = request.app[SERVICES]
    check_origin(request, services.config.allow_origin)
    caller: Caller = services.access.identify(request)
    try:
        if services.peers is None:
            raise UnknownSessionError("no such call by WebRTC here")
        services.peers.find(request.match_info["id"], caller).hang_up()
    except UnknownSessionError as error:
        raise refusal_of(request, error) from error
    return web.Response()


def add_hang_up(app: web.Application) -> None:
    """Register the routes that end calls."""
    for base in (CALLS, LIVE, CHAT):
        for path in (f"{base}/{{id}}", f"{MODEL_PREFIX}{base}/{{id}}"):
            app.router.add_delete(path, hang_up)
            if base != CHAT:
                app.router.add_post(f"{path}/hangup", hang_up)
