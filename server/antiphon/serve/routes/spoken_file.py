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
from antiphon.models.prompt import Prompt
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.answer import Answer
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import ELSEWHERE, refusal_of
from antiphon.serve.routes.voicing import Voicing

WAIT_S: Final = 100.0
"""How long a text waits for a row: as with Kyutai's server."""


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
    try:
        return await SpokenFile(services, model, request, caller, headers).speak(text, voice)
    except DrainingError as error:
        raise refusal_of(request, error) from error


class SpokenFile(Answer):
    """A text that is said, and answered with its sound."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: web.Request,
        caller: Caller,
        headers: Mapping[str, str],
    ) -> None:
        """Prepare to answer ``request``."""
        super().__init__(services, model, request, caller)
        self._headers = headers
        self._voicing = Voicing(model, services.clock)
        self._response: web.StreamResponse | None = None
        self._text = ""
        self._voice: Prompt | None = None

    @property
    def words(self) -> int:
        """Words that the model was given so far."""
        return self._voicing.words

    async def speak(self, text: str, voice: Prompt | None) -> web.StreamResponse:
        """The whole answer.

        Raises:
            AntiphonError: there is no session, or it, or the server, ended before the first sound.
        """
        self._text, self._voice = text, voice
        return await self.give()

    async def _answer(self) -> web.StreamResponse:
        pieces = self._voicing.check(self._text)  # all of it once, before a row is taken, and nothing is kept
        while await self._services.reading.step(pieces):
            pass
        wait_s = 0.0 if ELSEWHERE in self._request.headers else WAIT_S
        self._voicing.session = await self._submit(
            self._model.parameters(), wait_s=wait_s, prompt=self._voice, route="tts_streaming post"
        )
        return await self._say_all()

    async def _say_all(self) -> web.StreamResponse:
        """Say the text, which is read as there is room.

        A long text is 32,000 words. Python's cyclic collector stops the event loop while it walks those kept.
        """
        unread = self._voicing.put(self._text)
        while True:
            await self._read(unread)
            pieces = self._voicing.advance()
            audio = b"".join(s16le_from_float(it.clip(-1, 1)) for it in pieces if not isinstance(it, Spoken))
            is_done = self._voicing.is_done
            error = None if is_done else self._failure()
            if error is not None and self._response is None:
                raise error
            if error is not None:
                return self._cut(error)
            if audio or is_done:
                try:
                    await self._write(audio, is_last=is_done)
                except TimeoutError:
                    return self._cut(SessionFailedError("what was said was not taken"))
            if is_done:
                assert self._response is not None
                return self._response
            if not audio:
                await self._wait()

    async def _read(self, unread: Iterator[int]) -> None:
        while not self._voicing.is_ended and not self._voicing.is_full:
            if not await self._services.reading.step(unread):
                self._voicing.finish()

    async def _write(self, audio: bytes, *, is_last: bool) -> None:
        """Send what was said, and the end.

        Raises:
            TimeoutError: the peer takes nothing any more.
        """
        if self._response is None:
            self._response = web.StreamResponse(headers={"Content-Type": "audio/wav", **self._headers})
            await self._response.prepare(self._request)
            audio = streamed_header(self._model.checkpoint.spec.sample_rate) + audio
        async with asyncio.timeout(self._limits.liveness_timeout_s):
            await self._response.write(audio)
            if is_last:
                await self._response.write_eof()

    def _cut(self, error: AntiphonError) -> web.StreamResponse:
        """End an answer that is under way so that nobody takes it for a whole one."""
        assert self._response is not None
        kind = type(error).__name__
        self._provoked.warning("speech cut", of=f"cut {kind}", error=kind, reason=str(error))
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response
