"""A server in one process: engines, application and sockets side by side."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.ipc.health import Health
from antiphon.log import Log
from antiphon.metrics import MetricFamilies
from antiphon.serve.access.callers import Access
from antiphon.serve.hosting.app import FAULTS, build_app, make_runner
from antiphon.serve.hosting.banner import banner
from antiphon.serve.hosting.connection_rules import connection_rules
from antiphon.serve.hosting.engines import RunningEngine, describe, running_engines, serve_here
from antiphon.serve.hosting.lifecycle import Lifecycle, reread_files
from antiphon.serve.hosting.ports import bound_ports, port_tls
from antiphon.serve.hosting.progress import show_progress
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.hosting.tracing import make_tracer, saved_trace
from antiphon.serve.operator.free_rows import free_rows_port
from antiphon.serve.transport.connection_faults import ConnectionFaults
from antiphon.serve.transport.loop import run
from antiphon.serve.transport.site import Site
from antiphon.serve.transport.tls import PortTls
from antiphon.supervisor.address import cannot_listen


def serve(config: ServerConfig) -> int:
    """Serve until a signal or a lost device ends it; returns the exit code.

    Raises:
        AntiphonError: the server cannot start.
    """
    # The event loop gives the interpreter away in every system call and must wait this long to get it back
    # from an engine's thread that computes in Python.
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    access = Access(config)  # before the models, which take their time
    families = MetricFamilies(CollectorRegistry())
    tracer = make_tracer(config)
    lifecycle = Lifecycle(config.limits)
    progress = show_progress(sys.stderr.isatty())
    engines = running_engines(
        config, families, on_lost=lifecycle.device_lost, tracer=tracer, progress=progress
    )
    with bound_ports(config) as listeners, engines as running:
        # A full collection walks every object there is: with torch loaded 170 ms, two frames late. What is
        # here now stays anyway.
        gc.collect()
        gc.freeze()
        with saved_trace(tracer if config.trace else None, Path(config.trace_file)):
            return run(_serve(running, config, lifecycle, families, listeners, access, tracer))


async def _serve(
    running: Sequence[RunningEngine],
    config: ServerConfig,
    lifecycle: Lifecycle,
    families: MetricFamilies,
    listeners: Sequence[socket.socket],
    access: Access,
    tracer: Tracer | None,
) -> int:
    models = serve_here(running, families, asyncio.get_running_loop())
    app = build_app(models, config, families, access=access, tracer=tracer)
    asyncio.get_running_loop().set_exception_handler(app[FAULTS].handle)
    runner = make_runner(app, shutdown_timeout=2 * config.limits.close_timeout_s)
    await runner.setup()
    port = config.free_rows_port
    try:
        async with (
            free_rows_port(config.host, port, partial(_health, app)) if port else contextlib.nullcontext()
        ):
            tls = port_tls(config)
            await _listen(runner, config, app[FAULTS], families, listeners, tls)
            lifecycle.watch(app)
            reread = partial(reread_files, config, app[SERVICES].access, tls, Log())
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reread)
            lines = [
                describe(each.name, each.engine.info, each.checkpoint, each.engine.note) for each in running
            ]
            print(banner(lines, config, runner.addresses[0][1]), flush=True)  # noqa: T201
            return await lifecycle.wait()
    finally:
        await runner.cleanup()


async def _health(app: web.Application) -> Health:
    return app[SERVICES].models.health()


async def _listen(
    runner: web.AppRunner,
    config: ServerConfig,
    faults: ConnectionFaults,
    families: MetricFamilies,
    listeners: Sequence[socket.socket],
    tls: PortTls,
) -> None:
    for context in tls.contexts:
        faults.watch_tls(context)
    rules = connection_rules(config, runner, families, now_s=asyncio.get_running_loop().time())
    site = Site(runner, listeners, tls=tls, rules=rules)
    try:
        await site.start()
    except OSError as error:
        raise cannot_listen(config.host, config.port, error) from error
