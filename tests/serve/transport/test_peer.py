"""A peer connection as a transport: faults, the wait for room, and the end before it is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import aiortc
import pytest

from antiphon.errors import PeerConnectionError, ProtocolError
from antiphon.limits import Limits
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.sdp import read_offer
from antiphon.serve.transport import peer as module
from antiphon.serve.transport.peer import Peer
from antiphon.serve.transport.socket import READ_AHEAD_BYTES
from tests.serve.peer_client import peer_client

PATIENCE_S = 120.0


class Channel:
    """A data channel that tests send messages by."""

    def __init__(self) -> None:
        self._takers: dict[str, Callable[..., None]] = {}
        self.on = self._takers.__setitem__

    def send(self, message: bytes) -> None:
        self._takers["message"](message)


@asynccontextmanager
async def answering_peer() -> AsyncIterator[tuple[Peer, Channel]]:
    """A peer that has answered an offer, and a data channel that it has taken, without a network."""
    made = list[aiortc.RTCPeerConnection]()

    def make(configuration: aiortc.RTCConfiguration) -> aiortc.RTCPeerConnection:
        made.append(aiortc.RTCPeerConnection(configuration))
        return made[0]

    rtc = SimpleNamespace(**{**vars(aiortc), "RTCPeerConnection": make})
    peer = Peer(rtc, [], b"\x01", Limits(), time.monotonic)
    async with peer_client() as client:
        try:
            await peer.answer(read_offer((await client.offer()).encode()))
            channel = Channel()
            made[0].emit("datachannel", channel)
            yield peer, channel
        finally:
            await peer.end()


async def test_a_flood_ends_the_wait_for_room() -> None:
    async with answering_peer() as (peer, channel), asyncio.timeout(PATIENCE_S):
        waiting = asyncio.create_task(peer.wait_for(asyncio.Event()))
        await asyncio.sleep(0)
        for _ in range(1 + READ_AHEAD_BYTES // 65_536):
            channel.send(bytes(65_536))
        await waiting
        with pytest.raises(ProtocolError, match=f"more than {READ_AHEAD_BYTES} bytes are ahead"):
            await peer.receive_any()


async def test_a_connection_without_statistics_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_connection: object) -> None:
        raise ValueError("no transport")

    monkeypatch.setattr(module, "WATCH_S", 0.01)
    monkeypatch.setattr(aiortc.RTCPeerConnection, "getStats", fail)
    async with answering_peer() as (peer, _), asyncio.timeout(PATIENCE_S):
        await peer.connected()
        with pytest.raises(PeerConnectionError, match="no statistics: ValueError: no transport"):
            await peer.receive_any()


async def test_an_end_before_the_connection_is_up_ends_the_wait_for_it() -> None:
    peer = Peer(aiortc, [], b"\x01", Limits(), time.monotonic)
    async with asyncio.timeout(PATIENCE_S):
        waiting = asyncio.create_task(peer.connected())
        await asyncio.sleep(0)
        await peer.close(CloseCode.SERVICE_RESTART, "the server is shutting down")
        await waiting
        assert peer.close_code is CloseCode.SERVICE_RESTART
        assert await peer.receive_any() is None
        await peer.end()


async def test_sockets_that_close_slowly_are_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No peer is waited for then: what is slow is this machine."""
    close = aiortc.RTCPeerConnection.close

    async def close_slowly(connection: aiortc.RTCPeerConnection) -> None:
        await asyncio.sleep(0.3)
        await close(connection)

    monkeypatch.setattr(aiortc.RTCPeerConnection, "close", close_slowly)
    await Peer(aiortc, [], b"\x01", replace(Limits(), close_timeout_s=0.1), time.monotonic).end()
    assert not caplog.records
