"""A recording in a file, and its words as they are heard, at the model's pace.

The file is decoded by a thread, a second of audio or some packets at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import BinaryIO, Final

import numpy as np
from aiohttp import web

from antiphon.audio.pcm import FloatArray
from antiphon.audio.stream import decode_pieces, stated_seconds
from antiphon.errors import RecordingTooLongError
from antiphon.ipc.values import SessionState
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.asr_stream import AsrStream, asr_parameters
from antiphon.serve.hosting.answer import Answer
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import post_wait_s

STEP_PACKETS: Final = 512
"""Packets decoded in one step, whether or not they hold audio: less than 20 ms of the thread's time."""


async def check_length(file: BinaryIO, services: Services) -> None:
    """Look at the header of a recording that has come whole.

    Raises:
        AudioError: no recording that can be read, of a rate out of range, or too long by its header.
    """
    seconds = await services.helper.run(stated_seconds, file)
    limit_s = services.config.limits.max_upload_s
    if seconds is not None and seconds > limit_s:
        raise RecordingTooLongError(f"this recording lasts {seconds:.1f} s, the limit is {limit_s:g} s")


class AsrFile(Answer):
    """A recording that is heard, and answered with its words."""

    def __init__(self, services: Services, model: ServedModel, request: web.Request, caller: Caller) -> None:
        """Prepare to answer ``request``."""
        super().__init__(services, model, request, caller)
        self._hearing = AsrStream(model, services.clock)
        self._rate = model.checkpoint.spec.sample_rate
        self._samples = 0

    @property
    def words(self) -> int:
        """Words heard so far."""
        return self._hearing.words

    @property
    def heard_s(self) -> float:
        """How long the recording is, as far as it was read."""
        return self._samples / self._rate

    async def _hear(self, file: BinaryIO, route: str) -> AsyncGenerator[kyutai.Word | kyutai.EndWord]:
        """All words, as they are heard; the iteration ends when the end has been heard.

        Raises:
            AudioError: the recording cannot be read to its end, or is too long.
            AntiphonError: there is no session, or it, or the server, ended.
        """
        wait_s = post_wait_s(self._request, self._limits)
        self._hearing.session = await self._submit(asr_parameters(self._model), wait_s=wait_s, route=route)
        with contextlib.closing(decode_steps(file, self._rate)) as pieces:
            is_ended = False
            while True:
                if not is_ended and self._is_hungry():
                    is_ended = not await self._read_on(pieces)
                told = self._hearing.advance(is_ended=is_ended)
                for message in told.messages:
                    if isinstance(message, kyutai.Marker):
                        return
                    if isinstance(message, kyutai.Word | kyutai.EndWord):
                        yield message
                error = self._failure()
                if error is not None:
                    raise error
                if is_ended or not self._is_hungry():
                    await self._wait()

    def _is_hungry(self) -> bool:
        session = self._session
        is_active = session is not None and session.state is SessionState.ACTIVE
        return is_active and self._hearing.pending_samples == 0

    async def _read_on(self, pieces: Iterator[FloatArray]) -> bool:
        """Give the model the next piece, or the marker of the end; whether there was a piece."""
        piece = await self._services.helper.run(next, pieces, None)
        self._hearing.put(0 if piece is None else piece)
        if piece is None:
            return False
        self._samples += piece.size
        limit_s = self._limits.max_upload_s
        if self._samples > limit_s * self._rate:
            raise RecordingTooLongError(
                f"this recording lasts longer than {limit_s:g} s, the limit is {limit_s:g} s"
            )
        return True


def decode_steps(file: BinaryIO, sample_rate: int) -> Generator[FloatArray, None, None]:
    """The audio of a file in pieces of about a second, which are worth a trip to a thread each.

    A piece is shorter, or empty, where so much audio takes more than ``STEP_PACKETS`` packets.

    Raises:
        AudioError: it cannot be read.
    """
    pieces: list[FloatArray] = []
    samples = packets = 0
    for piece in decode_pieces(file, sample_rate):
        pieces.append(piece)
        samples, packets = samples + piece.size, packets + 1
        if samples >= sample_rate or packets == STEP_PACKETS:
            yield np.concatenate(pieces)
            pieces, samples, packets = [], 0, 0
    if pieces:
        yield np.concatenate(pieces)
