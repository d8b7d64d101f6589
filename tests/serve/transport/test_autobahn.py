"""RFC 6455: every case of Autobahn|Testsuite except extensions.

Groups: 1 framing, 2 pings, 3 reserved bits, 4 opcodes, 5 fragments, 6 UTF-8, 7 closing, 9 sizes. The cases
expect an echo, so one is made here of the server's own socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from antiphon.limits import Limits
from antiphon.serve.transport.upgrade import open_socket
from tests.serve.autobahn_cases import load_cases
from tests.serve.autobahn_peer import Peer

CASES = load_cases((1, 2, 3, 4, 5, 6, 7, 9))
PASSED = ("OK", "INFORMATIONAL")
NOT_STRICT = ("6.4.3", "6.4.4")
"""Within one frame, what is no UTF-8 is noticed at the frame's end. RFC 6455 allows both."""

AT_ONCE = 40
"""Most cases wait a second for what must not come, and wait together; those of group 9 run by turns."""

LIMITS = replace(
    Limits(),
    close_timeout_s=1.0,
    max_messages_per_s=1_000_000,
    max_message_bytes=16 * 2**20 + 1,
    max_unsent_bytes=64 * 2**20,
)


@asynccontextmanager
async def echoing(limits: Limits = LIMITS) -> AsyncIterator[int]:
    """A server that sends every message back; yields its port."""

    async def echo(request: web.Request) -> web.StreamResponse:
        socket, response = await open_socket(request, limits, time.monotonic)
        while (message := await socket.receive_any()) is not None:
            socket.send((message,))
        return response

    app = web.Application()
    app.router.add_get("/echo", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def judge(port: int, case: Any) -> tuple[str, str, str]:
    """Run a case: how the peer behaved, how the connection was closed, and why."""
    peer = Peer("/echo", case, patience_s=60.0)
    await asyncio.get_running_loop().create_connection(lambda: peer, "127.0.0.1", port)
    async with asyncio.timeout(120.0):
        await peer.over
    return peer.case.behavior, peer.case.behaviorClose, f"{peer.case.result} {peer.case.resultClose}"


async def failures(names: Sequence[str], at_once: int) -> list[str]:
    room = asyncio.Semaphore(at_once)

    async with echoing() as port:

        async def run(name: str) -> str | None:
            async with room:
                behaviour, closing, why = await judge(port, CASES[name])
            passed = "NON-STRICT" if name in NOT_STRICT else PASSED
            is_good = behaviour in passed and closing in PASSED
            return None if is_good else f"{name}: {behaviour}, closed {closing}: {why}"

        judged = await asyncio.gather(*map(run, names))
    return [words for words in judged if words is not None]


def test_every_case_is_there() -> None:
    numbers = [sum(name.startswith(f"{group}.") for name in CASES) for group in (1, 2, 3, 4, 5, 6, 7, 9)]
    assert numbers == [16, 11, 7, 10, 20, 145, 37, 54]


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7])
async def test_framing_and_closing(group: int) -> None:
    assert await failures([name for name in CASES if name.startswith(f"{group}.")], AT_ONCE) == []


@pytest.mark.parametrize("group", ["9.1", "9.2", "9.3", "9.4", "9.5", "9.6", "9.7", "9.8"])
async def test_sizes(group: str) -> None:
    assert await failures([name for name in CASES if name.startswith(f"{group}.")], 1) == []
