"""The client of text models: it streams replies from ``/chat/completions`` endpoints, with fallbacks.

It follows no redirects and uses no proxy of the environment. Errors name an endpoint's host and a status,
never its server's text, which may quote a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from antiphon.agent.chat_stream import ChatStream, Piece, TokensUsed
from antiphon.errors import TextModelError

CONNECT_S: Final = 2.0
FIRST_S: Final = 8.0
NEXT_S: Final = 8.0
"""Timeout in seconds for the connection, for the first piece of a reply, and between two pieces."""

THINK_S: Final = 30.0
"""Timeout in seconds between two pieces while other events arrive, such as the model's reasoning."""

TRIES: Final = 2
"""Number of attempts per endpoint, before any part of a reply has arrived."""

CHECK_S: Final = 2.0
"""Timeout in seconds of an availability check, and seconds for which its result is used."""

FEED_BYTES: Final = 4096
"""Maximum number of bytes of a stream that are parsed at once; this takes a millisecond."""

MAX_LIST_BYTES: Final = 1_048_576
"""Maximum number of bytes of an endpoint's list of models."""

MAX_NAMED_CHARS: Final = 100
"""Maximum number of characters of a model's name in an error."""

REFUSES: Final = frozenset({429, 503})
"""HTTP statuses of a full server. The client does not retry it at once, nor within its ``Retry-After``."""

MAX_RETRY_AFTER_S: Final = 60
"""Maximum number of seconds of a ``Retry-After``; a longer one is reduced to this."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint of a text model. If ``model`` is None, the server's only model is used. ``key_env`` names
    the environment variable with the key.
    """

    url: str
    model: str | None = None
    key_env: str | None = None

    @property
    def host(self) -> str:
        """The host and port of the URL, for errors and logs."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers of a request: the key, if there is one."""
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A request to a text model; ``tools`` and ``tool_choice`` have the format of its API."""

    messages: Sequence[Mapping[str, Any]]
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    def body(self, model: str) -> dict[str, Any]:
        """The JSON body of the request, for the model called ``model``."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(self.messages),
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.tools:
            body["tools"] = list(self.tools)
            optional = {"tool_choice": self.tool_choice, "parallel_tool_calls": self.parallel_tool_calls}
            body |= {name: value for name, value in optional.items() if value is not None}
        return body


@dataclass(frozen=True, slots=True)
class TextModelTimeouts:
    """Timeouts of a text model, in seconds."""

    connect_s: float = CONNECT_S
    first_s: float = FIRST_S
    next_s: float = NEXT_S
    reasoning_s: float = THINK_S


