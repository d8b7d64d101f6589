"""A relay of datagrams that loses some and delays all, as a seed says, without changing their order."""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast


class Side(asyncio.DatagramProtocol):
    """One end: what arrives here leaves through the ``other`` one, later or never."""

    def __init__(self, rng: random.Random, peer: Any = None) -> None:
        self._rng, self.peer = rng, peer
        self.loss = self.delay_s = 0.0
        self.other: Side | None = None
        self.transport: asyncio.DatagramTransport | None = None
        self._last_s = 0.0
        self._waiting: deque[bytes] = deque()
        self.passed = self.lost = 0

    def disturb(self, *, loss: float, delay_s: float) -> None:
        """Lose this share of what comes from now on in both directions, and delay the rest up to a time."""
        for side in (self, self.other):
            if side is not None:
                side.loss, side.delay_s = loss, delay_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.peer = self.peer or address
        if self._rng.random() < self.loss:
            self.lost += 1
            return
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time() + self._rng.random() * self.delay_s)
        self._waiting.append(data)
        loop.call_at(self._last_s, self._pass)  # of equal times, any may come first

    def _pass(self) -> None:
        data, other = self._waiting.popleft(), self.other
        if other is not None and other.transport is not None and not other.transport.is_closing():
            self.passed += 1
            other.transport.sendto(data, other.peer)


@asynccontextmanager
async def relayed(answer: str, *, seed: int) -> AsyncIterator[tuple[str, Side]]:
    """An answer in SDP whose server is reached through a relay, and the relay's end towards the caller."""
    match = re.search(r"a=candidate:\S+ 1 udp \d+ (\d+\.\d+\.\d+\.\d+) (\d+) typ host", answer)
    assert match is not None
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    _, near = await loop.create_datagram_endpoint(lambda: Side(rng), (match[1], 0))
    server = (match[1], int(match[2]))
    _, far = await loop.create_datagram_endpoint(lambda: Side(rng, server), (match[1], 0))
    near.other, far.other = far, near
    assert near.transport is not None
    assert far.transport is not None
    port = near.transport.get_extra_info("sockname")[1]
    candidate = match[0].replace(f" {match[2]} typ", f" {port} typ")
    lines: list[str] = []
    for line in answer.split("\r\n"):
        if not line.startswith("a=candidate:"):
            lines += (line, candidate) if line.startswith("a=mid:") else (line,)
    try:
        yield "\r\n".join(lines), near
    finally:
        near.transport.close()
        far.transport.close()
