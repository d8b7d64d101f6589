"""``/api/chat`` by WebRTC: audio goes by tracks, all other messages by the data channel."""

from __future__ import annotations

import json

import numpy as np
import pytest

from antiphon.protocol import moshi
from tests.serve.harness import serving, speech
from tests.serve.live_client import parrot
from tests.serve.peer_client import PeerClient, calling_by_peer, no_connections, peer_client, post
from tests.support.null_models import DUPLEX

CHAT = "/api/chat"


def told(client: PeerClient) -> list[moshi.Message]:
    """The messages of the data channel."""
    return [moshi.decode(it) for it in client.events]


async def test_a_call_of_the_extension_has_its_events_and_sound() -> None:
    async with (
        serving(model=parrot(), webrtc=2) as server,
        calling_by_peer(server, f"{CHAT}?ext=1&format=ogg") as client,
    ):
        assert client.location.startswith(f"{CHAT}/rtc_")
        assert json.loads((await server.get("/api/models"))[1])["webrtc"] is True
        client.microphone.say(0.3 * speech(12))
        await client.until(lambda: np.abs(client.heard).max(initial=0.0) > 0.1)
        await client.until(
            lambda: any(isinstance(it, moshi.Event) and it.type == "stats" for it in told(client))
        )
        kinds = [it.type for it in told(client) if isinstance(it, moshi.Event)]
        assert kinds[0] == "ready"
        assert not any(isinstance(it, moshi.Audio | moshi.StampedAudio) for it in told(client))
        client.channel.send(moshi.encode(moshi.Event("bye", {})))
        await server.is_empty()


async def test_a_call_without_a_data_channel_is_sound_alone_and_ends_by_its_address() -> None:
    async with (
        serving(spec=DUPLEX, webrtc=1) as server,
        calling_by_peer(server, f"/m/null-duplex{CHAT}", has_channel=False) as client,
    ):
        await client.until(lambda: client.heard.size > 24_000)
        assert client.location.startswith(f"/m/null-duplex{CHAT}/rtc_")
        async with server.http.delete(server.url(client.location)) as response:
            assert response.status == 200
        await no_connections(server)
        async with server.http.delete(server.url(client.location)) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("?ext=1&resume=1&format=opus", 400, "a call by WebRTC cannot be resumed"),
        ("?text_temperature=x", 400, "text_temperature"),
        ("?model=unknown", 404, "unknown"),
    ],
)
async def test_what_a_call_cannot_be_is_refused(query: str, status: int, reason: str) -> None:
    async with serving(model=parrot(), webrtc=1) as server, peer_client() as client:
        found, text, _ = await post(server, CHAT + query, await client.offer())
        assert found == status
        assert reason in text
        await server.is_empty()
        await no_connections(server)
