"""Traces that the configuration asks for."""

from __future__ import annotations

from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.errors import ConfigError
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


def trace_of(tracer: Tracer | None) -> bytes:
    """What a process has recorded, for a trace of them all."""
    return b"" if tracer is None else tracer.to_json(is_relative=False).encode()
