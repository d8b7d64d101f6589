"""Answers for operators, joined from all processes: metrics, health and one trace of the whole server.

Counters and histograms are summed. The sums keep the last values of a process that has ended or does not
answer, so that no counter ever decreases.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

import msgpack
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.ipc.health import Health, as_one
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
        """Add a sample to the samples of other processes."""
        known = self.samples.get(key)
        self.samples[key] = value if known is None else merge_of(key[0]).joined(known, value)


Families: TypeAlias = dict[str, Family]


def read_registry(registry: CollectorRegistry) -> bytes:
    """Every sample of a process's registry, packed for :meth:`Totals.store`."""
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
    """The latest values of each process, and the sums over the processes that have ended."""

    def __init__(self) -> None:
        """Start without values."""
        self._latest: dict[str, Families] = {}
        self._past: Families = {}

    def store(self, process: str, data: bytes, device: str = "") -> None:
        """Store the newest values of a process, as :func:`read_registry` packs them.

        Values of one of several engines get its ``device`` as a label ``engine``.
        """
        own = (("engine", device),) if device else ()
        families: Families = {}
        for name, kind, help_text, samples in msgpack.unpackb(data, use_list=False):
            family = families.setdefault(name, Family(kind, help_text))
            for sample, labels, value in samples:
                family.add((sample, (*labels, *own)), value)
        self._latest[process] = families

    def ended(self, process: str) -> None:
        """Keep the counters and histograms of an ended process, and drop its gauges."""
        last = self._latest.pop(process, {})
        _join(self._past, {name: family for name, family in last.items() if family.kind in SUMMED})

    def text(self) -> bytes:
        """The metrics of all processes together, in the Prometheus text format."""
        joined: Families = {}
        for families in (self._past, *self._latest.values()):
            _join(joined, families)
        return generate_latest(_Joined(joined))


class _Joined:
    """The collector for the exposition, in place of a registry."""

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
    """Join the recordings of processes, by name, into one trace. Each is in the format of the engine's
    tracer, with times of the clock.
    """
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
    """Collects the metrics and the health of the whole server."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        engines: Callable[[], Sequence[Child]],
        shares: Callable[[], Sequence[FrontEndShare]],
        wanted: int,
    ) -> None:
        """The supervisor's own metrics are in ``registry``; ``wanted`` is the number of front ends that
        should run."""
        self.totals = Totals()
        self._registry = registry
        self._engines = engines
        self._shares = shares
        self._wanted = wanted
        self._known: dict[str, Any] = {}  # each engine's last report about its models
        registry.register(self)

    async def of(self, what: str) -> Body:
        """The answer to a question for the whole server."""
        if what == "metrics":
            return Body(await self._metrics())
        return Body(json.dumps(await self.health()).encode())

    async def health(self) -> dict[str, Any]:
        """The health of the engines, as they report it and as the supervisor observes it."""
        engines = self._engines()
        said = await asyncio.gather(*(engine.answer("health") for engine in engines))
        answers = {it.name: answer for it, answer in zip(engines, said, strict=True) if answer is not None}
        self._known |= {name: json.loads(answer) for name, answer in answers.items()}
        if engines:  # an engine that has ended counts no more
            self._known = {it.name: self._known[it.name] for it in engines if it.name in self._known}
        several = {
            it.device: {"answers": it.name in answers, "models": self._known.get(it.name, {})}
            for it in engines
            if it.device
        }
        return {
            "models": self._models(),
            **({"engines": several} if several else {}),
            "engine_answers": bool(answers),
            "engine_silent_s": min((engine.silent_s for engine in engines), default=0.0),
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

    def _models(self) -> Any:
        """The latest report of the engines on each model, joined."""
        if len(self._known) == 1:
            return next(iter(self._known.values()))
        names = {name for models in self._known.values() for name in models}
        return {
            name: asdict(
                as_one(
                    {
                        engine: Health(**models[name])
                        for engine, models in self._known.items()
                        if name in models
                    }
                )
            )
            for name in names
        }

    async def _metrics(self) -> bytes:
        children = [*self._engines(), *(share.child for share in self._shares())]
        answers = await asyncio.gather(*(child.answer("metrics") for child in children))
        self.totals.store("supervisor", read_registry(self._registry))
        for child, answer in zip(children, answers, strict=True):
            if answer is not None and child.is_alive:
                self.totals.store(child.name, answer, child.device)
        return self.totals.text()

    def collect(self) -> Iterable[Metric]:
        """The supervisor's metrics of its front ends."""
        running = read_family("front_ends", len(self._shares()))
        load, lag = read_family("front_end_connections"), read_family("front_end_lag_seconds")
        for share in self._shares():
            load.add_metric((share.child.name,), share.load)
            lag.add_metric((share.child.name,), share.child.lag_s)
        yield from (running, load, lag)
