"""``POST /api/tts_streaming``: a text in, a WAV out, sent as it is spoken.

The WAV's header gives the largest length there is, since nobody knows it yet; players read to the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from aiohttp import web

from antiphon.audio.pcm import s16le_from_float
from antiphon.audio.wav import streamed_header
from antiphon.errors import AntiphonError, DrainingError, SessionFailedError
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import ELSEWHERE, refusal_of
from antiphon.serve.routes.voicing import Voicing

WAIT_S: Final = 100.0
"""How long a text waits for a row: as with Kyutai's server."""

LOOK_S: Final = 0.5
"""How often to look whether whoever asked is still there."""


async def handle_text(
    request: web.Request,
    services: Services,
    model: ServedModel,
    caller: Caller,
    text: str,
    voice: Prompt | None,
    *,
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """Speak one text; ``headers`` are further ones of the answer.

    Raises:
        ServerFullError: there is no row, and none became free in time.
        ProtocolError, SessionFailedError: before the first sound; after it the connection is cut.
    """
    spoken = SpokenFile(services, model, caller.name, headers)
    services.calls.add(spoken)
    try:
        await spoken.check(text)
        spoken.admit(voice, wait_s=0.0 if ELSEWHERE in request.headers else WAIT_S)
        return await spoken.speak(request, text)
    except DrainingError as error:
        raise refusal_of(request, error) from error
    finally:
        services.calls.discard(spoken)
        spoken.abandon()


class SpokenFile:
    """A text and its session of the engine: a conversation with one answer."""

    def __init__(
        self, services: Services, model: ServedModel, caller: str, headers: Mapping[str, str]
    ) -> None:
        """Prepare; :meth:`admit` gets it a session."""
        self._headers = headers
        facts = {"model": model.name, **({"key": caller} if caller else {})}
        self._log = services.log.bind(**facts)
        self._provoked = services.provoked.bind(**facts)
        self._limits = services.config.limits
        self._reading = services.reading
        self._model = model
        self._voicing = Voicing(model, services.clock)
        self._changed = asyncio.Event()
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._error: AntiphonError | None = None
        self._response: web.StreamResponse | None = None

    async def check(self, text: str) -> None:
        """Read the whole text once and keep nothing of it.

        Raises:
            ProtocolError: a word too long to be one.
        """
        pieces = self._voicing.check(text)
        while await self._reading.step(pieces):
            pass

    def admit(self, voice: Prompt | None, wait_s: float) -> None:
        """Ask the engine for a session: a row at once, or a place in the queue.

        Raises:
            ServerFullError, DrainingError: no row.
        """
        session = self._model.engine.submit(
            self._model.parameters(), wait_s=wait_s, notify=self._lane.wake, prompt=voice
        )
        self._voicing.session = session
        self._log.info("session opened", session=session.id, route="tts_streaming post")

    def announce_draining(self, deadline_s: float) -> None:
        """Nothing can be said but what is being said."""

    def end(self, error: AntiphonError | None = None) -> None:
        """Give up; the request is answered with the error, or cut."""
        self._error = self._error or error or DrainingError("the server is leaving")
        self._changed.set()

    async def closed(self) -> None:
        """Nothing to wait for: the server waits for its handlers itself."""

    def abandon(self) -> None:
        """Give everything back."""
        if self._voicing.session is not None:
            self._voicing.session.close()
        self._lane.close()

    async def speak(self, request: web.Request, text: str) -> web.StreamResponse:
        """The whole answer. The text is read as there is room.

        A long text is 32,000 words. Python's cyclic collector stops the event loop while it walks those kept.

        Raises:
            AntiphonError: the session, or the server, ended before the first sound.
        """
        unread = self._voicing.put(text)
        while True:
            await self._read(unread)
            pieces = self._voicing.advance()
            audio = b"".join(s16le_from_float(it.clip(-1, 1)) for it in pieces if not isinstance(it, Spoken))
            is_done = self._voicing.is_done
            error = None if is_done else self._failure(request)
            if error is not None and self._response is None:
                raise error
            if error is not None:
                return self._cut(request, error)
            if audio or is_done:
                try:
                    await self._write(request, audio, is_last=is_done)
                except TimeoutError:
                    return self._cut(request, SessionFailedError("what was said was not taken"))
            if is_done:
                assert self._response is not None
                return self._response
            if not audio:
                await self._wait()

    async def _read(self, unread: Iterator[int]) -> None:
        while not self._voicing.is_ended and not self._voicing.is_full:
            if not await self._reading.step(unread):
                self._voicing.finish()

    async def _write(self, request: web.Request, audio: bytes, *, is_last: bool) -> None:
        """Send what was said, and the end.

        Raises:
            TimeoutError: the peer takes nothing any more.
        """
        if self._response is None:
            self._response = web.StreamResponse(headers={"Content-Type": "audio/wav", **self._headers})
            await self._response.prepare(request)
            audio = streamed_header(self._model.checkpoint.spec.sample_rate) + audio
        async with asyncio.timeout(self._limits.liveness_timeout_s):
            await self._response.write(audio)
            if is_last:
                await self._response.write_eof()

    def _failure(self, request: web.Request) -> AntiphonError | None:
        session = self._voicing.session
        assert session is not None
        if self._error is not None:
            return self._error
        if session.state is SessionState.CLOSED:
            return session.error or SessionFailedError("the session ended before its text did")
        if request.transport is None or request.transport.is_closing():
            return SessionFailedError("whoever sent this text has left")
        return None

    def _cut(self, request: web.Request, error: AntiphonError) -> web.StreamResponse:
        """End an answer that is under way so that nobody takes it for a whole one."""
        assert self._response is not None
        kind = type(error).__name__
        self._provoked.warning("speech cut", of=f"cut {kind}", error=kind, reason=str(error))
        if request.transport is not None:
            request.transport.abort()
        return self._response

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

    def _fail(self, error: Exception) -> None:
        self.end(SessionFailedError(f"the server could not go on: {type(error).__name__}"))
