"""``antiphon serve``: configuration, engine, application, signals, and the exit code.

Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 70 when the device was lost, 2 for a configuration that cannot
be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon import __version__
from antiphon.backends.base import Backend, Progress
from antiphon.backends.registry import make_backend, resolve_auto
from antiphon.config import AUTO, ServerConfig
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.sizing import BackendFactory
from antiphon.engine.trace import Tracer
from antiphon.errors import ConfigError
from antiphon.log import Log, set_up_logging
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.serve.agent import agent
from antiphon.serve.app import build_app
from antiphon.serve.lifecycle import Lifecycle
from antiphon.serve.metrics import ServeMetrics
from antiphon.serve.options import parse_command_line

KEEPALIVE_TIMEOUT_S = 15.0
"""For a connection that sends no request, and between two requests."""

ENGINE_STOP_TIMEOUT_S = 10.0


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
    checkpoint = load_checkpoint(config.model)
    metrics = EngineMetrics(CollectorRegistry(), model=checkpoint.spec.name)
    tracer = Tracer(config.trace) if config.trace else None
    lifecycle = Lifecycle(config.limits)
    engine = Engine(
        backend_factory(config, checkpoint),
        config.engine,
        metrics=metrics,
        on_lost=lifecycle.device_lost,
        tracer=tracer,
    )
    engine.start(_progress(sys.stderr.isatty()))
    # A full collection walks every object there is: with torch loaded 170 ms, two frames late. What is here
    # now stays anyway.
    gc.collect()
    gc.freeze()
    with _saved_trace(tracer, Path(config.trace_file)):
        try:
            return asyncio.run(_serve(engine, checkpoint, config, metrics, lifecycle, tracer))
        finally:
            engine.stop(0.0 if lifecycle.is_lost else ENGINE_STOP_TIMEOUT_S)


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


def backend_factory(config: ServerConfig, checkpoint: Checkpoint) -> BackendFactory:
    """What makes the configured backend with a number of slots.

    Raises:
        ConfigError: no such backend, or an option that is not NAME=VALUE.
        MissingExtraError: nothing installed can run the model.
    """
    name = resolve_auto(checkpoint) if config.backend == AUTO else config.backend
    chosen: dict[str, Any] = {}
    if name == "null":
        chosen = {"step_ms": config.null_step_ms, "hold_gil": config.null_hold_gil}
    chosen |= dict(map(parse_backend_option, config.backend_option))

    def make(slots: int) -> Backend:
        return make_backend(name, checkpoint, slots=slots, device=config.device, options=chosen)

    return make


def parse_backend_option(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` with a number, true, false, or any other word as the value.

    Raises:
        ConfigError: no '='.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"backend_option = {text!r} is not NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


async def _serve(
    engine: Engine,
    checkpoint: Checkpoint,
    config: ServerConfig,
    metrics: EngineMetrics,
    lifecycle: Lifecycle,
    tracer: Tracer | None,
) -> int:
    serve_metrics = ServeMetrics(metrics.registry, model=checkpoint.spec.name)
    app = build_app(engine, checkpoint, config, serve_metrics, tracer=tracer)
    runner = web.AppRunner(
        app,
        access_log=None,  # it would write query strings
        handle_signals=False,
        keepalive_timeout=KEEPALIVE_TIMEOUT_S,
        shutdown_timeout=2 * config.limits.close_timeout_s,
    )
    await runner.setup()
    port = config.agent_port
    try:
        async with agent(config.host, port, engine.health) if port else contextlib.nullcontext():
            await _listen(runner, config)
            lifecycle.watch(app, engine)
            print(banner(engine, checkpoint, config, runner), flush=True)  # noqa: T201
            return await lifecycle.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: ServerConfig) -> None:
    site = web.TCPSite(
        runner, config.host, config.port, ssl_context=tls_context(config.tls_cert, config.tls_key)
    )
    try:
        await site.start()
    except socket.gaierror as error:
        raise ConfigError(
            f"cannot listen on {config.host}: {error.strerror}; choose an address of this machine with --host"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}; choose another with --port"
        ) from error


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


def banner(engine: Engine, checkpoint: Checkpoint, config: ServerConfig, runner: web.AppRunner) -> str:
    """What stands in the terminal once callers can come."""
    info = engine.info
    scheme = "https" if config.tls_cert else "http"
    port = runner.addresses[0][1]
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(config.host, config.host)
    shown = f"[{host}]" if ":" in host else host
    return (
        f"antiphon {__version__}: {info.spec.name} ({info.kind}, {checkpoint.spec.parameters:,} parameters) "
        f"on {info.name}/{info.device}, {info.slots} slots\n"
        f"{scheme}://{shown}:{port}   Ctrl-C stops"
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
