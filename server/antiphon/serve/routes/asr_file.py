"""Transcribes a recording from a file at the model's speed, and yields its words as they are recognised.

A thread decodes the file, a second of audio or some packets at a time.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from typing import BinaryIO, Final

import numpy as np
from aiohttp import web

from antiphon.audio.pcm import FloatArray
from antiphon.audio.stream import Damage, decode_pieces, stated_seconds
from antiphon.audio.word_ends import WordEnds
from antiphon.errors import AntiphonError, RecordingTooLongError
from antiphon.limits import Limits
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import answer_post
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.dialects.rest import RecordingDialect, TranscriptBody
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import post_wait_s
from antiphon.serve.transport.http_body import HttpBody

STEP_PACKETS: Final = 512
"""Packets decoded in one step, with or without audio: less than 20 ms of the thread's time."""


FREE_S: Final = 60.0
MIN_BYTES_PER_S: Final = 100.0
"""Minimum bytes per second of a recording beyond its first minute; Opus at its lowest rate has seven times
that. Without this limit an hour of silence, 28 KB of FLAC, would occupy a row for 15 minutes.
"""


async def check_length(file: BinaryIO, services: Services) -> None:
    """Check the header of a complete recording.

    Raises:
        AudioError: the recording is unreadable, its rate is out of range, or its header states too long a
        duration.
    """
    seconds = await services.helper.run(stated_seconds, file)
    limit_s = longest_s(file, services.config.limits)
    if seconds is not None and seconds > limit_s:
        raise too_long(f"{seconds:.1f} s", limit_s, services.config.limits)


def longest_s(file: BinaryIO, limits: Limits) -> float:
    """The longest accepted recording in a file of this size, in seconds: silence takes few bytes but occupies
    a row.
    """
    return min(limits.max_upload_s, FREE_S + file.seek(0, io.SEEK_END) // MIN_BYTES_PER_S)


def too_long(lasts: str, limit_s: float, limits: Limits) -> RecordingTooLongError:
    """The error for a recording that lasts ``lasts`` seconds."""
    why = "" if limit_s == limits.max_upload_s else " for so few bytes"
    return RecordingTooLongError(f"this recording lasts {lasts}, the limit is {limit_s:g} s{why}")


async def transcribe(
    request: web.Request,
    services: Services,
    model: ServedModel,
    caller: Caller,
    file: BinaryIO,
    body: TranscriptBody,
    headers: Mapping[str, str],
    *,
    route: str,
    event_of: Callable[[AntiphonError], bytes] | None = None,
    ends: WordEnds | None = None,
) -> web.StreamResponse:
    """Transcribe a recording and send its words as a ``body`` while they are recognised; ``event_of`` returns
    the event of an error that ends a stream.

    ``ends`` gets the recording's samples, and finds the ends of words.

    Raises:
        AudioError: the recording cannot be read to its end, or is too long. AntiphonError: no session could
            begin, or the session or the server ended before any byte was sent.
    """
    limits = services.config.limits
    transcriber = Transcriber(model, services.clock, post_wait_s(request, limits))
    call = Call(services, model, RecordingDialect(body, model, event_of, ends), transcriber, caller=caller)
    async with aclosing(_pieces(file, model.checkpoint.spec.sample_rate, services)) as pieces:
        is_stream = event_of is not None
        answer = HttpBody(
            request,
            limits,
            services.clock,
            pieces,
            headers,
            is_whole=not is_stream,
            reports_errors=is_stream,
        )
        return await answer_post(call, answer, route=route)


async def _pieces(file: BinaryIO, rate: int, services: Services) -> AsyncGenerator[bytes | str]:
    """A recording as float32 samples, at the model's speed, and "" for its end.

    Raises:
        AudioError: it cannot be read to its end, or is too long.
    """
    limits, damage, samples = services.config.limits, Damage(), 0
    limit_s = longest_s(file, limits)
    with contextlib.closing(decode_steps(file, rate, damage)) as pieces:
        while (piece := await services.helper.run(next, pieces, None)) is not None:
            samples += piece.size
            if samples > limit_s * rate:
                raise too_long(f"longer than {limit_s:g} s", limit_s, limits)
            if piece.size:
                yield piece.astype(np.float32, copy=False).tobytes()
    if damage:
        facts = {"packets": damage.packets, "silence_s": round(damage.seconds, 2)}
        facts["unread_s"] = round(damage.rest_s, 2)
        services.provoked.info("recording is damaged", of="damage", **facts)
    yield ""


def decode_steps(
    file: BinaryIO, sample_rate: int, damage: Damage | None = None
) -> Generator[FloatArray, None, None]:
    """The audio of a file in pieces of about a second, one decoded in each step.

    A piece is shorter, or empty, if a second of audio takes more than ``STEP_PACKETS`` packets.

    Raises:
        AudioError: the file cannot be read.
    """
    pieces: list[FloatArray] = []
    samples = packets = 0
    for piece in decode_pieces(file, sample_rate, damage):
        pieces.append(piece)
        samples, packets = samples + piece.size, packets + 1
        if samples >= sample_rate or packets == STEP_PACKETS:
            yield np.concatenate(pieces)
            pieces, samples, packets = [], 0, 0
    if pieces:
        yield np.concatenate(pieces)
