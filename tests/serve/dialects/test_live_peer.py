"""OpenAI Live by WebRTC: the session comes with the offer, audio goes by the tracks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tests.serve.agent_client import agent_serving
from tests.serve.harness import Server, serving, speech
from tests.serve.live_client import parrot
from tests.serve.peer_client import PeerClient, no_connections, peer_client, post
from tests.support.text_model import TextModelServer

LIVE = "/v1/live/sessions"


async def offered(server: Server, sdp: str, **session: Any) -> tuple[int, Any, str]:
    body = {"session": session, "transport": {"type": "webrtc", "sdp": sdp}}
    status, text, location = await post(server, LIVE, json.dumps(body), content_type="application/json")
    return status, json.loads(text), location


@asynccontextmanager
async def live_peer(server: Server, **session: Any) -> AsyncIterator[PeerClient]:
    """A caller whose session has started."""
    async with peer_client() as client:
        status, answer, client.location = await offered(server, await client.offer(), **session)
        assert status == 201, answer
        assert client.location == f"{LIVE}/{answer['session']['id']}"
        await client.accept(answer["transport"]["sdp"])
        started = await client.event("session.started")
        assert started["session"]["id"] == answer["session"]["id"]
        yield client


async def test_a_session_has_its_events_and_its_sound_apart() -> None:
    async with serving(model=parrot(), webrtc=1) as server:
        async with live_peer(server, model="null-echo", audio={"format": {"type": "audio/pcmu"}}) as client:
            client.microphone.say(0.3 * speech(12))
            await client.until(lambda: np.abs(client.heard).max(initial=0.0) > 0.1)
            client.send("session.input_audio.mute")
            await client.event("session.input_audio.muted")
            client.send("session.close")
            closed = await client.event("session.closed")
            assert closed["reason"] == "close_requested"
            assert not client.of("session.output_audio.delta")
            assert not client.of("error")
        await server.is_empty()
        await no_connections(server)


async def test_an_agents_session_begins_by_an_offer_and_ends_by_its_address() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, webrtc=1) as server,
        live_peer(server, model="assistant") as client,
    ):
        await client.until(lambda: client.heard.size > 9600)  # silence until it speaks
        async with server.http.post(server.url(f"{client.location}/hangup")) as response:
            assert response.status == 200
        await no_connections(server)
        await server.is_empty()


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"model": "null-echo", "client": {"data_channel": {}}}, "session.client"),
        ({}, "session.model"),
    ],
)
async def test_a_session_that_cannot_be_is_refused(session: dict[str, Any], param: str) -> None:
    async with serving(model=parrot(), webrtc=1) as server, peer_client() as client:
        status, answer, _ = await offered(server, await client.offer(), **session)
        assert (status, answer["error"]["param"]) == (400, param)
        await no_connections(server)
