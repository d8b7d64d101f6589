"""Builds the application: its routes, and the services that they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from antiphon.canary.kept import KeptTrial
from antiphon.canary.trial import TrialRules
from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError, DrainingError
from antiphon.log import Log, SparseLog
from antiphon.metrics import MetricFamilies
from antiphon.serve.access.callers import Access
from antiphon.serve.access.key_form import keep_key, key_form
from antiphon.serve.access.key_watch import watch_keys
from antiphon.serve.access.other_worker import CALLS_PATH, CANARY_PATH, DRAIN_PATH
from antiphon.serve.access.security import allowed_hosts, host_check, preflights, readable, workers_port
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon.serve.calls.output_listener import OutputListeners
from antiphon.serve.hosting.agents import check_text_models, make_agents
from antiphon.serve.hosting.canary_router import CanaryRouter
from antiphon.serve.hosting.event_loop import LoopLag
from antiphon.serve.hosting.peers import Peers
from antiphon.serve.hosting.served import Models, ServedModel
from antiphon.serve.hosting.services import SERVICES, Services
from antiphon.serve.hosting.turns import Turns
from antiphon.serve.hosting.uploads import Helper, Uploads
from antiphon.serve.media.recording import make_recorder
from antiphon.serve.operator import http
from antiphon.serve.operator.health import healthz, readyz
from antiphon.serve.operator.metrics import ServeMetrics, watch_process
from antiphon.serve.operator.status import ServerStatus, answer_alone
from antiphon.serve.routes import openai_models, unmute
from antiphon.serve.routes.canary import add_canary
from antiphon.serve.routes.hand_over import add_hand_over
from antiphon.serve.routes.kinds import AGENT_ROUTES, ROUTES
from antiphon.serve.routes.openai_errors import openai_bodies
from antiphon.serve.routes.paths import near_paths
from antiphon.serve.routes.routing import add_question, add_routes
from antiphon.serve.routes.static import StaticFiles, web_root
from antiphon.serve.routes.tts import list_voices
from antiphon.serve.routes.upload import read_small
from antiphon.serve.routes.webrtc import add_hang_up
from antiphon.serve.transport.connection_faults import ConnectionFaults

BURST_LINES = 20
"""Lines of one kind, caused by callers, that are logged at once: enough to show the cause, and too few to
fill a disk.
"""

KEEPALIVE_TIMEOUT_S = 15.0
"""Seconds until a connection without a request is closed, also between two requests."""

MAX_FORM_BYTES = 8192
"""Maximum bytes of the form for a key, the same as of a header with a key."""

FAULTS = web.AppKey("faults", ConnectionFaults)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(
    models: Sequence[ServedModel],
    config: ServerConfig,
    families: MetricFamilies,
    *,
    access: Access | None = None,
    clock: Callable[[], float] = time.monotonic,
    log: Log | None = None,
    tracer: Tracer | None = None,
    page: Path | None = None,
) -> web.Application:
    """Build an application around started engines; its clean-up closes every socket, not the engines.

    ``families`` are the metrics of this process. If ``access`` is None, it is made from ``config`` and counts
    only this process. ``clock`` is the clock of the engines. ``page`` is the folder of the web client; None
    finds it.

    Raises:
        ConfigError: the keys, the proxies or the folder of recordings cannot be used, or two models have the
        same name.
    """
    access, agents = access or Access(config), make_agents(config.served_agents, models, families)
    own_names = [f"{agent.name}={agent.stt.name}" for agent in agents.values()]  # the agents' own names
    served = Models(models, (*config.alias, *own_names))
    hosts = allowed_hosts(config, requires_keys=access.requires_keys)
    app = web.Application(
        client_max_size=config.limits.max_message_bytes,
        middlewares=[
            _no_sniffing,
            openai_bodies,
            workers_port(config.hand_over_port, (CALLS_PATH, DRAIN_PATH, CANARY_PATH)),
            host_check(hosts),
            preflights(config.allow_origin),
            near_paths,
        ],
    )

    recorder, own_log = make_recorder(config), log or Log()
    shared = access.client.shared
    if shared is not None and config.canary is not None:
        rules, on_phase = TrialRules(share=config.canary_share), access.client.note_phase
        shared.trial = KeptTrial(rules, registry=families.registry, log=own_log, on_phase=on_phase)
    router = None
    if config.canary is not None:
        listen = OutputListeners(served, clock).open
        router = CanaryRouter(served, config, access.client, listen=listen)
    peers = Peers(config.webrtc, config.ice_server, config.limits, clock) if config.webrtc else None
    app[FAULTS] = ConnectionFaults(families, own_log, clock)

    async def services(app: web.Application) -> AsyncIterator[None]:
        turns, helper = Turns(asyncio.get_running_loop()), Helper()
        lag = LoopLag(clock, served.note_lag)
        watch_process(families.registry, turns, lag, access, recorder)
        lag.start()
        if shared is not None:
            shared.answer = partial(answer_alone, served, lag, families.registry)
        provoked = SparseLog(own_log, clock, burst=BURST_LINES)
        app[SERVICES] = Services(
            config=config,
            models=served,
            access=access,
            families=families,
            metrics=ServeMetrics(families, model=""),
            turns=turns,
            helper=helper,
            lag=lag,
            status=ServerStatus(access.client, served),
            clock=clock,
            log=own_log,
            provoked=provoked,
            uploads=Uploads(config.limits.max_upload_bytes, families, provoked),
            tracer=tracer,
            recorder=recorder,
        )
        app[SERVICES].canary, app[SERVICES].agents, app[SERVICES].peers = router, agents, peers
        watching = asyncio.create_task(watch_keys(access, app[SERVICES].calls))
        asking = asyncio.create_task(check_text_models(agents, own_log))
        yield
        watching.cancel()
        asking.cancel()
        if peers is not None:
            await peers.close()
        for agent in agents.values():
            await agent.text_model.close()
        if router is not None:
            router.close()
        lag.close()
        helper.close()
        if recorder is not None:
            recorder.close()
        access.usage.close()

    app.cleanup_ctx.append(services)
    app.on_shutdown.append(_close_sockets)
    if config.allow_origin:
        app.on_response_prepare.append(readable(config.allow_origin))
    add_routes(app, ROUTES, AGENT_ROUTES)
    add_hang_up(app)
    add_question(app, "/healthz", healthz, open_as="health")
    add_question(app, "/health", healthz, open_as="health")
    add_question(app, "/readyz", readyz, open_as="health")
    add_question(app, "/metrics", http.metrics, open_as="metrics")
    add_question(app, "/api/build_info", http.build_info, without_key=http.product)
    add_question(app, "/api/modules_info", http.modules_info)
    add_question(app, "/api/models", http.list_models)
    add_question(app, "/v1/models", openai_models.list_models)
    add_question(app, "/v1/audio/models", openai_models.list_models)
    add_question(app, openai_models.MODEL_PATH, openai_models.one_model)
    add_question(app, "/v1/audio/voices", openai_models.list_voices)
    add_question(app, "/v1/audio/speech/voices", openai_models.list_voices)
    add_question(app, "/v1/voices", list_voices)
    add_question(app, f"{unmute.BASE}/voices", unmute.list_voices)
    add_question(app, f"{unmute.BASE}/health", unmute.health, open_as="health")
    secret = config.hand_over_secret and SharedSecret.read(Path(config.hand_over_secret))
    if secret:
        add_hand_over(app, secret)
    add_canary(app, secret or None)
    _add_page(app, page or web_root())
    return app


def make_runner(app: web.Application, **options: Any) -> web.AppRunner:
    """The runner of an application of :func:`build_app`; ``options`` are options of aiohttp.

    There is no access log, because it would contain query strings.
    """
    return web.AppRunner(
        app,
        access_log=None,
        logger=app[FAULTS].logger(),
        handle_signals=False,
        keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        **options,
    )


def _add_page(app: web.Application, root: Path | None) -> None:
    if root is None:
        return
    files = StaticFiles(root)

    async def handle(request: web.Request) -> web.Response:
        access = request.app[SERVICES].access
        if not access.is_open("page"):
            try:
                access.identify(request)
            except web.HTTPUnauthorized:
                if "text/html" not in request.headers.get("Accept", ""):
                    raise
                return key_form(request, "This server requires an access key.")
        return await files.handle(request)

    async def take_key(request: web.Request) -> web.Response:
        access = request.app[SERVICES].access
        if access.is_open("page"):
            raise web.HTTPMethodNotAllowed("POST", ("GET", "HEAD"))
        body = await read_small(request, request.app[SERVICES], MAX_FORM_BYTES)
        key = dict(parse_qsl(body.decode("utf-8", "replace"))).get("key", "")
        if not access.knows(key.strip()):
            return key_form(request, "This key is not known here.")
        raise keep_key(request, key.strip())

    app.router.add_get("/{path:.*}", handle)
    app.router.add_post("/", take_key)


async def close_calls(app: web.Application, error: AntiphonError) -> None:
    """End every conversation with an error, all at once, and wait until they have ended.

    Connections between two calls, and connections with an agent's answer to a text, get the error too, but
    are not waited for.
    """
    for socket in app[SERVICES].waiting:
        socket.interrupt(error)
    calls = tuple(app[SERVICES].calls)
    for call in calls:
        call.end(error)
    # One call that fails to end must not block the others, or the process; its own task has logged the error.
    await asyncio.gather(*(call.closed() for call in calls), return_exceptions=True)


async def _close_sockets(app: web.Application) -> None:
    await close_calls(app, DrainingError("the server is shutting down"))


@web.middleware
async def _no_sniffing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Make browsers use the content type of a response as it is."""
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.headers.setdefault("X-Content-Type-Options", "nosniff")
        raise
    if not response.prepared:
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response
