"""The supervisor as a front end asks it: what concerns the whole server, and not this process alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from antiphon.errors import ServerFullError, SessionFailedError
from antiphon.ipc.health import Health
from antiphon.serve.hosting.served import Models
from antiphon.serve.operator.overview import ServerHealth
from antiphon.supervisor.messages import Body, ControlSocket, GiveBack, Question, Take, Taken, Use, Used

ASK_S: Final = 0.3
"""For the supervisor to answer; it gives its other children 0.2 s."""

LEASE_S: Final = 2.0
"""For the supervisor to grant a session; it needs microseconds, unless it is stopped."""

RETRY_AFTER_S: Final = 5
"""For a caller who came while the supervisor did not answer."""


class Central:
    """Sessions by key, health and metrics of the whole server."""

    def __init__(self, peer: ControlSocket) -> None:
        """Ask over ``peer``; ``models`` are to be set once they are known."""
        self._peer = peer
        self._held: set[int] = set()
        self.models: Models | None = None

    async def take(self, asked: Take) -> str:
        """Grant one more session, or return the reason against it.

        Raises:
            ServerFullError: the supervisor does not answer.
        """
        if not (asked.key_limit or asked.address_limit):
            return ""
        self._held.add(asked.lease)
        try:
            taken = await asyncio.wait_for(self._peer.ask(asked), LEASE_S)
        except (TimeoutError, SessionFailedError) as error:
            raise ServerFullError(
                f"sessions could not be counted within {LEASE_S:g} s; try again in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            ) from error
        return taken.refusal if isinstance(taken, Taken) else ""

    def give_back(self, lease: int) -> None:
        """End one."""
        if lease in self._held:
            self._held.discard(lease)
            self._peer.send(GiveBack(lease))

    async def used(self, use: Use) -> dict[str, float]:
        """What keys have used on the whole server, in seconds; in this process, without an answer."""
        try:
            used = await asyncio.wait_for(self._peer.ask(use), ASK_S)
        except (TimeoutError, SessionFailedError):
            used = None
        return dict(used.seconds if isinstance(used, Used) else use.seconds)

    def report(self, use: Use) -> None:
        """Report what keys have used in this process."""
        self._peer.send(use)

    async def health(self) -> ServerHealth:
        """How everything is: as the supervisor says, else as far as this process knows."""
        own = {model.name: model.engine.health() for model in self.models or ()}
        try:
            said: dict[str, Any] = json.loads(await self._ask("health"))
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
        """Everything, in the Prometheus text format.

        Raises:
            web.HTTPServiceUnavailable: the supervisor, which has the counters of all, does not answer.
        """
        try:
            return await self._ask("metrics")
        except (TimeoutError, SessionFailedError) as error:
            raise web.HTTPServiceUnavailable(text=f"no answer within {ASK_S:g} s; ask again\n") from error

    async def _ask(self, what: str) -> bytes:
        body = await asyncio.wait_for(self._peer.ask(Question(what)), ASK_S)
        return body.data if isinstance(body, Body) else b""
