"""``/api/tts_streaming``: speech, over a WebSocket or by POST; ``/v1/voices``: the voices.

Kyutai's clients read errors as messages, so a request for a WebSocket is upgraded, answered with ``Error``
("no free channels" when every row is in use) if its format has messages, and closed with a code and a reason.
A POST is answered with a status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from aiohttp import web

from antiphon.errors import CheckpointError, ProtocolError, SessionFailedError
from antiphon.models.prompt import Prompt
from antiphon.protocol import kyutai_tts
from antiphon.protocol.kyutai_tts import TtsQuery
from antiphon.protocol.wire_errors import close_only
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import Refusal, admit_then_upgrade, upgrade_to_refuse
from antiphon.serve.calls.synthesiser import Synthesiser
from antiphon.serve.dialects.kyutai import TtsDialect, refusal
from antiphon.serve.dialects.speech_body import SpeechBody
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import SERVICES, Services
from antiphon.serve.media.duplex_voices import MAX_NAME
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, plain_refusal, refuse_in
from antiphon.serve.routes.tts_file import handle_text
from antiphon.serve.routes.upload import read_small

VOICE_HEADER: Final = "Antiphon-Voice"
"""The header with the name of the voice, percent-encoded. Kyutai's messages have no field for it."""


async def handle_tts(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one WebSocket of ``/api/tts_streaming`` until it closes.

    Raises:
        web.HTTPException, SessionError: the request is refused; see the module.
    """
    try:
        speech = kyutai_tts.parse_query(request.query, max_wait_s=services.config.limits.max_wait_s)
    except ProtocolError as error:
        raise plain_refusal(error) from error
    wait_s = 0.0 if ELSEWHERE in request.headers else speech.wait_s
    await check_upgrade(request, model, wait_s=wait_s)
    try:
        voice = await voice_of(model, speech.voice, services)
    except SessionFailedError as error:
        return await upgrade_to_refuse(request, services, model.metrics, error, words_of(request))
    limits = services.config.limits
    speaker = Synthesiser(model, services.clock, voice.prompt, wait_s)
    call = Call(services, model, TtsDialect(speech.format, model), speaker, caller=caller)
    return await admit_then_upgrade(
        request,
        services,
        model.metrics,
        call,
        max_message_bytes=max(limits.max_message_bytes, limits.max_voice_bytes),
        headers=voice.headers,
        route="tts_streaming",
    )


@dataclass(frozen=True, slots=True)
class ChosenVoice:
    """A voice's name and its prompt for the model; both are None for a model without voices."""

    name: str | None = None
    prompt: Prompt | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the voice."""
        return {} if self.name is None else {VOICE_HEADER: quote(self.name, errors="replace")}


async def voice_of(model: ServedModel, name: str | None, services: Services) -> ChosenVoice:
    """The voice of this name; for an unknown name, the model's first voice; for a model with one voice, a
    :class:`ChosenVoice` of None.

    Raises:
        SessionFailedError: the voice's file is broken.
    """
    if model.speakers is None:
        return ChosenVoice()
    chosen = model.speakers.choose(name)
    if name is not None and chosen != name and model.speakers.note_unknown(name[:MAX_NAME]):
        services.log.warning("no such voice", model=model.name, voice=name[:MAX_NAME], speaks=chosen)
    if chosen is None:
        return ChosenVoice()
    try:
        return ChosenVoice(chosen, await services.helper.run(model.speakers.load, chosen))
    except CheckpointError as error:
        services.provoked.error(
            "voice cannot be used", of="voice", model=model.name, voice=chosen[:MAX_NAME], reason=str(error)
        )
        raise SessionFailedError("this voice cannot be used; see the server's log") from error


def words_of(request: web.Request) -> Refusal:
    """The form of a refusal for the format that the query requests: a message, or only a close code."""
    limits = request.app[SERVICES].config.limits
    try:
        speech = kyutai_tts.parse_query(request.query, max_wait_s=limits.max_wait_s)
    except ProtocolError:
        speech = TtsQuery()
    return refusal if speech.format.is_packed else close_only


async def handle_post(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Answer a text by POST with a WAV that begins before the text is spoken.

    Raises:
        web.HTTPException, SessionError: the request is refused: 400 without a text, 408 too slow, 413 too
            long, 500 after a failure, 503 full or draining.
    """
    try:
        most = services.config.limits.max_message_bytes
        text, name = kyutai_tts.parse_post(await read_small(request, services, most))
        voice = await voice_of(model, name, services)
        body = SpeechBody("wav", model.checkpoint.spec.sample_rate)
        return await handle_text(
            request,
            services,
            model,
            caller,
            text,
            voice.prompt,
            body,
            headers=voice.headers,
            may_be_empty=True,
        )
    except ProtocolError as error:
        raise plain_refusal(error) from error
    except SessionFailedError as error:
        raise web.HTTPInternalServerError(text=f"{error}\n") from error


async def list_voices(
    _request: web.Request, _services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """The voices that a client may name; the first voice of each model is its default."""
    voices = []
    for model in models:
        names = [] if model.speakers is None else model.speakers.names()
        voices += [
            {"name": name, "model": model.name, "is_default": name == names[0]}
            for name in names
            if not model.kind.takes_audio
        ]
    return web.json_response({"voices": voices})


ROUTES = (
    Route("GET", kyutai_tts.PATH, handle_tts, refuse_in(words_of)),
    Route("POST", kyutai_tts.PATH, handle_post),
)
