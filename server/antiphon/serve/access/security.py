"""Checks the origin and the host of requests, and makes the security headers of the page."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from antiphon.config import ServerConfig

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def origin_allowed(origin: str | None, host: str | None, allowed: Sequence[str]) -> bool:
    """Whether a request with these ``Origin`` and ``Host`` headers may open a socket.

    A request without an origin is not from a browser and passes. An origin with the same host and port is the
    server's own page and passes (the scheme is not compared, since a proxy may terminate TLS). Any other
    origin passes only if it is in ``allowed``, where ``*`` stands for all. A browser sends ``null`` for files
    and sandboxed frames; that counts as an origin too.
    """
    if origin is None or is_listed(origin, allowed):
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # no browser sends this
        return False
    if host is None or not parts.netloc:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) == host.lower().removesuffix(default)


def is_listed(origin: str | None, allowed: Sequence[str]) -> bool:
    """Whether ``allowed`` contains ``origin`` or ``*``."""
    names = {entry.rstrip("/").lower() for entry in allowed}
    return origin is not None and ("*" in names or origin.rstrip("/").lower() in names)


def check_origin(request: web.Request, allowed: Sequence[str]) -> None:
    """Refuse a request from a foreign web page, before any upgrade.

    Pages of other sites can open WebSockets to the server from the visitor's network; only this check stops
    them. It affects browsers only: other clients send no Origin.

    Raises:
        web.HTTPForbidden: the origin is neither the server's nor allowed.
    """
    origin = request.headers.get("Origin")
    if not origin_allowed(origin, request.headers.get("Host"), allowed):
        raise web.HTTPForbidden(
            text=f"origin {origin!r} may not connect; its operator can allow it with --allow-origin\n"
        )


def host_allowed(host: str | None, allowed: Collection[str] | None) -> bool:
    """Whether a request may use this ``Host``; if ``allowed`` is None, every name is accepted.

    Addresses and ``localhost`` always pass: another site's page cannot be served under them. Any name can be
    registered and point to any address.
    """
    if allowed is None:
        return True
    match = _HOST.fullmatch(host or "")
    if match is None:
        return False
    name = match[1].lower().strip("[]").removesuffix(".")
    if name == "localhost" or name.endswith(".localhost") or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def allowed_hosts(config: ServerConfig, *, requires_keys: bool) -> frozenset[str] | None:
    """The names, apart from addresses, that requests may use as host; None for any.

    This protects against DNS rebinding, in which the address of a foreign name changes to the server's. DNS
    rebinding is a risk for servers that are protected only by their address: servers on this machine without
    keys. For other servers the host is checked only if ``allow_host`` is set.
    """
    is_local = config.host in ("localhost", "::1") or config.host.startswith("127.")
    if "*" in config.allow_host or not (config.allow_host or (is_local and not requires_keys)):
        return None
    origins = (urlsplit(origin).hostname for origin in config.allow_origin if "://" in origin)
    return frozenset(name.lower() for name in (config.host, *config.allow_host, *origins) if name)


def host_check(allowed: Collection[str] | None) -> Middleware:
    """A middleware that answers 421 to requests for foreign hosts."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host")
        if not host_allowed(host, allowed):
            raise web.HTTPMisdirectedRequest(
                text=f"this server is not {host!r}; its operator can add the name with --allow-host\n"
            )
        return await handler(request)

    return check


def workers_port(port: int, paths: Collection[str]) -> Middleware:
    """A middleware that answers 404 on the port for other workers, except for ``paths``."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = request.transport and request.transport.get_extra_info("sockname")
        if port and isinstance(name, tuple) and name[1] == port and request.path not in paths:
            raise web.HTTPNotFound(text=f"port {port} is for other workers; callers have another one\n")
        return await handler(request)

    return check


def page_headers(host: str | None) -> dict[str, str]:
    """The headers of every page and script: no content from other hosts, no frames, the microphone for this
    page only.

    ``host`` is the request's Host: WebSockets to it are listed by name, because older versions of Safari do
    not count them as ``'self'``. The two cross-origin headers let the page use shared memory with its audio
    worklet.
    """
    sockets = f" ws://{host} wss://{host}" if host is not None and _HOST.fullmatch(host) else ""
    return {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
            "img-src 'self'; media-src 'self' blob:; manifest-src 'self'; "
            f"connect-src 'self'{sockets}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Embedder-Policy": "require-corp",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }


METHODS: Final = "GET, HEAD, POST, DELETE"
MAX_AGE_S: Final = 600
"""Seconds for which a browser caches the permission to send a request."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
"""The headers that the answer to a preflight allows in a cross-origin request."""


def preflights(allowed: Sequence[str]) -> Middleware:
    """A middleware that answers preflights from ``allowed`` origins with the permitted methods and
    headers.
    """

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_asked = (
            request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        )
        if not is_asked or not is_listed(request.headers.get(hdrs.ORIGIN), allowed):
            return await handler(request)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_S),
        }
        names = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
        if _NAMES.fullmatch(names):
            headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = names
        return web.Response(status=204, headers=headers)

    return answer


def readable(allowed: Sequence[str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a function that adds the headers that let pages of the ``allowed`` origins read an answer."""

    async def allow(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if "*" not in allowed:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin is not None and is_listed(origin, allowed):
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = ", ".join(dict.fromkeys(response.headers))
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*" if "*" in allowed else origin

    return allow
