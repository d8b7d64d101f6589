"""Routing: which kinds of model answer on which path, and the checks before every handler.

A route is registered twice: under its own path, where ``?model=NAME`` or the default model of its kinds
answers, and under ``/m/NAME``. Before its handler is called, the origin is checked, the caller identified,
its session counted, and the model found.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import hdrs, web

from antiphon.errors import AntiphonError, SessionError, UnknownModelError
from antiphon.limits import Limits
from antiphon.models.spec import PipelineKind
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.security import check_origin
from antiphon.serve.calls.connect import Refusal as InWords
from antiphon.serve.calls.connect import upgrade_to_refuse
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import SERVICES, Services
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.routes.openai_errors import (
    DRAINING_RETRY_AFTER_S,
    STATUSES,
    api_error,
    is_openai,
)
from antiphon.serve.transport.upgrade import is_upgrade

Handler: TypeAlias = Callable[[web.Request, Services, ServedModel, Caller], Awaitable[web.StreamResponse]]
"""Handles a request to one model, until its session ends."""

Refusal: TypeAlias = Callable[
    [web.Request, Services, ServeMetrics, SessionError], Awaitable[web.StreamResponse]
]
"""Sends a client the reason for a refusal: unknown model, too many sessions, full or draining server."""

Answer: TypeAlias = Callable[[web.Request, Services, Sequence[ServedModel]], Awaitable[web.Response]]
"""Answers a query about one model, or about all of them."""

MODEL_PREFIX = "/m/{model}"

ELSEWHERE = "X-Antiphon-Elsewhere"
"""A header that a proxy in front of several workers sends. A caller that gets no row at once is then answered
with an HTTP status, which the proxy can read, even if the protocol has a message for this case or the
caller would wait.
"""

POST_WAIT_S = 100.0
"""Seconds that a recording or a text of a POST waits for a row, as with Kyutai's server."""


def post_wait_s(request: web.Request, limits: Limits) -> float:
    """Seconds that a POST waits for a row of this worker."""
    return 0.0 if ELSEWHERE in request.headers else min(POST_WAIT_S, limits.max_wait_s)


async def refuse_over_http(
    request: web.Request, _services: Services, _metrics: ServeMetrics, error: SessionError
) -> web.StreamResponse:
    """Refuse with an HTTP status, before any upgrade.

    Raises:
        web.HTTPException: always.
    """
    raise refusal_of(request, error)


def refuse_in(words: Callable[[web.Request], InWords | None]) -> Refusal:
    """Return a function that refuses a WebSocket with a message of its protocol, any other request with a
    status.
    """

    async def refuse(
        request: web.Request, services: Services, metrics: ServeMetrics, error: SessionError
    ) -> web.StreamResponse:
        told = words(request) if is_upgrade(request) else None
        if told is None:
            raise refusal_of(request, error)
        return await upgrade_to_refuse(request, services, metrics, error, told)

    return refuse


def never(_query: Mapping[str, str]) -> bool:
    """The test for routes on which a session never resumes a call."""
    return False


@dataclass(frozen=True, slots=True)
class Route:
    """One path of sessions, such as ``/api/chat``.

    ``refuse`` refuses the route's clients, also if the handler raises a SessionError before it has upgraded
    the connection. ``resumes`` tests a query for a session that resumes a call. ``has_agents``: a voice agent
    answers on the route under the agent's name, and the handler gets the agent's recogniser.
    ``shows_key_later``: a request may lack the key; its handler checks it before requesting a row.
    """

    method: str
    path: str
    handler: Handler
    refuse: Refusal = field(default=refuse_over_http)
    resumes: Callable[[Mapping[str, str]], bool] = field(default=never)
    has_agents: bool = False
    shows_key_later: bool = False


def kinds_of(route: Route, table: Mapping[PipelineKind, tuple[Route, ...]]) -> tuple[PipelineKind, ...]:
    """The kinds of model that answer on a route."""
    return tuple(kind for kind, routes in table.items() if route in routes)


def add_routes(
    app: web.Application, table: Mapping[PipelineKind, tuple[Route, ...]], of_agents: Sequence[Route] = ()
) -> None:
    """Register every route of a table of kinds, and the routes on which only agents answer.

    A route of several kinds is registered once for all of them.

    A GET of a path that supports only other methods is answered with 405. Otherwise the page, which answers
    every other GET, would report an unknown path.
    """
    methods: defaultdict[str, set[str]] = defaultdict(set)
    for route in dict.fromkeys(route for routes in (*table.values(), of_agents) for route in routes):
        methods[route.path].add(route.method)
        handle = _guarded(route, kinds_of(route, table))
        for path in (route.path, MODEL_PREFIX + route.path):
            for method in (
                (route.method, hdrs.METH_HEAD) if route.method == hdrs.METH_GET else (route.method,)
            ):
                app.router.add_route(method, path, handle)
    for own_path, allowed in methods.items():
        if hdrs.METH_GET not in allowed:
            for path in (own_path, MODEL_PREFIX + own_path):
                app.router.add_get(path, _not_by_get(sorted(allowed)))


