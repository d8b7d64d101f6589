"""Workers in containers that shut down one after the other, while calls continue on another worker."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret
from lab.bench.hand_over import Tally, measure, one_call, report
from lab.tools.stack.container_engine import ContainerEngine, StackError, lines

NETWORK = "antiphon_inside"
SECRET = "/run/secrets/hand-over.pem"
READY, GONE = 200, 0
RETURN_S, LOOK_S = 180.0, 0.5

COMMAND_FRAMES = 150
"""Frames of the call that is moved by ``antiphon drain``, which takes seconds to start on a busy machine."""


@dataclass
class ContainerRoll:
    """The workers of one service in containers; ``workers`` are the ids of the containers.

    With ``is_by_command`` a worker is drained by ``antiphon drain`` in a container, otherwise from here.
    """

    engine: ContainerEngine
    url: str
    secret: SharedSecret
    http: aiohttp.ClientSession
    workers: tuple[str, ...]
    is_by_command: bool = False
    coming_back: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    async def drain(self, name: str) -> None:
        """Make a worker hand over its calls and shut down; it restarts at once."""
        target = next(it for it in self.workers if it != name and self._is_up(it))
        there = f"https://{target}:8997"
        if self.is_by_command:
            command = ("antiphon", "drain", f"https://{name}:8997", "--hand-over", there, "--secret", SECRET)
            await asyncio.to_thread(self.engine.podman, "exec", target, *command, "--wait", "90")
        else:
            here = await asyncio.to_thread(self._address, name)
            leaving = OtherWorker(f"https://{here}:8997", self.secret, timeout_s=30.0)
            await asyncio.to_thread(leaving.drain, there)
        self.coming_back[name] = asyncio.ensure_future(self._come_back(name))

    async def wait_for_two(self) -> None:
        """Wait until at most one worker is restarting."""
        while len(away := [task for task in self.coming_back.values() if not task.done()]) > 1:
            await asyncio.wait(away, return_when=asyncio.FIRST_COMPLETED)

    async def wait_for_all(self) -> None:
        """Wait until no worker is restarting."""
        await asyncio.gather(*self.coming_back.values())

    def _is_up(self, name: str) -> bool:
        return name not in self.coming_back or self.coming_back[name].done()

    async def _come_back(self, name: str) -> None:
        """Wait for its end and its next start, by podman's own restart or by hand, at any address."""
        async with asyncio.timeout(RETURN_S):
            while await self._status(name) == READY:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(LOOK_S)
            while (status := await self._status(name)) != READY:
                if status == GONE:
                    await asyncio.to_thread(self.engine.podman, "start", name)
                await asyncio.sleep(LOOK_S)

    async def _status(self, name: str) -> int:
        """The status of ``/readyz``; ``GONE`` if there is no answer."""
        address = await asyncio.to_thread(self._address, name)
        try:
            async with self.http.get(f"http://{address}:8998/readyz") as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return GONE

    def _address(self, name: str) -> str:
        found = json.loads(self.engine.podman("inspect", name))[0]["NetworkSettings"]["Networks"]
        return str(found[NETWORK]["IPAddress"])


def hand_over(engine: ContainerEngine, url: str, secret: Path, model: str, calls: int) -> list[str]:
    """Drain a worker with ``antiphon drain`` during one call, then hand over ``calls`` calls one after the
    other; returns the results as text.

    Raises:
        StackError: a call was lost, or its words differ from those of a call that stayed.
    """
    return asyncio.run(_hand_over(engine, url, SharedSecret.read(secret), model, calls))


async def _hand_over(
    engine: ContainerEngine, url: str, secret: SharedSecret, model: str, calls: int
) -> list[str]:
    ids = lines(engine.podman("ps", "--quiet", "--filter", "name=antiphon_duplex"))
    async with aiohttp.ClientSession() as http:
        roll = ContainerRoll(engine, url, secret, http, tuple(ids))
        roll.is_by_command = True
        began_s = time.monotonic()
        moved = await one_call(roll, 0, 0, is_moved=True, frames=COMMAND_FRAMES)
        await roll.wait_for_all()
        if not moved.thread.resumptions:
            raise StackError(f"the call stayed where it was: {moved.thread.reason}")
        said = [
            f"antiphon drain: a call went to {moved.thread.worker}, gap {moved.gap_ms:.0f} ms; "
            f"the worker is back after {time.monotonic() - began_s:.0f} s"
        ]
        roll.is_by_command = False
        whole, found = await measure(roll, model, calls)
    if not Tally.of(whole, found).is_whole:
        raise StackError(
            "a call was not moved, lost frames, or its words changed:\n" + report(model, whole, found)
        )
    return [*said, *report(model, whole, found).splitlines()]
