"""Turns a request into a call: a WebSocket that is admitted before or after the upgrade, or the answer to a
POST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from aiohttp import web

from antiphon.errors import AntiphonError, SessionTimeoutError
from antiphon.protocol.close_codes import CloseCode
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.transport.http_body import HttpBody
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message
from antiphon.serve.transport.upgrade import open_socket

Refusal: TypeAlias = Callable[[AntiphonError], tuple[Sequence[Message], int]]
"""The message for a refused client, and the close code."""


async def next_message(socket: Socket, timeout_s: float, what: str) -> Message | None:
    """The client's next message; None when it has disconnected. ``what`` is the message's name in errors.

    Raises:
        SessionTimeoutError: no message arrived.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await socket.receive_any()
    except TimeoutError:
        raise SessionTimeoutError(f"no {what} for {timeout_s:g} s") from None


async def admit_then_upgrade(
    request: web.Request,
    services: Services,
    metrics: ServeMetrics,
    call: Call,
    *,
    max_message_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    **facts: Any,
) -> web.StreamResponse:
    """Handle a request of a client that reads HTTP statuses; return when the call is over.

    Raises:
        ServerFullError, DrainingError, SessionFailedError, UnsupportedError: the call cannot be admitted.
        ConnectionResetError: the peer has disconnected meanwhile.
    """
    await call.admit(**facts)
    try:
        socket, response = await open_socket(
            request,
            services.config.limits,
            services.clock,
            max_message_bytes=max_message_bytes,
            headers=headers,
        )
        with metrics.sockets.track_inprogress():
            await run_call(call, socket)
        return response
    finally:
        call.abandon()


async def upgrade_then_admit(
    request: web.Request,
    services: Services,
    metrics: ServeMetrics,
    begin: Callable[[Socket], Awaitable[Call | None]],
    refusal: Refusal,
    *,
    max_message_bytes: int | None = None,
) -> web.StreamResponse:
    """Handle a request of a client that reads refusals as messages; return when the call is over.

    ``begin`` returns an admitted call, possibly after a first message; None if the peer has disconnected.
    """
    socket, response = await open_socket(
        request, services.config.limits, services.clock, max_message_bytes=max_message_bytes
    )
    with metrics.sockets.track_inprogress():
        await admit_and_run(socket, services, metrics, begin, refusal, request.path)
    return response


async def admit_and_run(
    socket: Socket,
    services: Services,
    metrics: ServeMetrics,
    begin: Callable[[Socket], Awaitable[Call | None]],
    refusal: Refusal,
    path: str,
) -> None:
    """Run one call on an open connection until it is over; a refusal is logged with ``path``."""
    try:
        call = await begin(socket)
    except AntiphonError as error:
        kind = type(error).__name__
        services.provoked.info("session refused", of=kind, path=path, error=kind, reason=str(error))
        await refuse(socket, metrics, error, refusal)
    else:
        if call is not None:
            await run_call(call, socket)


async def run_call(call: Call, socket: Socket) -> None:
    """Run an admitted call, and count its close."""
    try:
        await call.run(socket)
    finally:
        is_kept = socket.keeps_open and not socket.has_ended
        call.model.metrics.closed(CloseCode.NORMAL if is_kept else socket.close_code)
        call.abandon()


async def answer_post(call: Call, body: HttpBody, **facts: Any) -> web.StreamResponse:
    """Answer a complete POST request with the output of ``call``.

    Raises:
        AntiphonError: the call cannot be admitted, or ended before anything was sent.
    """
    await call.admit(**facts)
    try:
        await call.run(body)
    finally:
        call.abandon()
        await body.stop()
    return body.answer(call.error)


async def upgrade_to_refuse(
    request: web.Request, services: Services, metrics: ServeMetrics, error: AntiphonError, refusal: Refusal
) -> web.StreamResponse:
    """Upgrade a connection in order to refuse it with a message, a code and a reason."""
    socket, response = await open_socket(request, services.config.limits, services.clock)
    with metrics.sockets.track_inprogress():
        await refuse(socket, metrics, error, refusal)
    return response


async def refuse(socket: Socket, metrics: ServeMetrics, error: AntiphonError, refusal: Refusal) -> None:
    """Send a protocol's message for an error, and close with its code."""
    messages, code = refusal(error)
    socket.send(messages)
    await socket.close(code, str(error))
    metrics.closed(socket.close_code)