def _not_by_get(allowed: Sequence[str]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return handle


def _guarded(
    route: Route, kinds: tuple[PipelineKind, ...]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        services = request.app[SERVICES]
        metrics = services.metrics
        is_logged = False
        try:
            check_origin(request, services.config.allow_origin)
            caller = services.access.identify(request, may_lack_key=route.shows_key_later)
            try:
                resumes = route.resumes(request.query)
                if resumes and services.links is not None:
                    answer = await services.links.pass_on(request)
                    if answer is not None:
                        services.provoked.info("connection was passed on", of="passed on", path=route.path)
                        return answer
                name = named_model(request)
                agent = services.agent_for(name, is_needed=not kinds) if route.has_agents else None
                if agent is None:
                    model = services.model_for(name, caller, kinds, resumes=resumes)
                else:
                    model = agent.stt
                metrics = model.metrics
                await services.access.admit(caller)
                # A resumed call counts at its former place until it is here.
                rows = services.models.rows
                async with services.access.ledger.hold(caller, rows=rows, extra=int(resumes)):
                    return await route.handler(request, services, model, caller)
            except SessionError as error:
                kind, is_logged = type(error).__name__, True
                services.provoked.info(
                    "session refused", of=kind, path=route.path, error=kind, reason=str(error)
                )
                if ELSEWHERE in request.headers:
                    raise refusal_of(request, error) from error
                return await route.refuse(request, services, metrics, error)
            except web.RequestPayloadError as error:
                raise web.HTTPBadRequest(text="the body does not match its headers\n") from error
        except web.HTTPException as refusal:
            metrics.refused(refusal.status)
            if not is_logged:
                # Its text may quote the query, so only the text of the status is logged.
                kind = type(refusal).__name__
                services.provoked.info(
                    "session refused", of=kind, path=route.path, error=kind, reason=refusal.reason
                )
            raise

    return handle


def add_question(
    app: web.Application,
    path: str,
    answer: Answer,
    *,
    open_as: str | None = None,
    without_key: Callable[[], web.Response] | None = None,
) -> None:
    """Register a GET about models: all models, or the model named by ``?model=`` or ``/m/NAME``.

    If keys are required, a request needs one, unless ``open_as`` is in the open paths; a caller without a key
    gets the answer ``without_key``.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        services = request.app[SERVICES]
        if without_key is not None and services.access.needs_key(request):
            return without_key()
        if open_as is None or not services.access.is_open(open_as):
            services.access.identify(request)
        name = named_model(request)
        try:
            models = tuple(services.models) if name is None else (services.models.find(name),)
        except UnknownModelError as error:
            raise refusal_of(request, error) from error
        return await answer(request, services, models)

    app.router.add_get(path, handle)
    app.router.add_get(MODEL_PREFIX + path, handle)


def named_model(request: web.Request) -> str | None:
    """The name in the path, or in ``?model=``; None if no name is given.

    Raises:
        web.HTTPBadRequest: both are given, and they differ.
    """
    in_path, in_query = request.match_info.get("model"), request.query.get("model") or None
    if in_path is not None and in_query not in (None, in_path):
        raise web.HTTPBadRequest(
            text=f"the path names {in_path!r} and the query {in_query!r}: which model?\n"
        )
    return in_path if in_path is not None else in_query


def refusal_of(request: web.Request, error: SessionError) -> web.HTTPException:
    """The refusal of a request: 404 for an unknown model or session, 429 for too many sessions, 503 for a
    full or draining server.

    The body is JSON, with the code that would close a WebSocket, and the names of the models; on OpenAI's
    paths the body has OpenAI's format. For a WebSocket request it is one line, because such clients show it.
    """
    if is_openai(request):
        return api_error(error).exception()
    form = wire_form(error)
    refusal = STATUSES[form.status]
    headers = {}
    if refusal is not web.HTTPNotFound:
        headers["Retry-After"] = str(error.retry_after_s or DRAINING_RETRY_AFTER_S)
    if hdrs.UPGRADE in request.headers:
        return refusal(text=f"{error}\n", headers=headers)
    models = {"models": list(error.known)} if isinstance(error, UnknownModelError) else {}
    text = json.dumps({"error": str(error), "code": form.close, **models}) + "\n"
    return refusal(text=text, headers=headers, content_type="application/json")


def plain_refusal(error: AntiphonError) -> web.HTTPException:
    """The status and text for a request that cannot be answered, outside of OpenAI's paths."""
    return STATUSES[wire_form(error).status](text=f"{error}\n")


async def check_room_here(request: web.Request, services: Services, model: ServedModel) -> None:
    """Check for a proxy that a caller of the named agent, or of the model, would get a row at once.

    A proxy can read a status, but not a message after the upgrade.

    Raises:
        ServerFullError, DrainingError, SessionFailedError: there is no row.
    """
    if ELSEWHERE in request.headers:
        agent = services.agent_for(named_model(request))
        await (model.engine.check_room(0.0) if agent is None else agent.check_room())


async def check_upgrade(request: web.Request, model: ServedModel, *, wait_s: float) -> None:
    """Refuse a request that is not for a WebSocket, after every other check, so that it gets the reason that
    a WebSocket would get.

    A browser does not show why an upgrade failed, so a page repeats the request as a plain GET and reads the
    reason.

    Raises:
        web.HTTPUpgradeRequired: the request is not for a WebSocket; a WebSocket request with ``wait_s`` would
        be accepted. ServerFullError, DrainingError, SessionFailedError: such a request would not be accepted.
    """
    if is_upgrade(request):
        return
    await model.engine.check_room(wait_s)
    raise web.HTTPUpgradeRequired(
        text="this is a WebSocket: connect with ws:// or wss://\n", headers={"Upgrade": "websocket"}
    )
