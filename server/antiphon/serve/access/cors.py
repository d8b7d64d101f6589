"""Reading across origins (Fetch, CORS): pages of the allowed origins read answers and errors of this server.

Keys go in headers, so no answer allows credentials, and "*" may stand for any origin.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from antiphon.serve.access.security import is_listed

METHODS: Final = "GET, HEAD, POST"
MAX_AGE_S: Final = 600
"""How long a browser remembers that it may send a request."""

_NAMES: Final = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
"""Names of headers that a request may have: all that are asked for."""


def preflights(allowed: Sequence[str]) -> Middleware:
    """A middleware that tells browsers which requests pages of the ``allowed`` origins may send."""

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
    """What lets pages of the ``allowed`` origins read an answer that is about to be sent, and its headers."""

    async def allow(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if "*" not in allowed:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin is not None and is_listed(origin, allowed):
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = ", ".join(dict.fromkeys(response.headers))
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*" if "*" in allowed else origin

    return allow
