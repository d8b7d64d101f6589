"""The application, built and not imported: routes over the services they share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

from antiphon.config import ServerConfig
from antiphon.engine.engine import Engine
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError, DrainingError
from antiphon.log import Log
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.serve import http
from antiphon.serve.chat import handle_chat
from antiphon.serve.lanes import WorkerPool
from antiphon.serve.metrics import ServeMetrics
from antiphon.serve.services import SERVICES, Services
from antiphon.serve.static import StaticFiles, web_root
from antiphon.serve.voices import find_voices

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(
    engine: Engine,
    checkpoint: Checkpoint,
    config: ServerConfig,
    metrics: ServeMetrics,
    *,
    clock: Callable[[], float] = time.monotonic,
    log: Log | None = None,
    tracer: Tracer | None = None,
    page: Path | None = None,
) -> web.Application:
    """An application around a started engine; its clean-up closes every socket, not the engine.

    ``clock`` is the engine's. ``page`` is the folder of the web client, found by itself when None.

    Raises:
        ConfigError: the folder of voices is not there.
    """
    voices = find_voices(config.voices, checkpoint)
    app = web.Application(client_max_size=config.limits.max_message_bytes, middlewares=[_no_sniffing])

    async def services(app: web.Application) -> AsyncIterator[None]:
        pool = WorkerPool(config.threads or _cpus(), asyncio.get_running_loop())
        metrics.watch(pool)
        app[SERVICES] = Services(
            config=config,
            engine=engine,
            checkpoint=checkpoint,
            tokenizer=checkpoint.text_tokenizer(),
            defaults=SamplingParameters.from_generation(checkpoint.generation),
            pool=pool,
            metrics=metrics,
            clock=clock,
            log=log or Log(),
            tracer=tracer,
            voices=voices,
        )
        yield
        pool.close()

    app.cleanup_ctx.append(services)
    app.on_shutdown.append(_close_sockets)
    app.router.add_get("/api/chat", handle_chat)
    app.router.add_get("/healthz", http.healthz)
    app.router.add_get("/readyz", http.readyz)
    app.router.add_get("/metrics", http.metrics)
    app.router.add_get("/api/build_info", http.build_info)
    app.router.add_get("/api/modules_info", http.modules_info)
    app.router.add_get("/api/models", http.models)
    root = page or web_root()
    if root is not None:
        app.router.add_get("/{path:.*}", StaticFiles(root).handle)
    return app


async def close_calls(app: web.Application, error: AntiphonError) -> None:
    """End every conversation with an error, all at once, and wait until they are over."""
    calls = tuple(app[SERVICES].calls)
    for call in calls:
        call.end(error)
    # One call that cannot end well must not keep the others, or the process; its own task says what it was.
    await asyncio.gather(*(call.closed() for call in calls), return_exceptions=True)


async def _close_sockets(app: web.Application) -> None:
    await close_calls(app, DrainingError("the server is leaving"))


@web.middleware
async def _no_sniffing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers are what their content type says, whatever a browser would make of them."""
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.headers.setdefault("X-Content-Type-Options", "nosniff")
        raise
    if not response.prepared:
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
