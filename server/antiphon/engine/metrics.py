"""The engine's metrics for Prometheus, on a registry that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from antiphon import __version__
from antiphon.backends.base import BackendInfo
from antiphon.engine.decisions import AdmissionOutcome
from antiphon.engine.histogram import ArrayHistogram, ArrayHistogramFamily

M = TypeVar("M", Counter, Gauge, ArrayHistogramFamily)

# Fine around 40 ms, where a tick stops fitting twice into a frame, and around 80 ms, where a frame is late.
FRAME_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.075),
    *(0.08, 0.085, 0.09, 0.1, 0.12, 0.16, 0.24, 0.4, 0.8, 1.6, 5.0),
)
STAGE_BUCKETS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.16,
)
FIRST_AUDIO_BUCKETS_S: Final = (
    0.05,
    0.08,
    0.1,
    0.16,
    0.2,
    0.24,
    0.32,
    0.4,
    0.5,
    0.64,
    0.8,
    1.0,
    1.6,
    3.0,
    10.0,
)
SESSION_BUCKETS_S: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
RESUMPTIONS: Final = ("resumed", "unknown", "expired", "replaced", "draining", "moved")
HAND_OVERS: Final = ("sent", "failed", "taken", "refused")
ROW_BUCKETS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)


class MetricFamilies:
    """The metrics of one registry by name, each made once however many models report in it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register on ``registry``."""
        self.registry = registry
        self._made: dict[str, Any] = {}

    def get(self, kind: type[M], name: str, help_text: str, labels: Sequence[str], **more: Any) -> M:
        """The metric ``antiphon_<name>``, made when it is first asked for."""
        made: M | None = self._made.get(name)
        if made is None:
            made = kind(f"antiphon_{name}", help_text, labels, registry=self.registry, **more)
            self._made[name] = made
        return made


class EngineMetrics:
    """Every number of the engine, each with the label ``model``.

    The attributes are children with the label bound already, so that recording costs one call. Gauges
    are asked for their value when somebody reads them. Engines of one process share ``MetricFamilies``.
    """

    def __init__(self, registry: CollectorRegistry | MetricFamilies, *, model: str) -> None:
        """Register everything, under the label ``model``."""
        self.families = registry if isinstance(registry, MetricFamilies) else MetricFamilies(registry)
        self.registry = self.families.registry
        self._model = model
        seconds = self._histogram
        self.tick_seconds = seconds("tick_seconds", "Time of one backend step.", FRAME_BUCKETS_S)
        self.frame_latency_seconds = self._histogram(
            "frame_latency_seconds",
            "From an input frame's last sample to its reply handed to the socket.",
            FRAME_BUCKETS_S,
        )
        self.frame_wait_seconds = self._histogram(
            "frame_wait_seconds",
            "From an input frame's last sample to the step that takes it.",
            FRAME_BUCKETS_S,
        )
        self.first_audio_seconds = seconds(
            "first_audio_seconds",
            "From a session's first whole input frame to its first audio handed to the socket.",
            FIRST_AUDIO_BUCKETS_S,
        )
        self.session_seconds = seconds("session_seconds", "How long sessions owned a row.", SESSION_BUCKETS_S)
        self.batch_rows = seconds("batch_rows", "Sessions that took part in a tick.", ROW_BUCKETS)
        self.physical_rows = seconds(
            "physical_rows", "Rows the backend computed in a tick, idle ones included.", ROW_BUCKETS
        )
        self._stage_seconds = self.families.get(
            ArrayHistogramFamily,
            "stage_seconds",
            "Time of each stage of a tick.",
            ("model", "stage"),
            buckets=STAGE_BUCKETS_S,
        )
        self.frames_taken = self._counter("frames_taken", "Input frames that took part in a tick.")
        self.padding_frames = self._counter(
            "padding_frames", "Frames of flush padding to bring markers back (stt)."
        )
        self.replies = self._counter("replies", "Replies queued for a socket.")
        self.late_frames = self._counter("late_frames", "Frames whose latency was over one frame's length.")
        self.lost_frames = self._counter(
            "lost_frames", "Frames taken by the model that have no reply, against design."
        )
        self.failed_steps = self._counter("failed_steps", "Steps that failed for some rows.")
        self.abandoned = self._counter("abandoned_sessions", "Sessions that ended with their front end.")
        dropped = self._counter_by(
            "direction",
            ("in", "out"),
            "dropped_frames",
            "Frames dropped because a queue was full: in, before the model; out, before the client.",
        )
        self.dropped_in, self.dropped_out = dropped.labels(model, "in"), dropped.labels(model, "out")
        self._admissions = self._counter_by(
            "outcome",
            [outcome.value for outcome in AdmissionOutcome],
            "admissions",
            "Admission decisions by outcome.",
        )
        self._resumptions = self._counter_by(
            "outcome", RESUMPTIONS, "resumptions", "Connections that asked to resume a call, by outcome."
        )
        self._hand_overs = self._counter_by(
            "outcome",
            HAND_OVERS,
            "hand_overs",
            "Calls handed over to another worker, or taken from one, by outcome.",
        )
        self._prompts = self._counter_by(
            "how",
            ("computed", "copied"),
            "prompts",
            "Prompts given to sessions: computed, or copied from an earlier session's row.",
        )
        self._stages: dict[str, ArrayHistogram] = {}

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge ``antiphon_<name>`` that calls ``read`` whenever it is asked."""
        self.families.get(Gauge, name, help_text, ("model",)).labels(self._model).set_function(read)

    def facts(self, info: BackendInfo) -> None:
        """Say what runs, and what memory it takes by purpose."""
        labels = {
            "model": self._model,
            "kind": info.spec.kind.value,
            "backend": info.name,
            "device": info.device,
            "dtype": info.dtype,
            "quantization": info.quantization,
            "version": __version__,
        }
        self.families.get(Gauge, "model_info", "What runs here; always 1.", tuple(labels)).labels(
            **labels
        ).set(1)
        memory = self.families.get(
            Gauge,
            "model_memory_bytes",
            "Memory by purpose: weights; state_per_row, above all keys and values; total, of the device.",
            ("model", "purpose"),
        )
        for purpose, size in info.memory.items():
            memory.labels(self._model, purpose).set(size)

    def admission(self, outcome: AdmissionOutcome) -> None:
        """Count one admission decision."""
        self._admissions.labels(self._model, outcome.value).inc()

    def resumption(self, outcome: str) -> None:
        """Count a connection that asked to resume a call."""
        self._resumptions.labels(self._model, outcome).inc()

    def hand_over(self, outcome: str) -> None:
        """Count a call that was to change its worker."""
        self._hand_overs.labels(self._model, outcome).inc()

    def prompt(self, *, is_copied: bool) -> None:
        """Count a prompt that was read."""
        self._prompts.labels(self._model, "copied" if is_copied else "computed").inc()

    def stages(self, stage_ms: Mapping[str, float]) -> None:
        """Record the stages a backend reports for one tick, in milliseconds."""
        for stage, milliseconds in stage_ms.items():
            self.stage(stage, milliseconds / 1000.0)

    def stage(self, stage: str, seconds: float) -> None:
        """Record one stage of a tick. Only the engine thread calls it."""
        child = self._stages.get(stage)
        if child is None:
            child = self._stages[stage] = self._stage_seconds.labels(self._model, stage)
        child.observe(seconds)

    def _counter(self, name: str, help_text: str) -> Counter:
        return self.families.get(Counter, name, help_text, ("model",)).labels(self._model)

    def _counter_by(self, label: str, values: Sequence[str], name: str, help_text: str) -> Counter:
        """A counter by one more label, each of whose values reads 0 from the start."""
        counter = self.families.get(Counter, name, help_text, ("model", label))
        for value in values:
            counter.labels(self._model, value)
        return counter

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> ArrayHistogram:
        family = self.families.get(ArrayHistogramFamily, name, help_text, ("model",), buckets=buckets)
        return family.labels(self._model)
