"""A conversation that is one answer to a POST, until it is whole."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from antiphon.errors import AntiphonError, DrainingError, SessionFailedError
from antiphon.ipc.values import SessionState
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.conversation import Conversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services

LOOK_S: Final = 0.5
"""How often to check that the client of a POST is still connected."""


class Answer(Conversation):
    """A conversation with one answer, to a POST."""

    def __init__(self, services: Services, model: ServedModel, request: web.Request, caller: Caller) -> None:
        """Prepare to answer ``request``."""
        super().__init__(services, model, caller=caller)
        self._request = request
        self._changed = asyncio.Event()
        self._error: AntiphonError | None = None
        self._headers: Mapping[str, str] = {}
        self._response: web.StreamResponse | None = None

    async def give(self) -> web.StreamResponse:
        """The whole answer.

        Raises:
            AntiphonError, web.HTTPException: there is none.
        """
        self._services.calls.add(self)
        try:
            return await self._answer()
        finally:
            self._services.calls.discard(self)
            seconds = round(self._clock() - self._opened_s, 1)
            self._log.info("session closed", seconds=seconds)
            self.abandon()

    def end(self, error: AntiphonError | None = None) -> None:
        """Give up; the request is answered with the error, or its answer is cut."""
        self._error = self._error or error or DrainingError("the server is leaving")
        self._changed.set()

    @abstractmethod
    async def _answer(self) -> web.StreamResponse:
        """Make the answer; see :meth:`give`."""

    def _failure(self) -> AntiphonError | None:
        """Why there is nothing more to wait for, if there is not."""
        session = self._session
        if self._error is not None:
            return self._error
        if session is not None and session.state is SessionState.CLOSED:
            return session.error or SessionFailedError("the session ended before its request did")
        if self._request.transport is None or self._request.transport.is_closing():
            return SessionFailedError("the client has disconnected")
        return None

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a piece of an answer that is sent as it is made, or its end.

        The first piece sends ``_headers``. Other callers have a turn after each, however much is ready.

        Raises:
            TimeoutError: the peer takes nothing any more.
        """
        if not (data or is_last):
            return
        if self._response is None:
            self._response = web.StreamResponse(headers=self._headers)
            await self._response.prepare(self._request)
        async with asyncio.timeout(self._limits.liveness_timeout_s):
            if data:
                await self._response.write(data)
            if is_last:
                await self._response.write_eof()
        await asyncio.sleep(0)

    def _cut(self, error: AntiphonError) -> web.StreamResponse:
        """End an answer that is under way so that its client does not take it for a whole one."""
        assert self._response is not None
        self._log_cut(error)
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response

    async def _end_with(self, event: bytes, error: AntiphonError) -> web.StreamResponse:
        """End a stream of events with one that says why."""
        assert self._response is not None
        try:
            await self._write(event, is_last=True)
        except TimeoutError:
            return self._cut(error)
        self._log_cut(error)
        return self._response

    def _log_cut(self, error: AntiphonError) -> None:
        kind = type(error).__name__
        self._provoked.warning("answer cut", of=f"cut {kind}", error=kind, reason=str(error))

    async def _wait(self) -> None:
        """Until the engine or the server tells of a change, or it is time to look at the peer again."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _turn(self) -> bool:
        self._changed.set()
        return False
