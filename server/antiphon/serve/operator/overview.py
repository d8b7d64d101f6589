"""Answers for operators about the whole server, from any of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest

from antiphon.ipc.health import Health
from antiphon.serve.hosting.lag import LoopLag
from antiphon.serve.hosting.served import Models


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Each model's engine by name, and what else an answer in JSON says of the processes."""

    models: Mapping[str, Health]
    facts: Mapping[str, Any]


class Overview(Protocol):
    """The server as a whole."""

    async def health(self) -> ServerHealth:
        """How everything is now."""
        ...

    async def metrics(self) -> bytes:
        """Everything, in the Prometheus text format."""
        ...


class OwnOverview:
    """The server is this process."""

    def __init__(self, models: Models, lag: LoopLag, registry: CollectorRegistry) -> None:
        """Answer for these."""
        self._models, self._lag, self._registry = models, lag, registry

    async def health(self) -> ServerHealth:
        """How everything is now."""
        loop = {"lag_ms": in_ms(self._lag.lag_s), "worst_lag_ms": in_ms(self._lag.worst_s)}
        return ServerHealth({model.name: model.engine.health() for model in self._models}, {"loop": loop})

    async def metrics(self) -> bytes:
        """Everything, in the Prometheus text format."""
        return generate_latest(self._registry)


def in_ms(seconds: float) -> float:
    """Milliseconds, as people read them."""
    return round(1000.0 * seconds, 1)
