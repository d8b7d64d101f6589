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
from antiphon.errors import AntiphonError, AudioError, DrainingError, ServerFullError, SessionFailedError
from antiphon.ipc.values import SessionState
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import Caller
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

LOOK_S: Final = 0.5
"""How often to look whether whoever asked is still there."""


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
    recording = Recording(services, model, caller.name)
    services.calls.add(recording)
    try:
        with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
            await _receive(request, services, file)
            recording.admit(wait_s=0.0 if ELSEWHERE in request.headers else WAIT_S)
            messages = await recording.transcribe(request, cast("BinaryIO", file))
        return web.json_response([kyutai.to_json(message) for message in messages])
    except AudioError as error:
        raise web.HTTPUnsupportedMediaType(text=f"{error}\n") from error
    except SessionFailedError as error:
        raise web.HTTPInternalServerError(text=f"{error}\n") from error
    except DrainingError as error:
        raise refusal_of(request, error) from error
    finally:
        services.calls.discard(recording)
        recording.abandon()


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
    seconds = await asyncio.to_thread(stated_seconds, file)
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


class Recording:
    """A recording and its session of the engine: a conversation with one answer."""

    def __init__(self, services: Services, model: ServedModel, caller: str) -> None:
        """Prepare; :meth:`admit` gets it a session."""
        self._log = services.log.bind(model=model.name, **({"key": caller} if caller else {}))
        self._services = services
        self._model = model
        self._hearing = Hearing(model, services.clock)
        self._changed = asyncio.Event()
        self._lane = services.pool.loop_lane(self._turn, self._fail)
        self._error: AntiphonError | None = None

    def admit(self, wait_s: float) -> None:
        """Ask the engine for a session: a row at once, or a place in the queue.

        Raises:
            ServerFullError, DrainingError: neither.
        """
        if self._error is not None:
            raise self._error
        self._hearing.session = self._model.engine.submit(
            hearing_parameters(self._model), wait_s=wait_s, notify=self._lane.wake
        )
        self._log.info("session opened", session=self._hearing.session.id, route="asr-streaming upload")

    def announce_draining(self, deadline_s: float) -> None:
        """Nothing can be said before the answer."""

    def end(self, error: AntiphonError | None = None) -> None:
        """Give up; the request is answered with the error."""
        self._error = self._error or error or DrainingError("the server is leaving")
        self._changed.set()

    async def closed(self) -> None:
        """Nothing to wait for: the server waits for its handlers itself."""

    def abandon(self) -> None:
        """Give everything back."""
        if self._hearing.session is not None:
            self._hearing.session.close()
        self._lane.close()

    async def transcribe(self, request: web.Request, file: BinaryIO) -> list[kyutai.ServerMessage]:
        """All words, once the end has been heard.

        Raises:
            AudioError: the recording cannot be read to its end.
            web.HTTPException: it is too long.
            AntiphonError: the session, or the server, ended.
        """
        with contextlib.closing(decode_seconds(file, self._model.checkpoint.spec.sample_rate)) as pieces:
            return await self._follow(request, pieces)

    async def _follow(self, request: web.Request, pieces: Iterator[FloatArray]) -> list[kyutai.ServerMessage]:
        words: list[kyutai.ServerMessage] = []
        samples, is_ended = 0, False
        while True:
            if not is_ended and self._is_hungry():
                piece = await asyncio.to_thread(next, pieces, None)
                samples += self._put(piece)
                self._check_length(samples)
                is_ended = piece is None
            told = self._hearing.advance(is_ended=is_ended)
            for message in told.messages:
                if isinstance(message, kyutai.Marker):
                    return words
                if isinstance(message, kyutai.Word | kyutai.EndWord):
                    words.append(message)
            self._check(request)
            if is_ended or not self._is_hungry():
                await self._wait()

    def _is_hungry(self) -> bool:
        session = self._hearing.session
        is_active = session is not None and session.state is SessionState.ACTIVE
        return is_active and self._hearing.pending_samples == 0

    def _put(self, piece: FloatArray | None) -> int:
        self._hearing.put(0 if piece is None else piece)
        return 0 if piece is None else piece.size

    def _check_length(self, samples: int) -> None:
        limit_s = self._services.config.limits.max_upload_s
        if samples > limit_s * self._model.checkpoint.spec.sample_rate:
            raise _too_long(f"longer than {limit_s:g} s", limit_s)

    def _check(self, request: web.Request) -> None:
        session = self._hearing.session
        assert session is not None
        if self._error is not None:
            raise self._error
        if session.state is SessionState.CLOSED:
            raise session.error or SessionFailedError("the session ended before its recording did")
        if request.transport is None or request.transport.is_closing():
            raise SessionFailedError("whoever sent this recording has left")

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
