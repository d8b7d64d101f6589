"""``POST /api/asr-streaming``: transcribes a recording, and answers in the format of Kyutai's server.

The answer is a JSON array of ``Word`` and ``EndWord`` messages, sent when the whole recording is transcribed.
A row is requested only after the complete recording is in a file and its header was read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from aiohttp import hdrs, web

from antiphon.errors import AudioError, SessionFailedError
from antiphon.limits import Limits
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.asr_file import check_length, transcribe
from antiphon.serve.routes.routing import plain_refusal

UPLOAD_GRACE_S: Final = 5.0
"""Seconds before a body must reach its minimum rate."""


async def handle_recording(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Transcribe one recording.

    Raises:
        web.HTTPException, SessionError: the request is refused: 408 too slow, 413 too large or too long,
            415 an unreadable recording, 503 full, no space on disk, or draining.
    """
    try:
        async with services.access.ledger.hold_upload(caller):
            with services.uploads.one(request.content_length) as spool:
                await receive(request, services, spool.write, spare_bytes=0)
                spool.flush()
                await check_length(spool.file, services)
                return await transcribe(
                    request,
                    services,
                    model,
                    caller,
                    spool.file,
                    UploadBody(),
                    {hdrs.CONTENT_TYPE: "application/json; charset=utf-8"},
                    route="asr-streaming upload",
                )
    except AudioError as error:
        raise plain_refusal(error) from error
    except SessionFailedError as error:
        raise web.HTTPInternalServerError(text=f"{error}\n") from error


async def receive(
    request: web.Request, services: Services, take: Callable[[bytes], object], *, spare_bytes: int
) -> None:
    """Pass the body to ``take``, piece by piece, up to the limit of a recording plus ``spare_bytes``.

    Raises:
        web.HTTPException: too large, or too slow.
    """
    limit, size = services.config.limits.max_upload_bytes, 0

    def take_all(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)
        if size > limit + spare_bytes:
            raise too_large(limit)
        take(chunk)

    if (request.content_length or 0) > limit + spare_bytes:
        raise too_large(limit, request.content_length or 0)
    await _receive(request, services.config.limits, take_all)


async def read_small(request: web.Request, services: Services, most: int) -> bytes:
    """Read a body of at most ``most`` bytes into memory.

    Raises:
        web.HTTPException: too large, or too slow.
    """
    data, size = bytearray(), request.content_length or 0

    def take(chunk: bytes) -> None:
        data.extend(chunk)
        if max(size, len(data)) > most:
            text = f"a request of {max(size, len(data))} bytes, the limit is {most}\n"
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(data), text=text)

    take(b"")
    await _receive(request, services.config.limits, take)
    return bytes(data)


async def _receive(request: web.Request, limits: Limits, take: Callable[[bytes], object]) -> None:
    """Pass a body to ``take`` while it keeps its minimum rate.

    Raises:
        web.HTTPRequestTimeout: it is too slow.
    """
    size, loop = 0, asyncio.get_running_loop()
    begun_s = loop.time()
    try:
        async with asyncio.timeout(min(UPLOAD_GRACE_S, limits.upload_timeout_s)) as allowed:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                take(chunk)
                paid_s = UPLOAD_GRACE_S + size / limits.min_upload_bytes_per_s
                allowed.reschedule(begun_s + min(paid_s, limits.upload_timeout_s))
    except TimeoutError as error:
        took_s = loop.time() - begun_s
        text = (
            f"{size} bytes came in {took_s:.1f} s; a body has {limits.upload_timeout_s:g} s, and "
            f"at least {limits.min_upload_bytes_per_s} bytes come each second after {UPLOAD_GRACE_S:g} s\n"
        )
        raise web.HTTPRequestTimeout(text=text) from error


def too_large(limit: int, size: int | None = None) -> web.HTTPException:
    """The 413 for a body of ``size`` bytes, or of unknown size."""
    what = f"of {size} bytes" if size is not None else "of more bytes than it may have"
    text = f"a recording {what}, the limit is {limit}\n"
    return web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=size or 0, text=text)


class UploadBody:
    """A JSON array of Kyutai's messages, sent when the whole recording is transcribed."""

    def __init__(self) -> None:
        """Begin without words."""
        self._messages: list[dict[str, Any]] = []

    def take(self, message: kyutai.Word | kyutai.EndWord) -> bytes:
        """Add a message."""
        self._messages.append(kyutai.to_json(message))
        return b""

    def finish(self, _seconds: float) -> bytes:
        """The array of all messages."""
        return json.dumps(self._messages).encode()
