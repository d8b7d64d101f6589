"""Calls are spread over front ends evenly, as real processes."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.supervisor.running import PATIENCE_S, Caller, Running, supervised

pytestmark = pytest.mark.product  # servers as processes


async def until_at_work(running: Running, calls: int) -> None:
    """Wait until front ends have so many connections; a caller asks that stays, for one more would count."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(each["at_work"] for each in await front_ends(running.callers[0])) > calls:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def front_ends(caller: Caller) -> list[dict[str, int]]:
    """What the supervisor says of each."""
    found: list[dict[str, int]] = json.loads(await caller.ask("health"))["front_ends"]
    return found


@pytest.mark.parametrize("calls", [16, 64, 200])
async def test_calls_that_only_arrive_differ_by_at_most_one(calls: int) -> None:
    async with supervised(front_ends=3) as running:
        for _ in range(calls // 4):
            await asyncio.gather(*(running.call() for _ in range(4)))
        shares = running.spread()
        assert max(shares.values()) - min(shares.values()) <= 1
        assert len(shares) == 3


@pytest.mark.parametrize("calls", [16, 64, 200])
async def test_arrivals_even_out_what_a_random_half_has_left(calls: int) -> None:
    async with supervised(front_ends=3) as running:
        await asyncio.gather(*(running.call() for _ in range(calls)))
        for caller in random.Random(calls).sample(running.callers, calls // 2):
            caller.close()
            running.callers.remove(caller)
        await until_at_work(running, calls // 2)
        left = running.spread()
        while max(running.spread().values()) - min(running.spread().values()) > 1:
            await running.call()
        arrived = len(running.callers) - left.total()
        assert arrived <= 3 * max(left.values()) - left.total(), "none went where there were more"


async def test_arrivals_even_out_what_leavers_left_uneven() -> None:
    async with supervised() as running:
        for _ in range(16):
            await running.call()
        for caller in [caller for caller in running.callers if caller.front_end == 1]:
            caller.close()
            running.callers.remove(caller)
        await until_at_work(running, 8)
        for _ in range(8):
            assert (await running.call()).front_end == 1
        for _ in range(4):
            await running.call()
        assert set(running.spread().values()) == {10}
