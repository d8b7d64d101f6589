"""An engine's metrics for Prometheus, and its count of recent late frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from antiphon import __version__
from antiphon.backends.base import BackendInfo
from antiphon.engine.config import EngineConfig
from antiphon.metrics import METRICS, MetricFamilies

CELLS = 10
"""Number of cells of the window; the oldest cell is dropped as a whole."""


HOST_FRESH_S = 2.0
"""Seconds for which a host's lag report is valid. A process that sends no newer report has been replaced."""


@dataclass(frozen=True, slots=True)
class LateCount:
    """The numbers of frames and of late frames in the window of recent frames."""

    frames: int
    late: int

    @property
    def fraction(self) -> float:
        """The fraction of late frames, 0 without frames."""
        return self.late / self.frames if self.frames else 0.0


class _HostLag(NamedTuple):
    """The last report of a host about its event loop."""

    lag_s: float
    reported_s: float


class _RunningStep(NamedTuple):
    """A step that is still running."""

    start_s: float
    rows: int
    frame_s: float

    def overdue_frames(self, now_s: float) -> int:
        return self.rows * max(0, int((now_s - self.start_s) / self.frame_s))


class LatePressure:
    """Counts frames on time and late, on the control thread; the engine thread records when a step begins and
    ends.

    Pressure becomes high when the window holds at least ``late_min_frames`` late frames and their fraction is
    above ``late_refuse_fraction``. It ends when the fraction is below ``late_admit_fraction``, or when the
    window holds fewer late frames. A running step also counts, as one late frame for each of its rows and
    each whole frame length that it has run. Admission therefore stops before the first late reply is sent.

    Pressure is also high while the event loop of a host runs later than ``host_lag_ms``: then frames wait in
    sockets, before they are stamped.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start with an empty window."""
        self._config = config
        self._cell_s = config.late_window_s / CELLS
        self._frames = [0] * CELLS
        self._late = [0] * CELLS
        self._newest = 0  # number of the newest cell since the clock's zero
        self._is_high = False
        self._running: _RunningStep | None = None
        self._hosts: dict[str, _HostLag] = {}

    @property
    def cell_s(self) -> float:
        """Seconds after which the answer of :meth:`is_high` may change without new records."""
        return self._cell_s

    def record_many(self, now_s: float, *, frames: int, late: int) -> None:
        """Count frames answered at ``now_s``, and how many of them were late."""
        cell = self._advance(now_s)
        self._frames[cell] += frames
        self._late[cell] += late

    def begin_step(self, now_s: float, *, rows: int, frame_s: float) -> None:
        """Record the start of a step with ``rows`` frames of ``frame_s`` seconds."""
        self._running = _RunningStep(now_s, rows, frame_s)

    def end_step(self) -> None:
        """Record the end of the step; its frames are counted when their replies are sent."""
        self._running = None

    def note_host(self, now_s: float, host: str, lag_s: float) -> None:
        """Record the lag of the event loop of a process that feeds this engine."""
        self._hosts[host] = _HostLag(lag_s, now_s)

    def host_lag_s(self, now_s: float) -> float:
        """The largest lag that a host has reported within ``HOST_FRESH_S``."""
        fresh = (it.lag_s for it in self._hosts.values() if now_s - it.reported_s <= HOST_FRESH_S)
        return max(fresh, default=0.0)

    def forget(self) -> None:
        """Empty the window; a running step still counts."""
        self._frames = [0] * CELLS
        self._late = [0] * CELLS
        self._is_high = False

    def is_high(self, now_s: float) -> bool:
        """Whether admission is stopped at ``now_s``."""
        count = self.count(now_s)
        if count.late < self._config.late_min_frames:
            self._is_high = False
        elif count.fraction > self._config.late_refuse_fraction:
            self._is_high = True
        elif count.fraction < self._config.late_admit_fraction:
            self._is_high = False
        return self._is_high or self.host_lag_s(now_s) > self._config.host_lag_ms / 1000.0

    def count(self, now_s: float) -> LateCount:
        """The counts of the window that ends at ``now_s``."""
        self._advance(now_s)
        running = self._running  # read once: the engine thread sets it
        overdue = 0 if running is None else running.overdue_frames(now_s)
        return LateCount(sum(self._frames) + overdue, sum(self._late) + overdue)

    def _advance(self, now_s: float) -> int:
        """The index of the cell of ``now_s``; clears the cells that have expired."""
        number = int(now_s / self._cell_s)
        if number <= self._newest:  # nearly always
            return self._newest % CELLS
        # Clocks of two threads may differ slightly: an older time counts in the newest cell.
        for passed in range(max(self._newest + 1, number - CELLS + 1), number + 1):
            self._frames[passed % CELLS] = 0
            self._late[passed % CELLS] = 0
        self._newest = number
        return number % CELLS


