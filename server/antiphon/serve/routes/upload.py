"""``POST /api/asr-streaming``: a recording in, its words out, as Kyutai's server answers.

The answer is a JSON array of ``Word`` and ``EndWord`` messages, once all is transcribed. A row is asked for
only when the recording has come whole and its header was read: it lies in a file until then, and is decoded a
second at a time, by a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Final, cast

import numpy as np
from aiohttp import web

from antiphon.audio.pcm import FloatArray
from antiphon.audio.stream import decode_pieces, stated_seconds
from antiphon.errors import AudioError, DrainingError, ServerFullError, SessionFailedError
from antiphon.ipc.values import SessionState
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.answer import Answer
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.hearing import Hearing, hearing_parameters
from antiphon.serve.routes.routing import ELSEWHERE, refusal_of

MAX_UPLOADS: Final = 32
"""Recordings being received or transcribed at once: each may lie on disk in its largest size."""

IN_MEMORY_BYTES: Final = 1_048_576
"""A smaller recording makes no file."""

WAIT_S: Final = 100.0
"""How long a recording waits for a row: as with Kyutai's server."""

RETRY_AFTER_S: Final = 10


async def handle_recording(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One recording, for as long as it takes.

    Raises:
        web.HTTPException, SessionError: refused: 408 too slow, 413 too large or too long, 415 no recording
            that can be read, 503 full or leaving.
    """
    if sum(isinstance(call, Recording) for call in services.calls) >= MAX_UPLOADS:
        raise ServerFullError(
            f"{MAX_UPLOADS} recordings are being transcribed; try again in {RETRY_AFTER_S} s",
            retry_after_s=RETRY_AFTER_S,
        )
    try:
        return await Recording(services, model, request, caller).give()
    except AudioError as error:
        raise web.HTTPUnsupportedMediaType(text=f"{error}\n") from error
    except SessionFailedError as error:
        raise web.HTTPInternalServerError(text=f"{error}\n") from error
    except DrainingError as error:
        raise refusal_of(request, error) from error


async def _receive(request: web.Request, services: Services, file: Any) -> None:
    """Write the body to a file, within its limits, and look at its header.

    Raises:
        web.HTTPException: too large, too slow, or too long by its header.
        AudioError: no recording that can be read, or of a rate out of range.
    """
    limits = services.config.limits
    size = 0
    try:
        async with asyncio.timeout(limits.upload_timeout_s):
            if (request.content_length or 0) > limits.max_upload_bytes:
                raise _too_large(limits.max_upload_bytes, request.content_length or 0)
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limits.max_upload_bytes:
                    raise _too_large(limits.max_upload_bytes, size)
                file.write(chunk)
    except TimeoutError as error:
        text = f"{size} bytes came in {limits.upload_timeout_s:g} s, which is all the time there is\n"
        raise web.HTTPRequestTimeout(text=text) from error
    file.seek(0)
    seconds = await services.helper.run(stated_seconds, file)
    if seconds is not None and seconds > limits.max_upload_s:
        raise _too_long(f"{seconds:.1f} s", limits.max_upload_s)


def _too_large(limit: int, size: int) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(
        max_size=limit, actual_size=size, text=f"a recording of {size} bytes, the limit is {limit}\n"
    )


def _too_long(length: str, limit_s: float) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(
        max_size=0, actual_size=0, text=f"this recording lasts {length}, the limit is {limit_s:g} s\n"
    )


class Recording(Answer):
    """A recording that is heard, and answered with its words."""

    def __init__(self, services: Services, model: ServedModel, request: web.Request, caller: Caller) -> None:
        """Prepare to answer ``request``."""
        super().__init__(services, model, request, caller)
        self._hearing = Hearing(model, services.clock)

    @property
    def words(self) -> int:
        """Words heard so far."""
        return self._hearing.words

    async def _answer(self) -> web.StreamResponse:
        with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
            await _receive(self._request, self._services, file)
            if self._error is not None:
                raise self._error
            wait_s = 0.0 if ELSEWHERE in self._request.headers else WAIT_S
            self._hearing.session = await self._submit(
                hearing_parameters(self._model), wait_s=wait_s, route="asr-streaming upload"
            )
            rate = self._model.checkpoint.spec.sample_rate
            with contextlib.closing(decode_seconds(cast("BinaryIO", file), rate)) as pieces:
                messages = await self._transcribe(pieces)
        return web.json_response([kyutai.to_json(message) for message in messages])

    async def _transcribe(self, pieces: Iterator[FloatArray]) -> list[kyutai.ServerMessage]:
        """All words, once the end has been heard.

        Raises:
            AudioError: the recording cannot be read to its end.
            web.HTTPException: it is too long.
            AntiphonError: the session, or the server, ended.
        """
        words: list[kyutai.ServerMessage] = []
        samples, is_ended = 0, False
        while True:
            if not is_ended and self._is_hungry():
                piece = await self._services.helper.run(next, pieces, None)
                samples += self._put(piece)
                self._check_length(samples)
                is_ended = piece is None
            told = self._hearing.advance(is_ended=is_ended)
            for message in told.messages:
                if isinstance(message, kyutai.Marker):
                    return words
                if isinstance(message, kyutai.Word | kyutai.EndWord):
                    words.append(message)
            error = self._failure()
            if error is not None:
                raise error
            if is_ended or not self._is_hungry():
                await self._wait()

    def _is_hungry(self) -> bool:
        session = self._session
        is_active = session is not None and session.state is SessionState.ACTIVE
        return is_active and self._hearing.pending_samples == 0

    def _put(self, piece: FloatArray | None) -> int:
        self._hearing.put(0 if piece is None else piece)
        return 0 if piece is None else piece.size

    def _check_length(self, samples: int) -> None:
        limit_s = self._limits.max_upload_s
        if samples > limit_s * self._model.checkpoint.spec.sample_rate:
            raise _too_long(f"longer than {limit_s:g} s", limit_s)


def decode_seconds(file: BinaryIO, sample_rate: int) -> Generator[FloatArray, None, None]:
    """The audio of a file in pieces of about a second, which are worth a trip to a thread each.

    Raises:
        AudioError: it cannot be read.
    """
    pieces: list[FloatArray] = []
    size = 0
    for piece in decode_pieces(file, sample_rate):
        pieces.append(piece)
        size += piece.size
        if size >= sample_rate:
            yield np.concatenate(pieces)
            pieces, size = [], 0
    if pieces:
        yield np.concatenate(pieces)
