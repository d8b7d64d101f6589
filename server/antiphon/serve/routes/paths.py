"""Handles nearly valid paths: a path that differs only in slashes is answered, others get a suggestion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from antiphon.serve.routes.openai_errors import is_openai

API: Final = "/v1"
MAX_SEGMENTS: Final = 16
"""Maximum number of segments of a path that are examined; the server's longest path has less than half."""

_SLASHES: Final = re.compile(r"/{2,}")


@web.middleware
async def near_paths(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a path with doubled or trailing slashes like the path without them, and an unknown path with a
    message.
    """
    path = cleaned(request.path)
    if path != request.path and is_served(request.app, path):
        request = request.clone(rel_url=request.rel_url.with_path(path, keep_query=True))
        match = await request.app.router.resolve(request)
        match.add_app(request.app)
        match.freeze()
        request._match_info = match
        handler = match.handler
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        if is_served(request.app, request.path):
            raise
        near = next((it for it in near_to(path) if is_served(request.app, it)), None)
        hint = f"; did you mean {near}?" if near else ""
        words = f"there is no route for {request.method} {request.path[:100]}{hint}"
        if is_openai(request):
            raise web.HTTPNotFound(text=f"{words}\n") from None
        text = json.dumps({"error": words}) + "\n"
        raise web.HTTPNotFound(text=text, content_type="application/json") from None


def is_served(app: web.Application, path: str) -> bool:
    """Whether a route answers a path, for any method; the page's files do not count."""
    for resource in app.router.resources():
        info = resource.get_info()
        if info.get("path") == path:
            return True
        if "pattern" in info and resource.canonical != "/{path}" and info["pattern"].fullmatch(path):
            return True
    return False


def cleaned(path: str) -> str:
    """A path without doubled and trailing slashes."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def near_to(path: str) -> Iterator[str]:
    """Paths that a client may have meant by ``path``, if the client's base address is too long or too short.

    Paths of a model that ``path`` names come first.
    """
    segments = path.split("/")[1 : MAX_SEGMENTS + 1]
    model = "/" + "/".join(segments[:2]) if segments[0] == "m" else ""
    for start in range(len(segments)):
        rest = "/" + "/".join(segments[start:])
        for base in (model, model + API, "", API):
            yield base + rest
