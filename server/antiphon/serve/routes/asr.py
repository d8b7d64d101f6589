"""``/api/asr-streaming``: from a request to a transcript, live over a WebSocket or of a recording by POST.

Kyutai's clients read errors as messages, so a request for a WebSocket is upgraded, answered with ``Error``
("no free channels" when every row is taken), and closed with its code. A POST is answered with a status.
"""

from __future__ import annotations

from aiohttp import web

from antiphon.errors import ProtocolError, SessionError
from antiphon.protocol import kyutai
from antiphon.protocol.chat import parse_wait
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.asr_stream import Transcriber
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import admit_then_upgrade, upgrade_to_refuse
from antiphon.serve.dialects.kyutai import AsrDialect, refusal
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.routes.routing import ELSEWHERE, Route, check_upgrade, plain_refusal, refusal_of
from antiphon.serve.routes.upload import handle_recording
from antiphon.serve.transport.upgrade import is_upgrade


async def handle_asr(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """One WebSocket of ``/api/asr-streaming``, for as long as it lasts.

    Raises:
        web.HTTPException, SessionError: refused, see the module.
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


async def refuse_asr(
    request: web.Request, services: Services, metrics: ServeMetrics, error: SessionError
) -> web.StreamResponse:
    """Tell a client why there is no transcript: in a message, where it asked for a WebSocket.

    Raises:
        web.HTTPException: to all others.
    """
    if not is_upgrade(request):
        raise refusal_of(request, error)
    return await upgrade_to_refuse(request, services, metrics, error, refusal)


ROUTES = (
    Route("GET", kyutai.PATH, handle_asr, refuse_asr),
    Route("POST", kyutai.PATH, handle_recording),
)
