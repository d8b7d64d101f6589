"""Answers to operators about the whole server, from any of its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from antiphon.errors import SessionFailedError
from antiphon.ipc.health import Health
from antiphon.serve.access.supervisor_client import ASK_S, SupervisorClient
from antiphon.serve.hosting.event_loop import LoopLag
from antiphon.serve.hosting.served import Models
from antiphon.supervisor.messages import Body, Question


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Each model's health by name, and the processes in the form of a JSON answer."""

    models: Mapping[str, Health]
    facts: Mapping[str, Any]


class ServerStatus:
    """The status of the whole server, from the supervisor; if it does not answer, the status of this
    process."""

    def __init__(self, client: SupervisorClient, models: Models) -> None:
        """Ask the supervisor through ``client``."""
        self._client, self._models = client, models

    async def health(self) -> ServerHealth:
        """The health of every model and process now."""
        own = {model.name: model.engine.health() for model in self._models}
        try:
            said: dict[str, Any] = json.loads(await self._client.answer(Question("health")))
        except (TimeoutError, SessionFailedError):
            return ServerHealth(own, {"supervisor": f"no answer within {ASK_S:g} s"})
        healths = own | {name: Health(**health) for name, health in said.pop("models").items()}
        if not said.pop("engine_answers"):
            silent_s = said["engine_silent_s"]
            words = f"the engine's process has not answered for {silent_s:.1f} s"
            stuck_s = max(silent_s, ASK_S)
            healths = {
                name: replace(health, stuck_s=stuck_s, ready=False, detail=words)
                for name, health in healths.items()
            }
        return ServerHealth(healths, said)

    async def metrics(self) -> bytes:
        """All metrics, in the Prometheus text format.

        Raises:
            web.HTTPServiceUnavailable: the supervisor, which has all counters, does not answer.
        """
        try:
            return await self._client.answer(Question("metrics"))
        except (TimeoutError, SessionFailedError) as error:
            raise web.HTTPServiceUnavailable(text=f"no answer within {ASK_S:g} s; ask again\n") from error


def answer_alone(models: Models, lag: LoopLag, registry: CollectorRegistry, what: str) -> Body:
    """Answer a question for the supervisor in a single-process server."""
    if what == "metrics":
        return Body(generate_latest(registry))
    return Body(
        json.dumps(
            {
                "models": {model.name: asdict(model.engine.health()) for model in models},
                "engine_answers": True,
                "loop": {"lag_ms": in_ms(lag.lag_s), "worst_lag_ms": in_ms(lag.worst_s)},
            }
        ).encode()
    )


def in_ms(seconds: float) -> float:
    """Milliseconds, rounded for display."""
    return round(1000.0 * seconds, 1)
