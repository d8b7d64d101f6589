"""The engine's metrics for Prometheus, on a registry that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from antiphon import __version__
from antiphon.backends.base import BackendInfo
from antiphon.engine.decisions import AdmissionOutcome
from antiphon.engine.histogram import ArrayHistogram, ArrayHistogramFamily
from antiphon.metrics import METRICS, MetricFamilies


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
        self.tick_seconds = self._histogram("tick_seconds")
        self.frame_latency_seconds = self._histogram("frame_latency_seconds")
        self.frame_wait_seconds = self._histogram("frame_wait_seconds")
        self.first_audio_seconds = self._histogram("first_audio_seconds")
        self.session_seconds = self._histogram("session_seconds")
        self.batch_rows = self._histogram("batch_rows")
        self.physical_rows = self._histogram("physical_rows")
        self._stage_seconds = self.families.get(ArrayHistogramFamily, "stage_seconds")
        self.frames_taken = self._counter("frames_taken")
        self.padding_frames = self._counter("padding_frames")
        self.replies = self._counter("replies")
        self.late_frames = self._counter("late_frames")
        self.lost_frames = self._counter("lost_frames")
        self.failed_steps = self._counter("failed_steps")
        self.abandoned = self._counter("abandoned_sessions")
        dropped = self._counter_by("dropped_frames")
        self.dropped_in, self.dropped_out = dropped["in"], dropped["out"]
        self._admissions = self._counter_by("admissions")
        self._resumptions = self._counter_by("resumptions")
        self._hand_overs = self._counter_by("hand_overs")
        self._prompts = self._counter_by("prompts")
        self._stages: dict[str, ArrayHistogram] = {}

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Call ``read`` whenever a scrape asks for the gauge of this name."""
        self.families.get(Gauge, name).labels(self._model).set_function(read)

    def facts(self, info: BackendInfo) -> None:
        """Say what runs, and what memory it takes by purpose."""
        self.families.get(Gauge, "model_info").labels(
            model=self._model,
            kind=info.spec.kind.value,
            backend=info.name,
            device=info.device,
            dtype=info.dtype,
            quantization=info.quantization,
            version=__version__,
        ).set(1)
        memory = self.families.get(Gauge, "model_memory_bytes")
        for purpose, size in info.memory.items():
            memory.labels(self._model, purpose).set(size)

    def admission(self, outcome: AdmissionOutcome) -> None:
        """Count one admission decision."""
        self._admissions[outcome.value].inc()

    def resumption(self, outcome: str) -> None:
        """Count a connection that asked to resume a call."""
        self._resumptions[outcome].inc()

    def hand_over(self, outcome: str) -> None:
        """Count a call that was to change its worker."""
        self._hand_overs[outcome].inc()

    def prompt(self, *, is_copied: bool) -> None:
        """Count a prompt that was read."""
        self._prompts["copied" if is_copied else "computed"].inc()

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

    def _counter(self, name: str) -> Counter:
        return self.families.get(Counter, name).labels(self._model)

    def _counter_by(self, name: str) -> dict[str, Counter]:
        """A counter by one more label, each of whose values reads 0 from the start."""
        family = self.families.get(Counter, name)
        return {value: family.labels(self._model, value) for value in METRICS[name].values}

    def _histogram(self, name: str) -> ArrayHistogram:
        return self.families.get(ArrayHistogramFamily, name).labels(self._model)
