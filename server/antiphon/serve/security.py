"""Who may connect, and the headers that keep our page to itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def origin_allowed(origin: str | None, host: str | None, allowed: Sequence[str]) -> bool:
    """Whether a request with these ``Origin`` and ``Host`` headers may open a socket.

    No origin: not a browser, passes. The same host and port: our own page, passes (the scheme is not
    compared, since a proxy may end TLS before us). Anything else only when it is in ``allowed``, where
    ``*`` stands for all. A browser sends ``null`` for files and sandboxed frames; that is an origin too.
    """
    if origin is None or "*" in allowed:
        return True
    if origin.rstrip("/").lower() in {entry.rstrip("/").lower() for entry in allowed}:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # no browser sends such a thing
        return False
    if host is None or not parts.netloc:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) == host.lower().removesuffix(default)


def check_origin(request: web.Request, allowed: Sequence[str]) -> None:
    """Refuse a request from a foreign web page, before any upgrade.

    Other sites' pages can open WebSockets to us with the visitor's network position; this is the only
    thing that stops them. It concerns browsers alone: other clients send no Origin.

    Raises:
        web.HTTPForbidden: the origin is neither ours nor allowed.
    """
    origin = request.headers.get("Origin")
    if not origin_allowed(origin, request.headers.get("Host"), allowed):
        raise web.HTTPForbidden(
            text=f"origin {origin!r} may not connect; its operator can allow it with --allow-origin\n"
        )


def page_headers(host: str | None) -> dict[str, str]:
    """The headers of every page and script: nothing from elsewhere, no frames, the microphone for us.

    ``host`` is the request's Host: WebSockets to it are named one by one, since older Safari does not count
    them under ``'self'``. The two cross-origin headers let the page use shared memory with its audio worklet.
    """
    sockets = f" ws://{host} wss://{host}" if host is not None and _HOST.fullmatch(host) else ""
    return {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
            "img-src 'self' data:; font-src 'self'; media-src 'self' blob:; manifest-src 'self'; "
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
