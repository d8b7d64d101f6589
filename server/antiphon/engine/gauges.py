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
    for name, what, read in (
        ("active_sessions", "Sessions that own a row.", load_of("active")),
        ("queued_sessions", "Callers that wait for a row.", load_of("queued")),
        ("slots", "Rows there are.", load_of("slots")),
        (
            "detached_sessions",
            "Sessions whose row waits for another connection of their caller.",
            lambda: float(resuming.detached),
        ),
        ("admitting", "1 when a caller who came now would be admitted at once.", load_of("is_admitting")),
        (
            "input_queue_frames",
            "Whole input frames waiting for the model, all sessions together.",
            rows.waiting_frames,
        ),
        (
            "output_queue_frames",
            "Replies waiting for their sockets, all sessions together.",
            rows.waiting_replies,
        ),
        ("state_bytes", "Model state of all rows: keys and values above all.", lambda: state_bytes),
    ):
        metrics.gauge(name, what, read)
