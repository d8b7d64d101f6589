"""Callers that send audio through the load balancer in real time, as sessions of the probe."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import numpy as np

from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import encode_clip
from antiphon_client.report import Counts, report_session
from antiphon_client.session import ProbeSession, SessionPlan, SessionResult
from tests.support.stack.stack import START_S, Stack, Worker

MAX_S = 120.0
"""No caller speaks longer, and no test lasts longer: reached only when something is broken."""

GRACE_S = 20.0
"""For the last reply on a very busy machine; alone it takes a few milliseconds."""

_NOISE = np.random.default_rng(1).uniform(-0.5, 0.5, int(MAX_S * 24000)).astype(np.float32)
CLIP = encode_clip(_NOISE, AudioFormat.PCM_S16LE, message_ms=80)


class Caller:
    """One call through the load balancer, going on in the background until :meth:`finish`."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        plan = SessionPlan(
            session=0,
            url=url,
            connect_after_s=0,
            phase_s=0,
            delay_frames=1,
            ready_timeout_s=START_S,
            grace_s=GRACE_S,
        )
        self.session = ProbeSession(plan, CLIP, start_s=time.monotonic(), clock=time.monotonic)
        self.task = asyncio.create_task(self.session.run(http))

    @property
    def answered(self) -> int:
        return self.session.recorder.frames_answered

    async def hears(self, frames: int) -> None:
        """Wait for so many more frames."""
        wanted = self.answered + frames
        async with asyncio.timeout(START_S):
            while self.answered < wanted:
                assert not self.task.done(), self.task.result().record.detail
                await asyncio.sleep(0.01)

    async def finish(self) -> Counts:
        """Say goodbye after the last reply; what became of the call's frames."""
        self.session.stop()
        return report_session((await self.result()).record).counts

    async def result(self) -> SessionResult:
        async with asyncio.timeout(START_S):
            return await self.task


def chat(stack: Stack, model: str = "duplex", query: str = "") -> str:
    """The address of a model's chat socket at the load balancer."""
    url = f"{stack.url}/api/chat?ext=1&format=pcm_s16le&model={model}{query}"
    return url.replace("http", "ws", 1)


@asynccontextmanager
async def calling(stack: Stack, calls: int, model: str = "duplex") -> AsyncIterator[list[Caller]]:
    """So many calls, each of which has been answered; what is left of them at the end is cut."""
    callers = []
    try:
        for _ in range(calls):
            callers.append(Caller(chat(stack, model), stack.http))
            await callers[-1].hears(2)
        yield callers
    finally:
        for caller in callers:
            caller.task.cancel()
        await asyncio.gather(*(caller.task for caller in callers), return_exceptions=True)


async def used_rows(worker: Worker, http: aiohttp.ClientSession) -> int:
    """How many rows of a worker are taken, by its own account."""
    async with http.get(f"{worker.url}/api/build_info") as response:
        used: int = (await response.json())["slots"]["used"]
        return used


async def shares(stack: Stack, model: str = "duplex") -> list[int]:
    """The rows taken at each worker of a model."""
    return [await used_rows(worker, stack.http) for worker in stack.of(model)]


async def worker_of(stack: Stack, caller: Caller, model: str = "duplex") -> tuple[Worker, list[Worker]]:
    """The one worker that holds the only call there is, and the others."""
    taken = await shares(stack, model)
    assert sorted(taken, reverse=True) == [1, *itertools.repeat(0, len(taken) - 1)], taken
    here = stack.of(model)[taken.index(1)]
    return here, [worker for worker in stack.of(model) if worker is not here]
