"""A fake text model: a server of ``/chat/completions`` that streams a script, with faults.

Usage: python -m tests.support.text_model --port PORT    the same answer to everything
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "sk-none-of-anybodys-business"


def piece(content: str | None = None, **fields: Any) -> dict[str, Any]:
    """One event: text, or other fields of a delta."""
    delta = fields if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def ending(reason: str = "stop", tokens: tuple[int, int] | None = (11, 7)) -> list[dict[str, Any]]:
    """The last events."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    names = ("prompt_tokens", "completion_tokens")
    return (
        [last] if tokens is None else [last, {"choices": [], "usage": dict(zip(names, tokens, strict=True))}]
    )


def tool_call(name: str, arguments: str, *, call_id: str = "call_a", index: int = 0) -> list[dict[str, Any]]:
    """A tool call in pieces, its arguments two characters at a time."""
    first = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [arguments[at : at + 2] for at in range(0, len(arguments), 2)]
    return [piece(tool_calls=[first])] + [
        piece(tool_calls=[{"index": index, "function": {"arguments": part}}]) for part in parts
    ]


@dataclass(frozen=True)
class Answer:
    """What one request gets: ``events`` (a str goes as it is), then the end.

    ``stays``: after the events nothing more comes until the client leaves. ``is_cut``: the connection ends
    without the end. ``repeats``: the events come again and again. ``pause_s`` is before each of them.
    """

    events: Sequence[dict[str, Any] | str] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    stays: bool = False
    is_cut: bool = False
    repeats: bool = False
    pause_s: float = 0.0


def says(text: str) -> Answer:
    """A reply of these words, a word an event."""
    words = [word + " " for word in text.split()]
    return Answer([*map(piece, words), *ending(tokens=(11, len(words)))])


def calls(*tools: tuple[str, str]) -> Answer:
    """A reply that calls tools, each a name and arguments."""
    events = [
        event
        for index, (name, arguments) in enumerate(tools)
        for event in tool_call(name, arguments, call_id=f"call_{index}", index=index)
    ]
    return Answer([*events, *ending("tool_calls")])


@contextmanager
def unanswering() -> Iterator[str]:
    """The URL of a server whose queue of connections is full: who connects waits."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            queued = sockets.enter_context(socket.socket())
            queued.setblocking(False)
            queued.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


class TextModelServer:
    """The server. ``answers`` are used up in order, then ``usual``; ``requests`` are those that came.

    ``lists`` counts the questions for its models.
    """

    def __init__(self, *answers: Answer, usual: Answer | None = None) -> None:
        self.answers, self.usual = deque(answers), usual or says("I see.")
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.models: Sequence[str] = ("scripted",)
        self.running = self.lists = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.has_request = asyncio.Event()
        self.url = ""

    async def _models(self, _: web.Request) -> web.Response:
        self.lists += 1
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(request.headers)
        self.has_request.set()
        answer = self.answers.popleft() if self.answers else self.usual
        if answer.status != 200:
            return web.Response(status=answer.status, headers=answer.headers, text=f"no, not with {KEY}")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **answer.headers})
        self.running += 1
        self.is_idle.clear()
        try:
            await response.prepare(request)
            await self._stream(request, response, answer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.running -= 1
            if not self.running:
                self.is_idle.set()
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, answer: Answer) -> None:
        while True:
            for event in answer.events:
                text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
                await response.write(text.encode())
                await asyncio.sleep(answer.pause_s)
            if not answer.repeats:
                break
        if answer.stays:
            await asyncio.get_running_loop().create_future()  # the client's leaving cancels this
        if answer.is_cut:
            assert request.transport is not None
            request.transport.close()
            return
        await response.write(b"data: [DONE]\n\n")

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[TextModelServer]:
        """Serve on a port of this machine, by default a free one."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()


async def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description="Serve one answer to everything.")
    parser.add_argument("--port", type=int, required=True)
    async with TextModelServer(usual=says("hello nice to meet you")).serve(parser.parse_args().port):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main())
