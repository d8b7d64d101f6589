"""``POST /v1/audio/speech``: synthesises a text in the requested format, and sends the speech
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from antiphon.errors import AntiphonError, SessionError
from antiphon.models.spec import PipelineKind
from antiphon.protocol import speech_request
from antiphon.protocol.payload import MAX_JSON_BYTES
from antiphon.serve.access.callers import Caller
from antiphon.serve.dialects.speech_body import SpeechBody
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.openai_models import named_in_body
from antiphon.serve.routes.routing import Route
from antiphon.serve.routes.tts import voice_of
from antiphon.serve.routes.tts_file import handle_text
from antiphon.serve.routes.upload import read_small

IGNORED_HEADER: Final = "Antiphon-Ignored"
"""The response header that lists the fields without effect, separated by commas."""


async def handle_speech_request(
    request: web.Request, services: Services, _model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Synthesise one text.

    Raises:
        web.HTTPException, SessionError: refused, with OpenAI's body.
    """
    try:
        order = speech_request.parse_speech_request(await read_small(request, services, MAX_JSON_BYTES))
        model = named_in_body(request, services, caller, order.model, (PipelineKind.TTS,))
        voice = await voice_of(model, order.voice, services)
        body = SpeechBody(
            speech_request.CODECS[order.format],
            model.checkpoint.spec.sample_rate,
            speed=order.speed,
            is_sse=order.is_sse,
        )
        headers = {**voice.headers, **ignored_header(order.ignored)}
        return await handle_text(
            request,
            services,
            model,
            caller,
            order.text,
            voice.prompt,
            body,
            headers=headers,
            may_be_empty=False,
        )
    except SessionError:
        raise
    except AntiphonError as error:
        raise api_error(error, param="input").exception() from error


def ignored_header(names: Sequence[str]) -> Mapping[str, str]:
    """The header for fields without effect."""
    return {IGNORED_HEADER: ", ".join(names)} if names else {}


ROUTES = (Route("POST", speech_request.PATH, handle_speech_request),)
