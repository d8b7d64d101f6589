"""A supervisor with real processes: excess connections wait, replace others, or are rejected."""

from __future__ import annotations

import asyncio
import time

import pytest

from antiphon.supervisor.connection_bounds import ConnectionLimits
from tests.supervisor.running import PATIENCE_S, supervised

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples


async def test_an_address_with_too_many_connections_is_turned_away() -> None:
    async with supervised(limits=ConnectionLimits(connections_per_address=2)) as running:
        first, _ = await running.call(), await running.call()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        assert await reader.read(1) == b""
        writer.close()
        first.close()
        is_served = False
        async with asyncio.timeout(PATIENCE_S):
            while not is_served:  # until the first is known to have left
                reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
                is_served = bool(await reader.read(1))
                writer.close()


async def test_new_connections_beyond_the_rate_wait_and_none_is_lost() -> None:
    async with supervised(limits=ConnectionLimits(new_per_s=20.0)) as running:
        began_s = time.monotonic()
        await asyncio.gather(*(running.call() for _ in range(40)))
        assert time.monotonic() - began_s > 0.8


async def test_connections_beyond_the_total_wait_for_one_to_close() -> None:
    async with supervised(limits=ConnectionLimits(connections=2)) as running:
        first, _ = await running.call(), await running.call()
        third = asyncio.create_task(running.call())
        await asyncio.sleep(0.3)
        assert not third.done()
        first.close()
        await third


async def test_a_request_overtakes_half_open_connections() -> None:
    """They would delay it by a minute: one is served each second."""
    async with supervised(limits=ConnectionLimits(new_per_s=1.0)) as running, asyncio.timeout(PATIENCE_S):
        flood = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(60)]
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"hello\n")
        await reader.readline()
        greetings = [asyncio.ensure_future(it.read(1)) for it, _ in flood]
        await asyncio.sleep(0)  # those that have come are read by then
        assert sum(it.done() for it in greetings) < 30
        for it in greetings:
            it.cancel()
        for _, each in (*flood, (reader, writer)):
            each.close()


async def test_a_connection_without_a_request_makes_room_for_one_that_has_sent_something() -> None:
    async with supervised(limits=ConnectionLimits(connections=2), front_ends=1) as running:
        first, second = await running.call(), await running.call()
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(b"hello\n")
            assert await first.is_dropped()
            assert await reader.readline()
        assert await second.say("take 1 key 1") == "granted"
        writer.close()
