"""Makes the tracers that the configuration requests, including tracers for OpenTelemetry."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon.config import ServerConfig
from antiphon.engine.trace import Span, Tracer
from antiphon.errors import ConfigError, MissingExtraError
from antiphon.supervisor.messages import Body

MAX_FOLLOWING = 1024
"""Maximum number of spans of other threads that are kept for one tick: decoding, encoding and sending for
some hundred sessions.
"""

ENGINE_TRACKS = frozenset({"engine", "backend"})


class OtelTracer(Tracer):
    """A tracer without an end, which exports one of every ``every`` ticks; thread-safe.

    ``exporter`` is an OpenTelemetry span exporter, ``clock`` the clock of the engine.
    """

    def __init__(
        self,
        every: int,
        exporter: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        has_ticks: bool = True,
    ) -> None:
        """Start exporting in the background; a process without ticks exports one span of ``every``.

        Raises:
            MissingExtraError: the OpenTelemetry SDK is not installed.
        """
        super().__init__(1)
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingExtraError("tracing", extra="otel", module="opentelemetry") from error
        self._provider = TracerProvider(resource=Resource.create({"service.name": "antiphon"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._otel = self._provider.get_tracer("antiphon")
        self._in_span = trace.set_span_in_context
        self._every = every
        self._zero_ns = wall_ns() - round(clock() * 1e9)
        self._tick = 0
        self._has_ticks, self._spans_apart = has_ticks, 0
        self._gathered: list[Span] = []
        self._parent: Any = None
        self._following = 0
        self._guard = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Always true: ticks select what is exported."""
        return True

    def span(self, name: str, start_s: float, end_s: float, *, track: str, **details: Any) -> None:
        """Export the span if it belongs to a selected tick or follows one; in a process without ticks, export
        one span of every ``every``.
        """
        span = Span(name, track, start_s, end_s, details)
        with self._guard:
            if track in ENGINE_TRACKS:
                if self._tick % self._every == 0:
                    self._gathered.append(span)
            elif not self._has_ticks:
                self._spans_apart += 1
                if self._spans_apart % self._every == 1 or self._every == 1:
                    self._export(span, None)
            elif self._parent is not None and self._following < MAX_FOLLOWING:
                self._following += 1
                self._export(span, self._parent)

    def end_tick(self) -> None:
        """Export the finished tick, if selected; its replies are sent from now on."""
        with self._guard:
            gathered, self._gathered = self._gathered, []
            self._tick += 1
            self._parent, self._following = None, 0
            if gathered:
                self._export_tick(gathered)

    def close(self) -> None:
        """Export the kept spans."""
        self._provider.shutdown()

    def _export_tick(self, spans: list[Span]) -> None:
        start_s, end_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
        root = Span("tick", "engine", start_s, end_s, {"tick": self._tick - 1})
        self._parent = self._export(root, None)
        step = self._parent
        for span in spans:
            context = self._export(span, step if span.track == "backend" else self._parent)
            if span.name == "step":
                step = context

    def _export(self, span: Span, parent: Any) -> Any:
        attributes = {f"antiphon.{name}": value for name, value in span.details.items()}
        exported = self._otel.start_span(
            span.name,
            context=parent,
            start_time=self._wall(span.start_s),
            attributes={**attributes, "thread.name": span.track},
        )
        exported.end(self._wall(span.end_s))
        return self._in_span(exported)

    def _wall(self, at_s: float) -> int:
        return self._zero_ns + round(at_s * 1e9)


def otlp_exporter() -> Any:
    """The exporter over HTTP that the variables ``OTEL_EXPORTER_OTLP_*`` configure.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise MissingExtraError("tracing", extra="otel", module="opentelemetry.exporter.otlp") from error
    return OTLPSpanExporter()


def make_tracer(config: ServerConfig, *, has_ticks: bool = True) -> Tracer | None:
    """The tracer of the configuration, if any; a process of conversations has no ticks.

    Raises:
        ConfigError: both kinds of trace are requested. MissingExtraError: OpenTelemetry is not installed.
    """
    if config.trace and config.otel_every:
        raise ConfigError(f"trace = {config.trace} and otel_every = {config.otel_every}: use one of them")
    if config.otel_every:
        return OtelTracer(config.otel_every, otlp_exporter(), has_ticks=has_ticks)
    return Tracer(config.trace) if config.trace else None


async def trace_of(tracer: Tracer | None) -> Body:
    """The spans of one process, for a trace of all processes. A thread encodes them, because calls continue
    meanwhile.
    """
    if tracer is None:
        return Body(b"")
    return Body(await asyncio.to_thread(lambda: tracer.to_json(is_relative=False).encode()))
