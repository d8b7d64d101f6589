"""``/api/asr-streaming``: transcripts, live over a WebSocket or of a recording by POST.

Kyutai's clients read errors as messages, so a request for a WebSocket is upgraded, answered with ``Error``
("no free channels" when every row is in use), and closed with its code. A POST is answered with a status.
"""

from __future__ import annotations

from aiohttp import web

from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai
from antiphon.protocol.chat import parse_wait
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import admit_then_upgrade
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.dialects.kyutai import AsrDialect, refusal
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, plain_refusal, refuse_in
from antiphon.serve.routes.upload import handle_recording


async def handle_asr(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one WebSocket of ``/api/asr-streaming`` until it closes.

    Raises:
        web.HTTPException, SessionError: the request is refused; see the module.
    """
    try:
        max_wait_s = services.config.limits.max_wait_s
        wait_s = 0.0 if ELSEWHERE in request.headers else parse_wait(request.query, max_wait_s)
    except ProtocolError as error:
        raise plain_refusal(error) from error
    await check_upgrade(request, model, wait_s=wait_s)
    transcriber = Transcriber(model, services.clock, wait_s)
    call = Call(services, model, AsrDialect(model), transcriber, caller=caller)
    return await admit_then_upgrade(request, services, model.metrics, call, route="asr-streaming")


ROUTES = (
    Route("GET", kyutai.PATH, handle_asr, refuse_in(lambda _: refusal)),
    Route("POST", kyutai.PATH, handle_recording),
)
