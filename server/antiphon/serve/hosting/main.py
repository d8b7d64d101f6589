"""``antiphon serve``: configuration, engines, application, signals, and the exit code.

Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 70 when the device was lost, 2 for a configuration that cannot
be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon import __version__
from antiphon.backends.base import Progress
from antiphon.config import ServerConfig
from antiphon.engine.metrics import Families
from antiphon.engine.trace import Tracer
from antiphon.errors import ConfigError
from antiphon.log import Log, set_up_logging
from antiphon.serve.access.callers import Access
from antiphon.serve.hosting.app import FAULTS, build_app, make_runner
from antiphon.serve.hosting.engines import running_models
from antiphon.serve.hosting.lifecycle import Lifecycle
from antiphon.serve.hosting.options import parse_command_line
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.operator.agent import agent
from antiphon.serve.operator.otel import OtelTracer, otlp_exporter
from antiphon.serve.transport.address import cannot_listen, check_address
from antiphon.serve.transport.connection_faults import ConnectionFaults
from antiphon.serve.transport.listening import Site
from antiphon.serve.transport.loop import run
from antiphon.serve.transport.open_files import raise_open_file_limit

KEEPALIVE_TIMEOUT_S = 15.0
"""For a connection that sends no request, and between two requests."""


def main(argv: Sequence[str]) -> int:
    """Serve until a signal or a lost device ends it; returns the exit code.

    Raises:
        AntiphonError: the server cannot start.
    """
    config = parse_command_line(argv)
    set_up_logging(config.log_level)
    # The event loop gives the interpreter away in every system call and must wait this long to get it back
    # from a codec thread that computes in Python.
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    raise_open_file_limit()
    access = Access(config)  # before the models, which take their time
    check_address(config.host, config.port)
    families = Families(CollectorRegistry())
    tracer = make_tracer(config)
    lifecycle = Lifecycle(config.limits)
    progress = _progress(sys.stderr.isatty())
    with running_models(
        config, families, on_lost=lifecycle.device_lost, tracer=tracer, progress=progress
    ) as models:
        # A full collection walks every object there is: with torch loaded 170 ms, two frames late. What is
        # here now stays anyway.
        gc.collect()
        gc.freeze()
        app = build_app(models, config, families, access=access, tracer=tracer)
        with _saved_trace(tracer if config.trace else None, Path(config.trace_file)):
            return run(_serve(app, models, config, lifecycle))


def make_tracer(config: ServerConfig) -> Tracer | None:
    """What records where the time goes, if anything does.

    Raises:
        ConfigError: both kinds of trace at once.
        MissingExtraError: OpenTelemetry is not installed.
    """
    if config.trace and config.otel_every:
        raise ConfigError(
            f"trace = {config.trace} and otel_every = {config.otel_every}: one of them, not both at once"
        )
    if config.otel_every:
        return OtelTracer(config.otel_every, otlp_exporter())
    return Tracer(config.trace) if config.trace else None


@contextlib.contextmanager
def _saved_trace(tracer: Tracer | None, file: Path) -> Iterator[None]:
    """Write the trace as soon as it is complete, or at the end what there is of it."""
    if tracer is None:
        yield
        return

    def save() -> None:
        tracer.wait()
        tracer.save(file)
        Log().info("trace written", file=file)

    saver = threading.Thread(target=save, name="trace", daemon=True)
    saver.start()
    try:
        yield
    finally:
        if tracer.is_open:
            tracer.save(file)
        else:
            saver.join()


async def _serve(
    app: web.Application, models: Sequence[ServedModel], config: ServerConfig, lifecycle: Lifecycle
) -> int:
    asyncio.get_running_loop().set_exception_handler(app[FAULTS].handle)
    runner = make_runner(
        app,
        handle_signals=False,
        keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        shutdown_timeout=2 * config.limits.close_timeout_s,
    )
    await runner.setup()
    port = config.agent_port
    try:
        async with (
            agent(config.host, port, app[SERVICES].models.health) if port else contextlib.nullcontext()
        ):
            await _listen(runner, config, app[FAULTS])
            lifecycle.watch(app)
            print(banner(models, config, runner), flush=True)  # noqa: T201
            return await lifecycle.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: ServerConfig, faults: ConnectionFaults) -> None:
    tls = tls_context(config.tls_cert, config.tls_key)
    if tls is not None:
        faults.watch_tls(tls)
    site = Site(runner, config.host, config.port, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        raise cannot_listen(config.host, config.port, error) from error


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS for the two PEM files, or None without them.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot use {certificate} with {key}: {error}") from error
    return context


def banner(models: Sequence[ServedModel], config: ServerConfig, runner: web.AppRunner) -> str:
    """What stands in the terminal once callers can come."""
    scheme = "https" if config.tls_cert else "http"
    port = runner.addresses[0][1]
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(config.host, config.host)
    shown = f"[{host}]" if ":" in host else host
    lines = [f"antiphon {__version__}: {describe(model)}" for model in models]
    return "\n".join([*lines, f"{scheme}://{shown}:{port}   Ctrl-C stops"])


def describe(model: ServedModel) -> str:
    """One model in a line."""
    info = model.engine.info
    return (
        f"{model.name} ({info.kind}, {info.spec.parameters:,} parameters) "
        f"on {info.name}/{info.device}, {info.slots} slots"
    )


def _progress(is_terminal: bool) -> Progress:
    """Tells how far the warm-up is: on one line in a terminal, else in the log."""
    log = Log()

    def show(done: int, total: int, what: str) -> None:
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{what} {done}/{total}" + ("\n" if done == total else ""))
            sys.stderr.flush()
        elif done == total:
            log.info("warm", what=what, total=total)

    return show
