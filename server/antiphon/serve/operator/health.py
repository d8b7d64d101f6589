"""The two health checks for a service manager, of the whole server or of one model (``/m/NAME/readyz``).

The response is text, or JSON for clients that accept only JSON (``Accept: application/json``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import hdrs, web

from antiphon.ipc.health import Health
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.operator.status import ServerHealth


async def healthz(request: web.Request, services: Services, models: Sequence[ServedModel]) -> web.Response:
    """Answer 200 while every engine thread runs and makes progress, and 503 with the reason when a restart is
    due.
    """
    server = await services.status.health()
    healths = {model.name: server.models[model.name] for model in models}
    is_well = all(health.is_healthy for health in healths.values())
    wrong = {name: health.detail for name, health in healths.items() if not health.is_healthy}
    return _answer(request, server, healths, is_well, wrong if wrong else {"": "ok"})


async def readyz(request: web.Request, services: Services, models: Sequence[ServedModel]) -> web.Response:
    """Answer 200 while some model would admit a new caller at once, otherwise 503 with the reason for each.

    A single dead engine causes 503, because the process will be restarted.
    """
    server = await services.status.health()
    healths = {model.name: server.models[model.name] for model in models}
    is_well = all(health.is_healthy for health in healths.values())
    is_ready = is_well and any(health.ready for health in healths.values())
    words = {name: readiness(health) for name, health in healths.items()}
    return _answer(request, server, healths, is_ready, {"": "ok"} if set(words.values()) == {"ok"} else words)


def readiness(health: Health) -> str:
    """The reason why no caller is admitted, with the numbers, or "ok"."""
    if health.draining:
        return f"draining: {health.active} sessions left"
    if health.is_healthy and not health.ready and health.active < health.slots and not health.queued:
        return f"late: {health.active} of {health.slots} rows taken, but frames miss their deadline"
    if health.is_healthy and not health.ready:
        return f"full: {health.active} of {health.slots} rows taken, callers waiting: {health.queued}"
    return health.detail


def _answer(
    request: web.Request, server: ServerHealth, healths: dict[str, Health], is_ok: bool, words: dict[str, str]
) -> web.Response:
    """The status, as JSON or with a line per model; the name of a single model is omitted."""
    status = 200 if is_ok else 503
    if request.headers.get(hdrs.ACCEPT) == "application/json":
        models = {name: _to_json(health) for name, health in healths.items()}
        return web.json_response({"ok": is_ok, "models": models, **server.facts}, status=status)
    lines = [f"{name}: {text}" if name and len(healths) > 1 else text for name, text in words.items()]
    return web.Response(status=status, text="".join(f"{line}\n" for line in lines))


def _to_json(health: Health) -> dict[str, Any]:
    return {
        "healthy": health.is_healthy,
        "ready": health.ready,
        "draining": health.draining,
        "active": health.active,
        "queued": health.queued,
        "slots": health.slots,
        "detail": readiness(health),
    }
