"""The calls by WebRTC of a process release everything, also when they are cancelled or the server ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from antiphon.errors import DrainingError
from antiphon.limits import Limits
from antiphon.serve.access.callers import ANYBODY
from antiphon.serve.hosting.peers import Peers
from antiphon.serve.transport.peer import Peer

PATIENCE_S = 120.0


async def until_cut(peer: Peer) -> None:
    while await peer.receive_any() is not None:
        pass


async def held(peers: Peers) -> tuple[AsyncExitStack, Peer]:
    stack = AsyncExitStack()
    return stack, await stack.enter_async_context(peers.opened(b""))


async def test_a_call_that_is_cancelled_before_its_first_step_releases_its_connection() -> None:
    peers = Peers(1, (), Limits(), time.monotonic)
    stack, peer = await held(peers)
    before = asyncio.all_tasks()
    peers.hold("rtc_1", peer, ANYBODY, until_cut(peer), stack)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await peers.close()
    assert len(peers) == 0


async def test_a_call_that_begins_while_the_server_ends_is_cut_and_no_other_is_opened() -> None:
    peers = Peers(2, (), Limits(), time.monotonic)
    first, second = await held(peers), await held(peers)
    peers.hold("rtc_1", first[1], ANYBODY, until_cut(first[1]), first[0])
    closing = asyncio.create_task(peers.close())
    await asyncio.sleep(0)
    peers.hold("rtc_2", second[1], ANYBODY, until_cut(second[1]), second[0])
    async with asyncio.timeout(PATIENCE_S):
        await closing
    assert len(peers) == 0
    with pytest.raises(DrainingError, match="the server is shutting down"):
        await held(peers)
