"""A POST as a transport: its body is received as messages, and sent messages are the body of the response."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from aiohttp import web

from antiphon.errors import AntiphonError, SessionFailedError
from antiphon.limits import Limits
from antiphon.protocol.close_codes import CloseCode
from antiphon.serve.transport.transport import M, Message, T, Taker

LOOK_S: Final = 0.5
"""Seconds between checks that the client of a POST is still connected."""


class HttpBody:
    """The transport of one POST request: its complete body, and the response; used on the event loop only.

    The response begins with the first message; an earlier error is sent as a status. A later error cuts the
    connection, so that the client does not take the response for complete, unless the body reports errors at
    its end (``reports_errors``).
    """

    close_code: int | None = None
    was_cut = False

    def __init__(
        self,
        request: web.Request,
        limits: Limits,
        clock: Callable[[], float],
        messages: AsyncIterator[Message],
        headers: Mapping[str, str],
        *,
        is_whole: bool = False,
        reports_errors: bool = False,
    ) -> None:
        """Answer with ``headers``; a response that ``is_whole`` is sent once it is complete."""
        self._request, self._limits, self._clock = request, limits, clock
        self._messages, self._headers = messages, headers
        self._is_whole, self._tells_errors = is_whole, reports_errors
        self.seen_s = clock()
        self._unsent: list[bytes] = []
        self._has_news, self._is_drained, self._is_over = (asyncio.Event() for _ in range(3))
        self._writer: asyncio.Task[None] | None = None
        self._response: web.StreamResponse | None = None

    def answer(self, error: AntiphonError | None) -> web.StreamResponse:
        """The result of the request's handler; ``error`` is the error that ended the call.

        Raises:
            AntiphonError: the error, if nothing was sent before it.
        """
        if self._response is None:
            raise error or SessionFailedError("the client has disconnected")
        return self._response

    @property
    def has_ended(self) -> bool:
        transport = self._request.transport
        return self._is_over.is_set() or transport is None or transport.is_closing()

    async def receive_any(self) -> Message | None:
        message = await anext(self._messages, None)
        while message is None and not self.has_ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_over.wait()
        return None if self.has_ended else message

    def timed(self, work: Callable[[M], T], message: M) -> T:
        return work(message)

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        return nullcontext()

    async def wait_for(self, room: asyncio.Event) -> None:
        while not (room.is_set() or self.has_ended):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await room.wait()

    def send(self, messages: Sequence[Message]) -> None:
        data = b"".join(it if isinstance(it, bytes) else it.encode() for it in messages)
        if data and not self.has_ended:
            self._unsent.append(data)
            self._is_drained.clear()
            self._has_news.set()
            if self._writer is None and not self._is_whole:
                self._writer = asyncio.get_running_loop().create_task(self._write_on())

    def is_congested(self) -> bool:
        return self.has_unsent

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) and not self._is_whole

    def stalled_s(self, since_s: float) -> float:
        return 0.0

    def silent_s(self) -> float:
        return 0.0

    def ping(self) -> None:
        """No effect: HTTP has no pings."""

    def cut(self) -> None:
        self._is_over.set()
        if self._request.transport is not None:
            self._request.transport.abort()

    async def close(self, code: int, reason: str) -> None:
        """End the response: normally if the code means a normal end; otherwise report the error or cut the
        connection.
        """
        is_done = code == CloseCode.NORMAL
        if self._is_whole and is_done:
            self._response = web.Response(body=b"".join(self._unsent), headers=dict(self._headers))
        elif self._response is not None or self._writer is not None:
            try:
                async with asyncio.timeout(self._limits.liveness_timeout_s):
                    await self._end(is_whole=is_done or self._tells_errors)
            except (TimeoutError, ConnectionError):
                self.cut()
        self._is_over.set()

    async def stop(self) -> None:
        """Send nothing more, because the call is over or the client has disconnected."""
        self._is_over.set()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])

    async def _end(self, *, is_whole: bool) -> None:
        if is_whole and not self.has_ended:
            await self._is_drained.wait()
        if self._writer is not None:
            self._writer.cancel()
        if is_whole and self._response is not None:
            await self._response.write_eof()
        else:
            self.cut()

    async def _write_on(self) -> None:
        """Send queued bytes as fast as the client reads."""
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            response: Any = web.StreamResponse(headers=dict(self._headers))
            self._response = response
            await response.prepare(self._request)
            while not self.has_ended:
                await self._has_news.wait()
                self._has_news.clear()
                while self._unsent:
                    await response.write(self._unsent[0])
                    del self._unsent[0]
                self._is_drained.set()
