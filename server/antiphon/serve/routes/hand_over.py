"""Requests between workers: to accept a call, and to drain. They are signed, and sent over TLS or on this
machine."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from antiphon.errors import (
    AntiphonError,
    ConfigError,
    DrainingError,
    HandOverError,
    ProtocolError,
    ServerFullError,
    SessionFailedError,
)
from antiphon.models.spec import LIVE_KINDS
from antiphon.protocol.payload import decode_object
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.other_worker import CALLS_PATH, DRAIN_PATH, check_target, is_loopback
from antiphon.serve.access.shared_secret import HEADER, TAG_BYTES, SharedSecret
from antiphon.serve.hosting.hand_over_plan import identity_of
from antiphon.serve.hosting.services import SERVICES, Services

MAX_DRAIN_BYTES = 4096
"""Maximum bytes of a drain request, whose body is an address."""

Answer = Callable[[web.Request, Services, SharedSecret], Awaitable[dict[str, Any]]]


def add_hand_over(app: web.Application, secret: SharedSecret) -> None:
    """Register the routes; only a server with a secret has them."""
    for method, path, answer in (
        ("GET", CALLS_PATH, report_facts),
        ("POST", CALLS_PATH, take_call),
        ("POST", DRAIN_PATH, begin_drain),
    ):
        add_signed(app, secret, method, path, answer)


def add_signed(app: web.Application, secret: SharedSecret, method: str, path: str, answer: Answer) -> None:
    """Register a route for workers with the secret."""
    app.router.add_route(method, path, _guarded(secret, answer))


def _guarded(secret: SharedSecret, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        services = request.app[SERVICES]
        try:
            _check(request, secret, services.config.worker)
            await services.access.client.take_request(request.headers[HEADER])
            said = await answer(request, services, secret)
        except AntiphonError as error:
            services.provoked.warning(
                "hand-over refused", of="hand-over", path=request.path, reason=str(error)
            )
            return web.json_response({"error": str(error)}, status=wire_form(error).worker_status)
        return web.json_response(said)

    return handle


def _check(request: web.Request, secret: SharedSecret, worker: str) -> None:
    peer = request.transport and request.transport.get_extra_info("peername")
    if not request.secure and not (isinstance(peer, tuple) and is_loopback(peer[0])):
        raise HandOverError("use TLS, or a request from this machine")
    length = (request.content_length or 0) - TAG_BYTES
    header, now_s = request.headers.get(HEADER, ""), time.time()
    secret.check(header, request.method, request.raw_path, length, now_s, worker=worker)


async def report_facts(_request: web.Request, services: Services, _secret: SharedSecret) -> dict[str, Any]:
    """The name of this worker, and the identity of the calls that each of its models accepts."""
    models = {
        model.name: asdict(identity_of(model.checkpoint, model.engine.info))
        for model in services.models
        if model.kind.is_live
    }
    return {"worker": services.config.worker, "models": models}


async def begin_drain(request: web.Request, services: Services, secret: SharedSecret) -> dict[str, Any]:
    """Drain the server, or one engine; calls move to the target, which for one engine may be this worker."""
    body = await read_body(request, secret, MAX_DRAIN_BYTES, services.config.limits.hand_over_timeout_s)
    try:
        asked = decode_object(body, "the body")
        target, engine = str(asked["target"]), str(asked.get("engine", ""))
    except (ProtocolError, KeyError) as error:
        raise ConfigError('the body is not {"target": "https://HOST:PORT"}') from error
    check_target(target)
    devices = [device for device in services.config.devices if device]
    if engine and (engine not in devices or len(devices) < 2):
        raise ConfigError(f"no engine of its own has the device {engine!r}; there are: {', '.join(devices)}")
    if not engine and urlsplit(target).netloc == request.host:
        raise ConfigError(
            f"{target} is this worker, which shuts down; name the worker that its calls move to"
        )
    if any(model.engine.health().draining for model in services.models):
        raise DrainingError(
            "this worker is shutting down already: the request that began it determines where its calls go"
        )
    services.log.info("drain requested", target=target, engine=engine)
    services.begin_drain(target, engine)
    return {"worker": services.config.worker}


async def take_call(request: web.Request, services: Services, secret: SharedSecret) -> dict[str, Any]:
    """Accept a call from another worker; its client can resume it after the response."""
    limits = services.config.limits
    model = services.models.find(request.query.get("model"), LIVE_KINDS)
    if services.arrivals >= limits.max_hand_overs:
        raise ServerFullError(
            f"{services.arrivals} calls are arriving, which is the limit (max_hand_overs)", retry_after_s=1
        )
    services.arrivals += 1
    try:
        call = await read_body(request, secret, model.engine.call_bytes, limits.hand_over_timeout_s)
        async with asyncio.timeout(limits.hand_over_timeout_s):
            await model.engine.take_call(call)
    except TimeoutError:
        raise SessionFailedError(f"the call did not arrive within {limits.hand_over_timeout_s:g} s") from None
    finally:
        services.arrivals -= 1
    return {"worker": services.config.worker}


async def read_body(request: web.Request, secret: SharedSecret, limit: int, timeout_s: float) -> bytes:
    """Read a request's body, check its tag, and return the body without the tag.

    Raises:
        HandOverError: the body is too long, too slow, incomplete, or has a wrong signature.
    """
    length = (request.content_length or 0) - TAG_BYTES
    if not 0 <= length <= limit:
        raise HandOverError(f"a body of {length} bytes, the limit is {limit}")
    tag, body = secret.tag(request.headers[HEADER]), bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > length + TAG_BYTES:
                    break
    except TimeoutError:
        raise HandOverError(f"{len(body)} of {length} bytes came within {timeout_s:g} s") from None
    if len(body) != length + TAG_BYTES:
        raise HandOverError(f"{len(body) - TAG_BYTES} bytes came, of {length}")
    return await asyncio.get_running_loop().run_in_executor(None, _signed, body, tag)


def _signed(body: bytearray, tag: hmac.HMAC) -> bytes:
    """A body without its tag, checked and copied outside of the event loop: it can have a gigabyte."""
    with memoryview(body) as whole:
        tag.update(whole[:-TAG_BYTES])
        if not hmac.compare_digest(tag.digest(), whole[-TAG_BYTES:]):
            raise HandOverError("the body does not match its signature")
        return bytes(whole[:-TAG_BYTES])
