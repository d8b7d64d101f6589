"""The gauges of one engine: they are read when a scrape asks."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.backends.base import Backend
from antiphon.engine.decisions import EngineLoad
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.resuming import Resuming
from antiphon.engine.rows import Rows


def add_gauges(
    metrics: EngineMetrics, backend: Backend, rows: Rows, resuming: Resuming, load: Callable[[], EngineLoad]
) -> None:
    """Let a scrape see what the engine holds now; on the engine thread, which alone may ask a backend."""

    def load_of(name: str) -> Callable[[], float]:
        return lambda: float(getattr(load(), name))

    state_bytes = backend.state_bytes()
    metrics.facts(backend.info)
    for name, read in (
        ("active_sessions", load_of("active")),
        ("queued_sessions", load_of("queued")),
        ("slots", load_of("slots")),
        ("detached_sessions", lambda: float(resuming.detached)),
        ("admitting", load_of("is_admitting")),
        ("input_queue_frames", rows.waiting_frames),
        ("output_queue_frames", rows.waiting_replies),
        ("state_bytes", lambda: state_bytes),
    ):
        metrics.gauge(name, read)
