"""A Prometheus histogram that takes whole arrays: one call a tick instead of one a frame."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString


class ArrayHistogram:
    """The observations of one label set; may be used from any thread."""

    def __init__(self, buckets: Sequence[float]) -> None:
        """Start with none; ``buckets`` are upper bounds, ascending, without infinity."""
        self._bounds = tuple(map(float, buckets))
        self._edges = np.array(self._bounds)
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum = 0.0
        self.created_s = time.time()
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def observe_many(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every element of ``values``."""
        counts = np.bincount(self._edges.searchsorted(values), minlength=self._counts.size)
        total = float(values.sum())
        with self._lock:
            self._counts += counts
            self._sum += total

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, as Prometheus wants them, and the sum."""
        with self._lock:
            cumulative, total = self._counts.cumsum().tolist(), self._sum
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
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
        """The child with these label values, made when it is first asked for."""
        return self._children.setdefault(values, ArrayHistogram(self._buckets))

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """Its name, for the registry: two of one name are refused, and a scrape may ask for one."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What a scrape reads."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in list(self._children.items()):
            buckets, total = child.read()
            family.add_metric(values, buckets, total)
            labels = dict(zip(self._labelnames, values, strict=True))
            family.add_sample(f"{self._name}_created", labels, child.created_s)
        yield family
