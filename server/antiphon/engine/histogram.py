"""A Prometheus histogram that takes whole arrays: one call a tick instead of one a frame.

Observations are kept as they come and sorted into buckets many at a time, or when they are read: the
arithmetic costs more than a tick has time for, and a tick of few rows makes ten observations.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

FOLD_VALUES: Final = 1024
"""So many single observations are sorted into their buckets at once."""
FOLD_ARRAYS: Final = 64
"""So many arrays of them are."""


class ArrayHistogram:
    """The observations of one label set; may be used from any thread.

    To append to a list is one operation of the interpreter, so only sorting and reading take the lock.
    """

    def __init__(self, buckets: Sequence[float]) -> None:
        """Start with none; ``buckets`` are upper bounds, ascending, without infinity."""
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
        """Count every element of ``values``, which nothing changes afterwards."""
        self._arrays.append(values)
        if len(self._arrays) >= FOLD_ARRAYS:
            with self._lock:
                self._fold()

    def _fold(self) -> None:
        singles, arrays = self._values[:], self._arrays[:]
        del self._values[: len(singles)], self._arrays[: len(arrays)]  # others may have come meanwhile
        values = np.concatenate((np.array(singles), *arrays))
        self._counts += np.bincount(self._edges.searchsorted(values), minlength=self._counts.size)
        self._sum += float(values.sum())

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, as Prometheus wants them, and the sum."""
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