FOLD_VALUES: Final = 1024
"""Number of single observations that are sorted into buckets at once."""
FOLD_ARRAYS: Final = 64
"""Number of arrays of observations that are sorted at once."""


class ArrayHistogram:
    """A histogram of one label set; any thread may use it.

    Appending to a list is atomic in the interpreter, so only sorting and reading take the lock.
    """

    def __init__(self, buckets: Sequence[float]) -> None:
        """Start empty; ``buckets`` are upper bounds, ascending, without infinity."""
        self._edges = np.array(buckets, np.float64)
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        self._values: list[float] = []
        self._arrays: list[NDArray[np.floating[Any]]] = []
        self.created_s = time.time()
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._values.append(value)
        if len(self._values) >= FOLD_VALUES:
            with self._lock:
                self._fold()

    def observe_many(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every element of ``values``, which must not change afterwards."""
        self._arrays.append(values)
        if len(self._arrays) >= FOLD_ARRAYS:
            with self._lock:
                self._fold()

    def _fold(self) -> None:
        singles, arrays = self._values[:], self._arrays[:]
        del self._values[: len(singles)], self._arrays[: len(arrays)]  # others may have been added meanwhile
        values = np.concatenate((np.array(singles), *arrays))
        self._counts += np.bincount(self._edges.searchsorted(values), minlength=self._counts.size)
        self._sum += float(values.sum())

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, as Prometheus expects them, and the sum."""
        with self._lock:
            self._fold()
            cumulative, total = self._counts.cumsum().tolist(), self._sum
        bounds = [*map(floatToGoString, self._edges.tolist()), "+Inf"]
        return list(zip(bounds, cumulative, strict=True)), total


class ArrayHistogramFamily(Collector):
    """A histogram ``name`` with labels; its children are :class:`ArrayHistogram`."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Register on ``registry``."""
        self._name, self._documentation = name, documentation
        self._labelnames, self._buckets = tuple(labelnames), tuple(buckets)
        self._children: dict[tuple[str, ...], ArrayHistogram] = {}
        registry.register(self)

    def labels(self, *values: str) -> ArrayHistogram:
        """The child with these label values, made on first use."""
        return self._children.setdefault(values, ArrayHistogram(self._buckets))

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """The name without samples, so that the registry rejects duplicates and a scrape can select the
        metric.
        """
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """The samples for one scrape."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in list(self._children.items()):
            buckets, total = child.read()
            family.add_metric(values, buckets, total)
            labels = dict(zip(self._labelnames, values, strict=True))
            family.add_sample(f"{self._name}_created", labels, child.created_s)
        yield family


class EngineMetrics:
    """All metrics of the engine, each with the label ``model``.

    Each attribute is a child with the label bound, so that recording takes one call, or a mapping from a
    second label to such children (``metrics.METRICS``). Gauges are computed at each scrape. Engines of one
    process share ``MetricFamilies``.
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
        self.evicted_sessions = self._counter("evicted_sessions")
        self.abandoned = self._counter("abandoned_sessions")
        dropped = self._counter_by("dropped_frames")
        self.dropped_in, self.dropped_out = dropped["in"], dropped["out"]
        self.admissions = self._counter_by("admissions")
        self.resumptions = self._counter_by("resumptions")
        self.hand_overs = self._counter_by("hand_overs")
        self.prompts = self._counter_by("prompts")
        self._stages: dict[str, ArrayHistogram] = {}

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Call ``read`` for the gauge of this name at each scrape."""
        self.families.get(Gauge, name).labels(self._model).set_function(read)

    def facts(self, info: BackendInfo) -> None:
        """Set the metrics of the model, the backend and the memory by purpose."""
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
        """A counter with a second label, whose values all start at 0."""
        family = self.families.get(Counter, name)
        return {value: family.labels(self._model, value) for value in METRICS[name].values}

    def _histogram(self, name: str) -> ArrayHistogram:
        return self.families.get(ArrayHistogramFamily, name).labels(self._model)
