"""Answers for operators, joined from all processes: metrics as those of one server, health, one trace.

Counters and histograms are summed. A process that has ended keeps its last values in the sums, and one that
does not answer is represented by what it said last, so that no counter ever falls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgpack
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.metrics import merge_of, read_family
from antiphon.supervisor.children import Child
from antiphon.supervisor.dispatcher import FrontEndShare
from antiphon.supervisor.messages import Body

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


def join_traces(recorded: Mapping[str, bytes]) -> str:
    """The recordings of processes by name, each as the engine's tracer writes it with the clock's times."""
    events: list[dict[str, Any]] = []
    left_out = 0
    for number, (name, data) in enumerate(recorded.items(), start=1):
        trace = json.loads(data)
        left_out += trace["otherData"]["left_out"]
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events += [{**event, "pid": number} for event in trace["traceEvents"]]
    zero_us = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - zero_us, 1)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"left_out": left_out}})


class Answers(Collector):
    """Metrics and health of the whole server."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        engine: Callable[[], Child],
        shares: Callable[[], Sequence[FrontEndShare]],
        wanted: int,
    ) -> None:
        """The supervisor's own metrics are on ``registry``; ``wanted`` front ends should run."""
        self.totals = Totals()
        self._registry = registry
        self._engine = engine
        self._shares = shares
        self._wanted = wanted
        self._engine_health: Any = {}
        registry.register(self)

    async def of(self, what: str) -> Body:
        """The answer to a question for the whole server."""
        if what == "metrics":
            return Body(await self._metrics())
        return Body(json.dumps(await self.health()).encode())

    async def health(self) -> dict[str, Any]:
        """How the engine is, as it says itself, and what the supervisor sees of its children."""
        engine = self._engine()
        answer = await engine.answer("health")
        if answer is not None:
            self._engine_health = json.loads(answer)
        return {
            "models": self._engine_health,
            "engine_answers": answer is not None,
            "engine_silent_s": engine.silent_s,
            "front_ends_wanted": self._wanted,
            "front_ends": [
                {
                    "name": share.child.name,
                    "at_work": share.load,
                    "lag_s": share.child.lag_s,
                    "silent_s": share.child.silent_s,
                }
                for share in self._shares()
            ],
        }

    async def _metrics(self) -> bytes:
        children = [self._engine(), *(share.child for share in self._shares())]
        answers = await asyncio.gather(*(child.answer("metrics") for child in children))
        self.totals.heard("supervisor", read_registry(self._registry))
        for child, answer in zip(children, answers, strict=True):
            if answer is not None and child.is_alive:
                self.totals.heard(child.name, answer)
        return self.totals.text()

    def collect(self) -> Iterable[Metric]:
        """The supervisor's state of its front ends."""
        running = read_family("front_ends", len(self._shares()))
        load, lag = read_family("front_end_connections"), read_family("front_end_lag_seconds")
        for share in self._shares():
            load.add_metric((share.child.name,), share.load)
            lag.add_metric((share.child.name,), share.child.lag_s)
        yield from (running, load, lag)
