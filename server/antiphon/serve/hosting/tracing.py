"""Traces that the configuration asks for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.serve.operator.otel import OtelTracer, otlp_exporter


def make_tracer(config: ServerConfig, *, has_ticks: bool = True) -> Tracer | None:
    """What records where the time goes, if anything does; a process of conversations has no ticks.

    Raises:
        ConfigError: both kinds of trace at once.
        MissingExtraError: OpenTelemetry is not installed.
    """
    if config.trace and config.otel_every:
        raise ConfigError(
            f"trace = {config.trace} and otel_every = {config.otel_every}: one of them, not both at once"
        )
    if config.otel_every:
        return OtelTracer(config.otel_every, otlp_exporter(), has_ticks=has_ticks)
    return Tracer(config.trace) if config.trace else None


@contextlib.contextmanager
def saved_trace(tracer: Tracer | None, file: Path) -> Iterator[None]:
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


def trace_of(tracer: Tracer | None) -> bytes:
    """What a process has recorded, for a trace of them all."""
    return b"" if tracer is None else tracer.to_json(is_relative=False).encode()
