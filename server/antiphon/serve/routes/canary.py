"""The trial of a canary, for operators: GET reports its state, a signed POST sets its phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web

from antiphon.canary.trial import Phase
from antiphon.errors import ConfigError, ProtocolError, SessionFailedError, nearest
from antiphon.protocol.payload import decode_object
from antiphon.serve.access.other_worker import CANARY_PATH
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon.serve.hosting.canary_router import CanaryRouter
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.hand_over import add_signed, read_body
from antiphon.serve.routes.routing import add_question

MAX_BODY_BYTES: Final = 256


def add_canary(app: web.Application, secret: SharedSecret | None) -> None:
    """Register the routes; without a ``secret``, only the route that reads."""
    add_question(app, CANARY_PATH, report_state, open_as="metrics")
    if secret is not None:
        add_signed(app, secret, "POST", CANARY_PATH, set_phase)


async def report_state(
    _request: web.Request, services: Services, _models: Sequence[ServedModel]
) -> web.Response:
    """The state of the trial; 404 if there is none."""
    try:
        return web.json_response(await _router(services).report())
    except ConfigError as error:
        return web.json_response({"error": str(error)}, status=404)
    except SessionFailedError as error:
        return web.json_response({"error": str(error)}, status=503)


async def set_phase(request: web.Request, services: Services, secret: SharedSecret) -> dict[str, Any]:
    """Promote the canary, withdraw it, or restart the trial."""
    body = await read_body(request, secret, MAX_BODY_BYTES, services.config.limits.hand_over_timeout_s)
    try:
        wanted = str(decode_object(body, "the body")["phase"])
    except (ProtocolError, KeyError) as error:
        raise ConfigError('the body is not {"phase": "promoted"}') from error
    if wanted not in tuple(Phase):
        raise ConfigError(f"no phase {wanted[:100]!r}; {nearest(wanted, Phase)}")
    services.log.info("canary phase requested", phase=wanted)
    return await _router(services).ask(Phase(wanted))


def _router(services: Services) -> CanaryRouter:
    if services.canary is None:
        raise ConfigError("no model is on trial here; serve with canary = NAME")
    return services.canary
