"""Forwards a text model's requests and answers, and records the time of each."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp import web

_TEXT: Final = re.compile(rb'"content":\s*"[^"]')


@dataclass
class TappedRequest:
    """A request to the text model: when it arrived, its messages, and when the first text of its answer was
    forwarded."""

    asked_s: float
    messages: list[dict[str, Any]]
    text_s: float = math.nan

    @property
    def said(self) -> list[str]:
        """The agent's messages in the request."""
        return [it["content"] for it in self.messages if it["role"] == "assistant" and it["content"]]


class TextTap:
    """A proxy to the text model at ``upstream``; ``requests`` are stored by their first message, which names
    the caller."""

    def __init__(self, upstream: str) -> None:
        """Prepare for a text model whose URL ends with /v1."""
        self.requests: dict[str, list[TappedRequest]] = defaultdict(list)
        self.url = ""
        self._upstream = upstream
        self._http: aiohttp.ClientSession

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run the proxy; yields the URL that replaces the text model's."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._http:
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            finally:
                await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        async with self._http.get(f"{self._upstream}/models") as found:
            return web.Response(status=found.status, body=await found.read(), content_type=found.content_type)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked_s, body = time.monotonic(), await request.json()
        tapped = TappedRequest(asked_s, body["messages"])
        self.requests[body["messages"][0]["content"]].append(tapped)
        async with self._http.post(f"{self._upstream}/chat/completions", json=body) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                async for piece in answer.content.iter_any():
                    if math.isnan(tapped.text_s) and _TEXT.search(piece):
                        tapped.text_s = time.monotonic()
                    await response.write(piece)
        return response
