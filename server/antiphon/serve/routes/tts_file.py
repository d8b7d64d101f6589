"""Synthesises a text, and sends the speech meanwhile: ``POST /api/tts_streaming`` and ``/v1/audio/speech``.

The header of a WAV states the largest possible length, because the real one is not known yet; players read to
the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web

from antiphon.errors import FieldError
from antiphon.models.prompt import Prompt
from antiphon.models.spelling import Unspoken
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import answer_post
from antiphon.serve.calls.synthesiser import Synthesiser
from antiphon.serve.dialects.rest import SpeechDialect
from antiphon.serve.dialects.speech_body import SpeechBody
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.routing import post_wait_s
from antiphon.serve.transport.http_body import HttpBody

UNSPOKEN_HEADER: Final = "Antiphon-Unspoken"
MAX_UNSPOKEN_BYTES: Final = 1500
"""Maximum bytes of names in the header ``Antiphon-Unspoken``: proxies accept 4 KB of all headers."""
"""The header with words the model cannot pronounce: percent-encoded UTF-8, commas, "+N" for N more."""


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
    """Synthesise one text; ``headers`` are added to the response. A text without words gives an empty file,
    or is refused.

    Raises:
        FieldError: the text has no words, and may not be empty. ProtocolError: the model can pronounce none
        of its words. ServerFullError, DrainingError: no row became free in time. ProtocolError,
        SessionFailedError: the call failed before the first sound; a later failure cuts the connection.
    """
    limits = services.config.limits
    speaker = Synthesiser(model, services.clock, voice, post_wait_s(request, limits))
    try:
        words = await _check(services, speaker, text, may_be_empty=may_be_empty)
    except BaseException:
        body.close()
        raise
    unspoken = speaker.unspoken

    async def once() -> AsyncIterator[bytes | str]:
        yield text

    dialect = SpeechDialect(
        body, words - unspoken.count, unspoken.count, lambda error: api_error(error).event
    )
    answer = HttpBody(
        request,
        limits,
        services.clock,
        once(),
        {"Content-Type": body.content_type, **headers, **unspoken_header(unspoken)},
        reports_errors=body.is_sse,
    )
    call = Call(services, model, dialect, speaker, caller=caller)
    return await answer_post(call, answer, route="text post")


async def _check(services: Services, speaker: Synthesiser, text: str, *, may_be_empty: bool) -> int:
    """Read a whole text (up to 32,000 words) once, before a row is requested, without keeping it; returns its
    number of words.

    Raises:
        FieldError, ProtocolError: as :func:`handle_text`.
    """
    words, pieces = 0, speaker.check(text)
    while (count := await services.reading.step(pieces)) is not None:
        words += count
    if 0 < words == speaker.unspoken.count:
        raise speaker.unspoken.error()
    if not (words or may_be_empty):
        raise FieldError("input has no words", param="input", code=INVALID_VALUE)
    return words


def unspoken_header(unspoken: Unspoken) -> Mapping[str, str]:
    """The headers for words that are missing from the speech, if any."""
    if not unspoken.count:
        return {}
    names = [quote(name, safe="", errors="replace") for name in unspoken.names]
    while len(", ".join(names)) > MAX_UNSPOKEN_BYTES:
        names.pop()
    more = unspoken.count - len(names)
    return {UNSPOKEN_HEADER: ", ".join([*names, f"+{more}"] if more else names)}
