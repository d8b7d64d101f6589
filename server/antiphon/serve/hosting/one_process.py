"""A server in one process: engines and the front end are tasks, and their messages remain objects."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from prometheus_client import CollectorRegistry

from antiphon.config import ServerConfig
from antiphon.engine.front_ends import LocalFrontEnd
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError
from antiphon.ipc.client_context import Loop
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.health import Health, together
from antiphon.ipc.message_socket import Handle, local_pair
from antiphon.metrics import MetricFamilies
from antiphon.serve.access.callers import Access
from antiphon.serve.hosting.engine_process import Engines, report_loss
from antiphon.serve.hosting.engines import RunningEngine, running_engines, show_progress
from antiphon.serve.hosting.event_loop import run
from antiphon.serve.hosting.front_end import FrontEnd
from antiphon.serve.hosting.ports import bound_ports
from antiphon.serve.hosting.processes import make_plan, supervise
from antiphon.serve.hosting.served import ServedModel, serve_model
from antiphon.serve.operator.otel import make_tracer
from antiphon.supervisor.children import Child, LocalTask
from antiphon.supervisor.messages import Message
from antiphon.supervisor.supervisor import Supervisor


def serve(config: ServerConfig) -> int:
    """Serve until a signal ends it or the server cannot continue; returns the exit code.

    Raises:
        AntiphonError: the server cannot start.
    """
    # The event loop releases the interpreter in every system call, and waits this long to get it back from an
    # engine thread that runs Python code.
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    access = Access(config)  # before the models, which take long to load
    families, lost = MetricFamilies(CollectorRegistry()), Future[AntiphonError]()
    tracer, progress = make_tracer(config), show_progress(sys.stderr.isatty())
    on_lost = partial(report_loss, lost)
    engines = running_engines(config, families, on_lost=on_lost, tracer=tracer, progress=progress)
    with bound_ports(config) as listeners, engines as running:
        return run(_serve(running, config, families, listeners, access, tracer, lost))


async def _serve(
    running: Sequence[RunningEngine],
    config: ServerConfig,
    families: MetricFamilies,
    listeners: Sequence[socket.socket],
    access: Access,
    tracer: Tracer | None,
    lost: Future[AntiphonError],
) -> int:
    (engine_end, to_engine), (front_end_end, to_front_end) = local_pair(), local_pair()
    engines = Engines(engine_end.connect, running, families, tracer, lost, is_alone=True)
    front_end = FrontEnd(front_end_end.connect, config, families, access=access, tracer=tracer)

    async def start_engine(_number: int, handle: Handle[Message]) -> Child:
        return Child("engine", LocalTask(engines.run(), engines.peer), to_engine.connect, handle)

    async def start_front_end(_number: int, handle: Handle[Message]) -> Child:
        work = front_end.run(serve_here(running, families, asyncio.get_running_loop()))
        return Child("front-end", LocalTask(work, front_end.peer), to_front_end.connect, handle)

    async def health() -> Health:
        healths = {each.name: each.engine.health() for each in running}
        return together(healths, needs_all=bool(config.served_agents))

    def begin_front_end(_number: int, _child: Child, _engines: Sequence[Child]) -> None:
        """Do nothing: its task has begun with the links of ``serve_here``."""

    starts = start_engine, start_front_end, begin_front_end
    plan = make_plan(config, 0, listeners, *starts, families)
    return await supervise(Supervisor(plan), config, health)


def serve_here(running: Sequence[RunningEngine], families: MetricFamilies, loop: Loop) -> list[ServedModel]:
    """Serve engines of this process as the models of its conversations, on an event loop."""
    ports = LocalFrontEnd({each.name: each.engine for each in running}, loop).client.engines
    return [
        serve_model(each.config, each.name, each.checkpoint, EngineGroup([ports[each.name]]), families)
        for each in running
    ]
