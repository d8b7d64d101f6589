"""The metrics of several processes as those of one server.

Counters and histograms are summed. A process that has ended keeps its last values in the sums, and one that
does not answer is represented by what it said last, so that no counter ever falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgpack
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from antiphon.metrics import merge_of

SUMMED: Final = frozenset({"counter", "histogram"})

Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Family:
    """The samples of one metric, by their names and labels, in the order of their first appearance."""

    kind: str
    help: str
    samples: dict[Key, float] = field(default_factory=dict)

    def add(self, key: Key, value: float) -> None:
        """Join a sample with those of other processes."""
        known = self.samples.get(key)
        self.samples[key] = value if known is None else merge_of(key[0]).joined(known, value)


Families: TypeAlias = dict[str, Family]


def read_registry(registry: CollectorRegistry) -> bytes:
    """Every sample of a process's registry, for :meth:`Totals.heard`."""
    families = [
        (
            metric.name,
            metric.type,
            metric.documentation,
            [(sample.name, sorted(sample.labels.items()), float(sample.value)) for sample in metric.samples],
        )
        for metric in registry.collect()
    ]
    packed: bytes = msgpack.packb(families)
    return packed


class Totals:
    """What each process said last, and the sums over those that have ended."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._latest: dict[str, Families] = {}
        self._past: Families = {}

    def heard(self, process: str, data: bytes) -> None:
        """Take the newest values of a process, as :func:`read_registry` packs them."""
        families: Families = {}
        for name, kind, help_text, samples in msgpack.unpackb(data, use_list=False):
            family = families.setdefault(name, Family(kind, help_text))
            for sample, labels, value in samples:
                family.add((sample, labels), value)
        self._latest[process] = families

    def ended(self, process: str) -> None:
        """Keep the counters and histograms of a process that is no more, and forget its gauges."""
        last = self._latest.pop(process, {})
        _join(self._past, {name: family for name, family in last.items() if family.kind in SUMMED})

    def text(self) -> bytes:
        """The exposition of all together."""
        joined: Families = {}
        for families in (self._past, *self._latest.values()):
            _join(joined, families)
        return generate_latest(_Joined(joined))


class _Joined:
    """What the exposition reads, in place of a registry."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for name, family in sorted(self._families.items()):
            metric = Metric(name, family.help, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _join(into: Families, families: Mapping[str, Family]) -> None:
    for name, family in families.items():
        joined = into.setdefault(name, Family(family.kind, family.help))
        for key, value in family.samples.items():
            joined.add(key, value)
