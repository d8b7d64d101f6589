"""Prometheus metrics of the socket side; the engines' metrics are in the same registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.metrics import METRICS, MetricFamilies, read_family
from antiphon.serve.access.callers import Access
from antiphon.serve.hosting.event_loop import LoopLag
from antiphon.serve.hosting.turns import Turns
from antiphon.serve.media.recording import CallRecorder
from antiphon.serve.operator.memory_metrics import MemoryCollector

CLOSE_CODES: Final = frozenset(range(1000, 1016))
"""The close codes registered for all WebSockets. All other codes from peers share one label."""


class ServeMetrics:
    """Counters of refusals and closes, with the label ``model``, which is "" before a model is found."""

    def __init__(self, families: MetricFamilies, *, model: str) -> None:
        """Register under the label ``model``."""
        self._model = model
        self._refused = families.get(Counter, "refused_requests")
        self._closed = families.get(Counter, "closed_sockets")
        self.sockets = families.get(Gauge, "open_sockets").labels(model)

    def refused(self, status: int) -> None:
        """Count a request refused with an HTTP status."""
        self._refused.labels(self._model, str(status)).inc()

    def closed(self, code: int | None) -> None:
        """Count a closed WebSocket; None means 1006, a disconnect without a close."""
        code = code or 1006
        self._closed.labels(self._model, str(code) if code in CLOSE_CODES else "other").inc()


class AgentMetrics:
    """Counters and latencies of agents, with the label ``agent``."""

    def __init__(self, families: MetricFamilies, agent: str) -> None:
        """Register under the label ``agent``."""
        self._text = families.get(Histogram, "agent_text_seconds").labels(agent)
        self._first_text = families.get(Histogram, "agent_first_text_seconds").labels(agent)
        self._sound = families.get(Histogram, "agent_sound_seconds").labels(agent)
        self._flush = families.get(Histogram, "agent_flush_seconds").labels(agent)
        replies, tokens = families.get(Counter, "agent_replies"), families.get(Counter, "agent_tokens")
        self._replies = {it: replies.labels(agent, it) for it in METRICS["agent_replies"].values}
        self._tokens = {it: tokens.labels(agent, it) for it in METRICS["agent_tokens"].values}

    def record_last_word(self, seconds: float) -> None:
        """Record the delay of the recogniser's last word of a turn."""
        self._flush.observe(seconds)

    def record_first_token(self, seconds: float) -> None:
        """Record the delay of the text model's first token."""
        self._text.observe(seconds)

    def written(self, seconds: float) -> None:
        """Record the delay of a reply's first text."""
        self._first_text.observe(seconds)

    def sounded(self, seconds: float) -> None:
        """Record the delay of a reply's first sound."""
        self._sound.observe(seconds)

    def ended(self, outcome: str) -> None:
        """Count a finished reply."""
        self._replies[outcome].inc()

    def used(self, tokens_in: int, tokens_out: int) -> None:
        """Count tokens that the text model reported."""
        self._tokens["in"].inc(tokens_in)
        self._tokens["out"].inc(tokens_out)


def watch_process(
    registry: CollectorRegistry, turns: Turns, lag: LoopLag, access: Access, recorder: CallRecorder | None
) -> None:
    """Report values common to all models: memory, keys, recordings, and the event loop's load and lag."""
    registry.register(_ProcessCollector(turns, lag, access, recorder))
    ProcessCollector(registry=registry)  # processor time, open files and start time


class _ProcessCollector(Collector):
    """Reads the workers' own counts at a scrape, so that counting itself is free."""

    def __init__(self, turns: Turns, lag: LoopLag, access: Access, recorder: CallRecorder | None) -> None:
        self._turns, self._lag = turns, lag
        self._access = access
        self._recorder = recorder

    def collect(self) -> Iterable[Metric]:
        yield read_family("loop_busy_seconds", self._turns.busy_s)
        yield read_family("loop_lag_seconds", self._lag.worst_s)
        yield from MemoryCollector().collect()
        keys = read_family("key_sessions")
        if not self._access.is_open("metrics"):  # no key is named if the metrics are public
            for name, sessions in self._access.ledger.sessions_of_keys():
                keys.add_metric((name,), sessions)
        yield keys
        left_out, failed = (0, 0) if (it := self._recorder) is None else (it.left_out, it.failed_files)
        yield read_family("recording_left_out_pieces", left_out)
        yield read_family("failed_recordings", failed)
