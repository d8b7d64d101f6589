"""The table of metrics: name, meaning and labels of each, and how values of several processes are joined.

:data:`METRICS` is the source of every exposition, of the sums over the processes of a server, and of
docs/metrics.md. To add a metric, write its row, and request it by name where it is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX: Final = "antiphon_"

M = TypeVar("M")


class MetricType(StrEnum):
    """Prometheus' type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """The rule for joining the values of several processes."""

    SUM = "sum"
    LARGEST = "largest"  # every process has the same value, or the worst one counts
    EARLIEST = "earliest"

    def joined(self, one: float, other: float) -> float:
        """Join the values of two processes."""
        match self:
            case Merge.SUM:
                return one + other
            case Merge.LARGEST:
                return max(one, other)
            case Merge.EARLIEST:
                return min(one, other)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric. The series for ``values`` of the last label exist from the start, with 0; ``buckets`` are
    upper bounds.
    """

    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = ()


def _counter(help_text: str, *labels: str, values: tuple[str, ...] = ()) -> MetricRow:
    return MetricRow(MetricType.COUNTER, help_text, labels, values)


def _gauge(help_text: str, *labels: str, merge: Merge = Merge.SUM) -> MetricRow:
    return MetricRow(MetricType.GAUGE, help_text, labels, merge=merge)


def _histogram(buckets: tuple[float, ...], help_text: str, *labels: str) -> MetricRow:
    return MetricRow(MetricType.HISTOGRAM, help_text, labels, buckets=buckets)


# Fine around 40 ms, where two ticks no longer fit into a frame, and around 80 ms, where a frame is late.
_FRAME_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.075),
    *(0.08, 0.085, 0.09, 0.1, 0.12, 0.16, 0.24, 0.4, 0.8, 1.6, 5.0),
)
_STAGE_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.16)
_FIRST_AUDIO_S: Final = (0.05, 0.08, 0.1, 0.16, 0.2, 0.24, 0.32, 0.4, 0.5, 0.64, 0.8, 1.0, 1.6, 3.0, 10.0)
_SESSION_S: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
_ROWS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)

METRICS: Final[Mapping[str, MetricRow]] = MappingProxyType(
    {
        # The engine.
        "tick_seconds": _histogram(_FRAME_S, "Time of one backend step.", "model"),
        "stage_seconds": _histogram(_STAGE_S, "Time of each stage of a tick.", "model", "stage"),
        "frame_latency_seconds": _histogram(
            _FRAME_S, "Time from an input frame's last sample to its reply written to the socket.", "model"
        ),
        "frame_wait_seconds": _histogram(
            _FRAME_S, "Time from an input frame's last sample to the step that takes it.", "model"
        ),
        "first_audio_seconds": _histogram(
            _FIRST_AUDIO_S,
            "Time from a session's first whole input frame to its first audio written to the socket.",
            "model",
        ),
        "session_seconds": _histogram(_SESSION_S, "Time for which sessions owned a row.", "model"),
        "batch_rows": _histogram(_ROWS, "Sessions that took part in a tick.", "model"),
        "physical_rows": _histogram(_ROWS, "Rows computed in a tick, including idle ones.", "model"),
        "frames_taken": _counter("Input frames that took part in a tick.", "model"),
        "padding_frames": _counter("Frames of flush padding to bring markers back (stt).", "model"),
        "replies": _counter("Replies queued for a socket.", "model"),
        "late_frames": _counter("Frames whose latency was over one frame's length.", "model"),
        "lost_frames": _counter("Frames processed without a reply because of a fault.", "model"),
        "dropped_frames": _counter(
            "Frames dropped because a queue was full: in, before the model; out, before the client.",
            "model",
            "direction",
            values=("in", "out"),
        ),
        "evicted_sessions": _counter(
            "Sessions ended because no page of keys and values was left (overcommit).", "model"
        ),
        "failed_steps": _counter("Steps that failed for some rows.", "model"),
        "abandoned_sessions": _counter("Sessions that ended with their front end.", "model"),
        "admissions": _counter(
            "Admission decisions by outcome.",
            "model",
            "outcome",
            values=("admitted", "queued", "promoted", "expired", "left", "full", "late", "draining"),
        ),
        "resumptions": _counter(
            "Connections that requested to resume a call, by outcome.",
            "model",
            "outcome",
            values=("resumed", "unknown", "expired", "replaced", "draining", "moved"),
        ),
        "hand_overs": _counter(
            "Calls handed over to another worker, or taken from one, by outcome.",
            "model",
            "outcome",
            values=("sent", "failed", "taken", "refused"),
        ),
        "prompts": _counter(
            "Prompts given to sessions: computed, or copied from an earlier session's row.",
            "model",
            "how",
            values=("computed", "copied"),
        ),
        "active_sessions": _gauge("Sessions that own a row.", "model"),
        "ring_pages": _gauge("Pages of keys and values that rows share (overcommit).", "model"),
        "ring_pages_free": _gauge("Pages of keys and values that no row has (overcommit).", "model"),
        "queued_sessions": _gauge("Callers that wait for a row.", "model"),
        "slots": _gauge("Rows in total.", "model"),
        "detached_sessions": _gauge(
            "Sessions whose row waits for another connection of their caller.", "model"
        ),
        "admitting": _gauge("1 while a new caller would be admitted at once.", "model"),
        "input_queue_frames": _gauge(
            "Whole input frames waiting for the model, all sessions together.", "model"
        ),
        "output_queue_frames": _gauge("Replies waiting for their sockets, all sessions together.", "model"),
        "state_bytes": _gauge("Model state of all rows, mostly keys and values.", "model"),
        "model_info": _gauge(
            "Model and backend of this engine; always 1.",
            "model",
            "kind",
            "backend",
            "device",
            "dtype",
            "quantization",
            "version",
            merge=Merge.LARGEST,
        ),
        "model_memory_bytes": _gauge(
            "Memory by purpose: weights; state_per_row, mostly rings; of a GPU tick_per_row and total too.",
            "model",
            "purpose",
        ),
        # Voice agents.
        "agent_text_seconds": _histogram(
            _FIRST_AUDIO_S, "Time from a request to the agent's text model to its first piece.", "agent"
        ),
        "agent_first_text_seconds": _histogram(
            _FIRST_AUDIO_S, "Time from the end of the caller's turn to the first text of its reply.", "agent"
        ),
        "agent_sound_seconds": _histogram(
            _FIRST_AUDIO_S, "Time from the end of the caller's turn to the agent's first sound.", "agent"
        ),
        "agent_flush_seconds": _histogram(
            _FIRST_AUDIO_S, "Time from a turn's last audio to its last word from the recogniser.", "agent"
        ),
        "agent_replies": _counter(
            "Replies of an agent by outcome: cut means at a limit of tokens.",
            "agent",
            "outcome",
            values=("completed", "interrupted", "cancelled", "cut", "failed"),
        ),
        "agent_tokens": _counter(
            "Tokens of an agent's text model: in, read; out, written.",
            "agent",
            "direction",
            values=("in", "out"),
        ),
        # Sockets and HTTP.
        "refused_requests": _counter("Requests refused before the upgrade.", "model", "status"),
        "closed_sockets": _counter("WebSockets and calls over TCP closed, by close code.", "model", "code"),
        "open_sockets": _gauge("Open WebSockets and TCP connections.", "model"),
        "failed_connections": _counter("Connections that failed because of their peer.", "kind"),
        "turned_away_connections": _counter(
            "Connections closed before they were served: the address reached a limit, or too many waited."
        ),
        "resource_shortages": _counter(
            "Failed attempts to get a file or memory from the system, for a request or a waiting connection."
        ),
        "spooled_upload_bytes": _gauge("Bytes on disk of recordings sent by POST."),
        "spool_refusals": _counter("Recordings refused for lack of disk space."),
        "key_sessions": _gauge(
            "Current sessions of each API key, by its name; empty unless protect has metrics.", "key"
        ),
        "recording_left_out_pieces": _counter(
            "Pieces of audio missing from recordings because the disk was too slow."
        ),
        "failed_recordings": _counter("Recording files abandoned after a write error."),
        # Processes.
        "loop_busy_seconds": _counter("Time the event loop spent on sessions' turns."),
        "loop_lag_seconds": _gauge(
            "Lag of the event loop: the largest value of the last 5 seconds.", merge=Merge.LARGEST
        ),
        "process_memory_bytes": _gauge("Resident memory of the server's process."),
        "memory_limit_bytes": _gauge(
            "Memory available to the process: the machine's, or its container's limit.", merge=Merge.LARGEST
        ),
        "device_memory_bytes": _gauge(
            "Memory of a GPU in use by all processes.", "device", merge=Merge.LARGEST
        ),
        "device_memory_limit_bytes": _gauge("Total memory of a GPU.", "device", merge=Merge.LARGEST),
        "front_ends": _gauge("Front-end processes that accept calls."),
        "front_end_connections": _gauge(
            "Active connections of a front end, including those in transit to it.", "front_end"
        ),
        "front_end_lag_seconds": _gauge("Lag of a front end's event loop.", "front_end"),
        "front_end_restarts": _counter("Front-end processes that ended and were replaced."),
        # A model on trial.
        "canary_calls": _counter("Calls compared after their end.", "arm"),
        "canary_phase": _gauge("1 for the phase of the canary.", "phase"),
        "canary_fault": _gauge("Mean of a signal, from 0 to 1 (faulty).", "arm", "signal"),
        "canary_evidence": _gauge(
            "Evidence against the canary, as a fraction of the threshold for its withdrawal.", "signal"
        ),
    }
)
"""The metrics by name, without the prefix ``antiphon_``."""

_OF_THE_PROCESS: Final[Mapping[str, Merge]] = MappingProxyType(
    {"process_max_fds": Merge.LARGEST, "process_start_time_seconds": Merge.EARLIEST}
)
"""Metrics of prometheus_client itself that are not summed."""


def merge_of(sample: str) -> Merge:
    """The rule for joining a sample of this name."""
    if sample.endswith("_created"):
        return Merge.EARLIEST
    row = METRICS.get(sample.removeprefix(PREFIX))
    return _OF_THE_PROCESS.get(sample, Merge.SUM) if row is None else row.merge


def read_family(name: str, value: float | None = None) -> CounterMetricFamily | GaugeMetricFamily:
    """The metric of this name for a collector, which makes it at each scrape; without ``value`` it has no
    samples yet.
    """
    row = METRICS[name]
    kind = CounterMetricFamily if row.type is MetricType.COUNTER else GaugeMetricFamily
    return kind(PREFIX + name, row.help, value=value, labels=None if value is not None else row.labels)


def make_metric(kind: Callable[..., M], name: str, registry: CollectorRegistry) -> M:
    """Make a metric of a class such as ``Counter`` and register it on ``registry``."""
    row = METRICS[name]
    buckets = {"buckets": row.buckets} if row.buckets else {}
    return kind(PREFIX + name, row.help, row.labels, registry=registry, **buckets)


class MetricFamilies:
    """The metrics of one registry by name, each made once for any number of models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register on ``registry``."""
        self.registry = registry
        self._made: dict[str, Any] = {}

    def get(self, kind: Callable[..., M], name: str) -> M:
        """The metric of this name, made on first use."""
        made: M | None = self._made.get(name)
        if made is None:
            made = self._made[name] = make_metric(kind, name, self.registry)
        return made