@dataclass(slots=True)
class TextModel:
    """Text models in the order in which they are tried; ``running`` counts replies in progress."""

    endpoints: Sequence[Endpoint]
    patience: TextModelTimeouts = field(default_factory=TextModelTimeouts)
    running: int = 0
    _session: aiohttp.ClientSession | None = None
    _names: dict[str, str] = field(default_factory=dict)
    _check: asyncio.Task[bool] | None = None
    _checked_s: float = 0.0
    _full_until_s: dict[str, float] = field(default_factory=dict)  # of endpoints by URL, on the loop's clock

    async def reply(self, request: TextRequest) -> AsyncGenerator[Piece]:
        """The pieces of a reply, from the first endpoint that begins one.

        Raises:
            TextModelError: no endpoint begins a reply (the last endpoint's error), or the reply fails.
        """
        self.running += 1
        try:
            failure: TextModelError | None = None
            for endpoint in self.endpoints:
                full_s = self._full_until_s.get(endpoint.url, 0.0) - asyncio.get_running_loop().time()
                if full_s > 0:
                    words = f"{endpoint.host} is full for {full_s:.0f} s more, as it said"
                    failure = TextModelError(words, retry_after_s=math.ceil(full_s))
                    continue
                for _ in range(TRIES):
                    has_begun = False
                    try:
                        async with contextlib.aclosing(self._ask(endpoint, request)) as pieces:
                            async for piece in pieces:
                                has_begun = True
                                yield piece
                        return
                    except TextModelError as error:
                        if has_begun:
                            raise
                        failure = error
                        if error.retry_after_s is not None:
                            until_s = asyncio.get_running_loop().time() + error.retry_after_s
                            self._full_until_s[endpoint.url] = until_s
                        if not error.may_pass:
                            break
            raise failure or TextModelError("no text model is configured")
        finally:
            self.running -= 1

    async def models(self, endpoint: Endpoint) -> list[str]:
        """The names of an endpoint's models.

        Raises:
            TextModelError: the endpoint does not list them.
        """
        limit_s = self.patience.first_s
        try:
            async with asyncio.timeout(limit_s), self._request("GET", endpoint, "models") as response:
                _check(endpoint, response)
                data = b""
                while len(data) < MAX_LIST_BYTES and not response.content.at_eof():
                    data += await response.content.read(MAX_LIST_BYTES - len(data))
            return [str(it["id"]) for it in json.loads(data)["data"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TextModelError(f"{endpoint.host} has no list of models at /models") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _gone(endpoint, error, f"listed its models within {limit_s:g} s") from error

    async def is_up(self) -> bool:
        """Whether at least one endpoint is available; all callers share one check per ``CHECK_S`` seconds."""
        now_s = asyncio.get_running_loop().time()
        if self._check is None or (self._check.done() and now_s - self._checked_s >= CHECK_S):
            self._check, self._checked_s = asyncio.create_task(self._is_there()), now_s
        return await asyncio.shield(self._check)

    async def _is_there(self) -> bool:
        for endpoint in self.endpoints:
            try:
                async with asyncio.timeout(CHECK_S):
                    await self.models(endpoint)
            except (TextModelError, TimeoutError):
                continue
            return True
        return False

    async def close(self) -> None:
        """Close all connections."""
        if self._check is not None:
            self._check.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def name(self, endpoint: Endpoint) -> str:
        """The name of an endpoint's model: the configured one, or the only one.

        Raises:
            TextModelError: the endpoint lists several models, or none.
        """
        if endpoint.model is not None:
            return endpoint.model
        if endpoint.url not in self._names:
            names = await self.models(endpoint)
            if len(names) != 1:
                listed = ", ".join(name[:MAX_NAMED_CHARS] for name in names[:8]) or "none"
                raise TextModelError(
                    f"{endpoint.host} has {len(names)} models, set llm_model to one of them: {listed}"
                )
            self._names[endpoint.url] = names[0]
        return self._names[endpoint.url]

    async def _ask(self, endpoint: Endpoint, request: TextRequest) -> AsyncGenerator[Piece]:
        stream, limit_s = ChatStream(), self.patience.first_s
        what, clock = "begun a reply", asyncio.get_running_loop().time
        within_s, latest_s = limit_s, clock() + self.patience.reasoning_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                body = request.body(await self.name(endpoint))
                async with self._request("POST", endpoint, "chat/completions", json=body) as response:
                    _check(endpoint, response)
                    if response.content_type != "text/event-stream":
                        raise TextModelError(f"{endpoint.host} answered without server-sent events")
                    async for data in response.content.iter_chunked(FEED_BYTES):
                        before = stream.events
                        if pieces := stream.feed(data):
                            limit_s, what = self.patience.next_s, "continued its reply"
                            limit.reschedule(None)  # the time spent on a piece does not count
                            for piece in pieces:
                                yield piece
                            if any(not isinstance(it, TokensUsed) for it in pieces):
                                latest_s = clock() + self.patience.reasoning_s
                        if stream.is_done:
                            return
                        if stream.events > before:
                            until_s = min(clock() + limit_s, latest_s)
                            within_s = limit_s if until_s < latest_s else self.patience.reasoning_s
                            limit.reschedule(until_s)
                        await asyncio.sleep(0)  # all of a reply may have arrived at once: let others run
                    stream.finish()
        except (aiohttp.ClientError, OSError) as error:
            raise _gone(endpoint, error, f"{what} within {within_s:g} s") from error

    def _request(self, method: str, endpoint: Endpoint, path: str, **options: Any) -> Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)  # calls are limited elsewhere
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._session.request(
            method,
            f"{endpoint.url.rstrip('/')}/{path}",
            headers=endpoint.headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=self.patience.connect_s),
            **options,
        )


def _check(endpoint: Endpoint, response: aiohttp.ClientResponse) -> None:
    """Check that a server has answered as required.

    Raises:
        TextModelError: it has not.
    """
    status = response.status
    if status == 200:
        return
    words = {429: "has had too many requests", 503: "is full"}.get(status, "refuses the request")
    if 300 <= status < 400:
        words = "redirects, which is not followed"
    wait = response.headers.get("Retry-After", "")[:9] if status in REFUSES else ""
    raise TextModelError(
        f"{endpoint.host} {words}: status {status}",
        may_pass=status >= 500 and status not in REFUSES,
        retry_after_s=min(int(wait), MAX_RETRY_AFTER_S) if wait.isascii() and wait.isdigit() else None,
    )


def _gone(endpoint: Endpoint, error: Exception, what: str) -> TextModelError:
    """The error for a server that is unavailable, has disconnected, or has not done ``what`` in time."""
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
        return TextModelError(f"{endpoint.host} has not {what}", may_pass=True)
    return TextModelError(
        f"{endpoint.host} cannot be reached, or closed the connection: {type(error).__name__}", may_pass=True
    )
