"""A text in, its speech out, sent as it is spoken: ``POST /api/tts_streaming`` and ``/v1/audio/speech``.

A WAV's header gives the largest length there is, since it is not known yet; players read to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from aiohttp import web

from antiphon.errors import AntiphonError, FieldError, SessionFailedError, SessionTimeoutError
from antiphon.models.prompt import Prompt
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.answer import Answer
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.routing import post_wait_s
from antiphon.serve.routes.speech_body import SpeechBody
from antiphon.serve.routes.tts_stream import TtsStream
from antiphon.serve.transport.liveness import LivenessRules


async def handle_text(
    request: web.Request,
    services: Services,
    model: ServedModel,
    caller: Caller,
    text: str,
    voice: Prompt | None,
    body: SpeechBody,
    *,
    headers: Mapping[str, str],
    may_be_empty: bool,
) -> web.StreamResponse:
    """Speak one text; ``headers`` are those of the answer. A text without words is an empty file, or refused.

    Raises:
        FieldError: it has no words, and may not be empty.
        ServerFullError, DrainingError: there is no row, and none became free in time.
        ProtocolError, SessionFailedError: before the first sound; after it the connection is cut.
    """
    with closing(body):
        spoken = TtsFile(services, model, request, caller, body, headers, may_be_empty=may_be_empty)
        return await spoken.speak(text, voice)


class TtsFile(Answer):
    """A text that is said, and answered with its sound."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: web.Request,
        caller: Caller,
        body: SpeechBody,
        headers: Mapping[str, str],
        *,
        may_be_empty: bool,
    ) -> None:
        """Prepare to answer ``request``."""
        super().__init__(services, model, request, caller)
        self._body, self._may_be_empty = body, may_be_empty
        self._headers = {"Content-Type": body.content_type, **headers}
        self._voicing = TtsStream(model, services.clock)
        self._pace = LivenessRules(self._limits, "reading of the speech")
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
        self._pace.begin(self._clock(), has_spoken=True)
        return await self.give()

    async def _answer(self) -> web.StreamResponse:
        pieces = self._voicing.check(self._text)  # all of it once, before a row is taken, and nothing is kept
        while await self._services.reading.step(pieces):
            pass
        if not (self._voicing.has_text or self._may_be_empty):
            raise FieldError("input has no words", param="input", code=INVALID_VALUE)
        wait_s = post_wait_s(self._request, self._limits)
        self._voicing.session = await self._submit(
            self._model.parameters(), wait_s=wait_s, prompt=self._voice, route="text post"
        )
        return await self._say_all()

    async def _say_all(self) -> web.StreamResponse:
        """Say the text, which is read as there is room.

        A long text is 32,000 words. Python's cyclic collector stops the event loop while it walks those kept.
        """
        unread = self._voicing.put(self._text)
        while True:
            await self._read(unread)
            pieces = [it for it in self._voicing.advance() if not isinstance(it, Spoken)]
            is_done = self._voicing.is_done
            error = None if is_done else self._failure()
            if error is not None:
                return await self._fail_with(error)
            try:
                for pcm in pieces:
                    await self._write(self._body.feed(pcm))
                    self._count(pcm.size)
                if is_done:
                    await self._write(self._body.finish(self.words, self._voicing.frames), is_last=True)
            except TimeoutError:
                return self._cut(SessionFailedError("what was said was not taken"))
            except SessionTimeoutError as slow:
                return self._cut(slow)
            except SessionFailedError as broken:
                return await self._fail_with(broken)
            if is_done:
                assert self._response is not None
                return self._response
            if not pieces:
                await self._wait()
                self._pace.excuse(self._clock())

    def _count(self, samples: int) -> None:
        """So much was written.

        Raises:
            SessionTimeoutError: the peer reads too slowly to keep its row.
        """
        now_s, seconds = self._clock(), samples / self._model.checkpoint.spec.sample_rate
        self._pace.heard(now_s, seconds)
        self._pace.check(now_s, 0.0)

    async def _read(self, unread: Iterator[int]) -> None:
        while not self._voicing.is_ended and not self._voicing.is_full:
            if not await self._services.reading.step(unread):
                self._voicing.finish()

    async def _fail_with(self, error: AntiphonError) -> web.StreamResponse:
        """End the answer with an error: as one, before the first sound; then by an event, or by a cut.

        Raises:
            AntiphonError: the error.
        """
        if self._response is None:
            raise error
        if self._body.is_sse:
            return await self._end_with(api_error(error).event, error)
        return self._cut(error)
