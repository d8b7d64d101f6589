"""Turns a request into a WebSocket (RFC 6455, section 4.2)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from aiohttp import hdrs, web

from antiphon.limits import Limits
from antiphon.serve.access.keys import chosen_subprotocol
from antiphon.serve.transport.frames import FrameReader
from antiphon.serve.transport.socket import Socket

P = TypeVar("P")

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The constant in the answer to a client's key (RFC 6455, section 1.3)."""


def is_upgrade(request: web.Request) -> bool:
    """Whether a request asks for a WebSocket."""
    # Without the subprotocols: aiohttp logs them if it can select none.
    protocols = _selected(request)
    return request.method == hdrs.METH_GET and bool(
        web.WebSocketResponse(protocols=protocols).can_prepare(request)
    )


async def open_socket(
    request: web.Request,
    limits: Limits,
    clock: Callable[[], float],
    *,
    max_message_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[Socket, web.StreamResponse]:
    """Upgrade a request; also returns the response, with ``headers`` added.

    ``max_message_bytes`` replaces the configured limit, if given. Raises as :func:`upgrade`.
    """
    reader = FrameReader(max_message_bytes or limits.max_message_bytes)
    return await upgrade(request, limits, lambda it: Socket(it, limits, clock, reader), headers or {})


async def upgrade(
    request: web.Request,
    limits: Limits,
    parser_of: Callable[[asyncio.Transport], P],
    headers: Mapping[str, str],
) -> tuple[P, web.StreamResponse]:
    """Upgrade a request: all further bytes go to the parser of its transport. Also returns the response.

    Raises:
        web.HTTPBadRequest: the request is not for a WebSocket. ConnectionResetError: the peer disconnected
        meanwhile.
    """
    response = switching_protocols(request, headers)
    await response.prepare(request)
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the peer disconnected during the upgrade")
    if (connection := transport.get_extra_info("socket")) is not None:
        # Otherwise the kernel's buffer grows to megabytes, minutes of Opus, for a peer that does not read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.max_unsent_bytes)
    parser = parser_of(transport)
    own: Any = parser  # aiohttp annotates its own class
    request.protocol.set_parser(own)
    request.protocol.keep_alive(False)
    return parser, response


def switching_protocols(request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
    """The response that makes a request's connection a WebSocket, with ``headers`` added.

    Raises:
        web.HTTPBadRequest: the request is no upgrade.
    """
    if not is_upgrade(request):
        raise web.HTTPBadRequest(text="this is no request for a WebSocket of version 13\n")
    digest = hashlib.sha1(request.headers[hdrs.SEC_WEBSOCKET_KEY].encode() + _GUID).digest()
    response = web.StreamResponse(status=101, headers=headers)
    response.headers[hdrs.UPGRADE] = "websocket"
    response.headers[hdrs.CONNECTION] = "Upgrade"
    response.headers[hdrs.SEC_WEBSOCKET_ACCEPT] = base64.b64encode(digest).decode()
    for protocol in _selected(request):
        response.headers[hdrs.SEC_WEBSOCKET_PROTOCOL] = protocol
    response.force_close()
    return response


def _selected(request: web.Request) -> tuple[str, ...]:
    chosen = chosen_subprotocol(request.headers)
    return () if chosen is None else (chosen,)
