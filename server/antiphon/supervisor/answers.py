"""Answers for operators, joined from all processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.metrics import read_family
from antiphon.supervisor.children import Child
from antiphon.supervisor.dispatcher import FrontEndShare
from antiphon.supervisor.messages import Body
from antiphon.supervisor.totals import Totals, read_registry


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
