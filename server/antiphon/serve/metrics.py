"""What the socket side tells Prometheus; the engine's own numbers stand beside them on the same registry."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.serve.lanes import WorkerPool


class ServeMetrics:
    """Counters of refusals and closes, with the label ``model``."""

    def __init__(self, registry: CollectorRegistry, *, model: str) -> None:
        """Register on ``registry``."""
        self.registry = registry
        self._model = model
        self._refused = Counter(
            "antiphon_refused_requests",
            "Requests refused before the upgrade.",
            ("model", "status"),
            registry=registry,
        )
        self._closed = Counter(
            "antiphon_closed_sockets",
            "WebSockets closed, by close code.",
            ("model", "code"),
            registry=registry,
        )
        self.sockets = Gauge(
            "antiphon_open_sockets", "WebSockets open now.", ("model",), registry=registry
        ).labels(model)

    def refused(self, status: int) -> None:
        """Count a request refused with an HTTP status."""
        self._refused.labels(self._model, str(status)).inc()

    def closed(self, code: int | None) -> None:
        """Count a WebSocket that is over; None stands for 1006, gone without a word."""
        self._closed.labels(self._model, str(code or 1006)).inc()

    def watch(self, pool: WorkerPool) -> None:
        """Report how busy the codec threads and the loop's lanes are."""
        self.registry.register(_PoolCollector(pool, self._model))


class _PoolCollector(Collector):
    """Reads the workers' own counts when asked, so that counting costs them nothing."""

    def __init__(self, pool: WorkerPool, model: str) -> None:
        self._pool = pool
        self._model = model

    def collect(self) -> Iterable[Metric]:
        codec = CounterMetricFamily(
            "antiphon_codec_busy_seconds",
            "Time codec threads spent decoding and encoding.",
            labels=("model", "thread"),
        )
        for index, worker in enumerate(self._pool.threads):
            codec.add_metric((self._model, str(index)), worker.busy_s)
        yield codec
        loop = CounterMetricFamily(
            "antiphon_loop_busy_seconds", "Time the event loop spent on sessions' turns.", labels=("model",)
        )
        loop.add_metric((self._model,), self._pool.loop.busy_s)
        yield loop
