"""Hostile clients on the TCP ports: each connection ends, and no other call is affected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import pytest

from antiphon.tcp_port import TcpProtocol
from tests.protocol.test_audiosocket import VECTORS
from tests.protocol.test_wyoming import EVENTS
from tests.serve.harness import PATIENCE_S
from tests.serve.neighbours import NEIGHBOURS, all_is_quiet, assert_no_fault, everything, neighbourhood
from tests.serve.tcp_peer import connected, listening

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

ADDRESSES: Final[Mapping[TcpProtocol, str]] = MappingProxyType(
    {TcpProtocol.WYOMING: "wyoming://:{}", TcpProtocol.AUDIOSOCKET: "audiosocket://:{}/null-duplex"}
)
MESSAGES: Final[Mapping[TcpProtocol, Sequence[bytes]]] = MappingProxyType(
    {
        TcpProtocol.WYOMING: [message for message, _ in EVENTS],
        TcpProtocol.AUDIOSOCKET: [message for message, _ in VECTORS],
    }
)
CONNECTIONS: Final = 40


def nonsense(messages: Sequence[bytes], random: np.random.Generator) -> bytes:
    """Some messages, most of them right, with a few bytes changed, left out or put in."""
    count = int(random.integers(1, 9))
    data = bytearray(b"".join(messages[int(at)] for at in random.integers(0, len(messages), count)))
    for _ in range(int(random.integers(0, 4))):
        at = int(random.integers(0, len(data)))
        match int(random.integers(0, 3)):
            case 0:
                data[at] = int(random.integers(0, 256))
            case 1:
                del data[at : at + int(random.integers(1, 9))]
            case _:
                data[at:at] = random.bytes(int(random.integers(1, 9)))
        data = data or bytearray(b"\0")
    return bytes(data)


async def attack(port: int, messages: Sequence[bytes], seed: int) -> None:
    random = np.random.default_rng(seed)
    async with connected(port) as peer:
        data = nonsense(messages, random)
        cut = int(random.integers(0, len(data) + 1))
        try:
            for part in (data[:cut], data[cut:]):
                peer.writer.write(part)
                await asyncio.wait_for(peer.writer.drain(), PATIENCE_S)
            with contextlib.suppress(TimeoutError):  # it waits for more
                await asyncio.wait_for(peer.reader.read(1 << 16), 0.05)
            peer.writer.write_eof()
            await peer.ended()
        except ConnectionError:
            return  # closed while we were writing


def test_every_protocol_is_attacked() -> None:
    assert set(ADDRESSES) == set(MESSAGES) == set(TcpProtocol)


@pytest.mark.parametrize("protocol", ADDRESSES)
async def test_an_attack_is_heard_by_nobody_else(
    protocol: TcpProtocol, caplog: pytest.LogCaptureFixture
) -> None:
    async with everything() as server, listening(server, ADDRESSES[protocol]) as port:
        alone = {name: await visit(server) for name, visit in NEIGHBOURS.items()}
        async with asyncio.TaskGroup() as group:
            attacks = [
                group.create_task(attack(port, MESSAGES[protocol], seed)) for seed in range(CONNECTIONS)
            ]
            while not all(it.done() for it in attacks):
                assert await neighbourhood(server) == alone
        await all_is_quiet(server)
        assert_no_fault(caplog)
