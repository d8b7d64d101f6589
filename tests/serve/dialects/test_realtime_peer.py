"""OpenAI Realtime by WebRTC: a peer of aiortc calls servers with the null backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from antiphon.arrays import FloatArray
from antiphon.errors import ConfigError, DrainingError, ServerFullError
from antiphon.protocol import sdp
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.peers import ice_server
from antiphon.serve.transport import peer
from tests.serve.agent_client import agent_serving
from tests.serve.asr_client import STT
from tests.serve.harness import FRAME_SAMPLES, serving, speech
from tests.serve.live_client import parrot
from tests.serve.lossy_relay import relayed
from tests.serve.peer_client import CALLS, calling_by_peer, no_connections, peer_client, post
from tests.support.text_model import TextModelServer, says

LONG = " ".join(["word"] * 60)
SECRETS = "/v1/realtime/client_secrets"


async def test_a_call_begins_is_answered_with_sound_and_ends() -> None:
    async with serving(model=parrot(), webrtc=2) as server:
        async with calling_by_peer(server) as client:
            assert client.location.startswith(f"{CALLS}/rtc_")
            created = (await client.event("session.created"))["session"]
            assert created["model"] == "null-echo"
            detection = {"type": "server_vad", "interrupt_response": False}
            formats = {"input": {"turn_detection": detection}, "output": {"format": {"type": "audio/pcmu"}}}
            client.send("session.update", session={"audio": formats})
            updated = (await client.event("session.updated"))["session"]
            assert updated["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
            client.microphone.say(0.3 * speech(12))
            begun = await client.event("output_audio_buffer.started")
            done = (await client.event("response.done"))["response"]
            stopped = await client.event("output_audio_buffer.stopped")
            assert done["id"] == begun["response_id"] == stopped["response_id"]
            assert done["status"] == "completed"
            await client.until(lambda: client.heard.size > 48_000 * 0.9)
            loud = client.heard[np.abs(client.heard) > 0.05]
            assert loud.size > 0.5 * 12 * 2 * FRAME_SAMPLES * 0.5
            assert not client.of("response.output_audio.delta")
            assert not client.of("error")
            assert [call.seconds > 0.5 for call in server.calls] == [True]
        await server.is_empty()
        await no_connections(server)


async def test_an_ephemeral_key_has_the_session_of_its_calls(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("page", digest_of("sk-page"))) + "\n")
    bearer = {"Authorization": "Bearer sk-page"}
    async with serving(model=parrot(), webrtc=2, api_keys=str(keys)) as server:
        session = {"type": "realtime", "instructions": "By key."}
        async with server.http.post(
            server.url(SECRETS), json={"session": session}, headers=bearer
        ) as response:
            secret = {"Authorization": f"Bearer {(await response.json())['value']}"}
        async with calling_by_peer(server, headers=secret) as client:
            created = (await client.event("session.created"))["session"]
            assert created["instructions"] == "By key."
            assert [call.caller.name for call in server.calls] == ["page"]
            async with peer_client() as other:
                status, text, _ = await post(server, CALLS, await other.offer())
            assert (status, json.loads(text)["error"]["code"]) == (401, "missing_authorization")
            async with server.http.delete(server.url(client.location), headers=secret) as response:
                assert response.status == 200
            await server.is_empty()


async def test_a_form_has_a_session_and_its_call_can_be_hung_up() -> None:
    async with serving(model=parrot(), webrtc=2) as server, peer_client() as client:
        form = aiohttp.FormData()
        form.add_field("sdp", await client.offer(), content_type="application/sdp")
        form.add_field("session", json.dumps({"instructions": "By form."}), content_type="application/json")
        status, answer, location = await post(server, CALLS, form, content_type=None)
        assert status == 201
        await client.accept(answer)
        assert (await client.event("session.created"))["session"]["instructions"] == "By form."
        async with server.http.post(server.url(f"{location}/hangup")) as response:
            assert response.status == 200
        await no_connections(server)
        async with server.http.delete(server.url(location)) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "session_not_found")
        _, metrics, _ = await server.get("/metrics")
        assert 'antiphon_closed_sockets_total{code="1000",model="null-echo"} 1.0' in metrics


async def test_a_recogniser_hears_a_track() -> None:
    async with (
        serving(spec=STT, webrtc=1) as server,
        calling_by_peer(server, f"{CALLS}?intent=transcription") as client,
    ):
        created = (await client.event("session.created"))["session"]
        assert created["type"] == "transcription"
        client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
        await client.event("session.updated")
        await server.eventually(lambda: bool(server.calls) and server.calls[0].seconds > 0.2)
        client.send("input_audio_buffer.commit")
        done = await client.event("conversation.item.input_audio_transcription.completed")
        assert done["usage"]["seconds"] > 0.1


async def test_an_agent_speaks_over_a_track_and_is_cut() -> None:
    async with (
        TextModelServer(says(LONG)).serve() as text,
        agent_serving(text, webrtc=1) as server,
        calling_by_peer(server, f"{CALLS}?model=assistant") as client,
    ):
        await client.event("session.created")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Speak."}]}
        client.send("conversation.item.create", item=item)
        client.send("response.create")
        begun = await client.event("output_audio_buffer.started")
        await client.until(lambda: bool(client.heard.size))
        client.send("output_audio_buffer.clear")
        done = (await client.event("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        cleared = await client.event("output_audio_buffer.cleared")
        assert cleared["response_id"] == begun["response_id"] == done["id"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: "", "the offer is no SDP: its first line has to be v=0"),
        (lambda text: text * 30, f"the limit is {sdp.MAX_OFFER_BYTES}"),
        (lambda text: text.replace("m=audio", "m=video"), "the offer has a section of 'video'"),
        (lambda text: text.replace("opus/48000/2", "speex/8000"), "no codec opus/48000/2"),
        (lambda text: text.replace("a=fingerprint:", "a=finger:"), "no line a=fingerprint:"),
        (lambda text: text.replace("a=fingerprint:sha-256 ", "a=fingerprint:sha-256"), "cannot be used"),
    ],
)
async def test_an_offer_that_cannot_be_used_is_refused_with_its_reason(change: object, reason: str) -> None:
    assert callable(change)
    async with serving(model=parrot(), webrtc=1) as server, peer_client() as client:
        status, text, _ = await post(server, CALLS, change(await client.offer()))
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (400, "invalid_value")
        assert reason in error["message"]
        await no_connections(server)
        await server.is_empty()


async def test_a_server_without_calls_by_webrtc_says_how_to_take_some() -> None:
    async with serving(model=parrot()) as server:
        status, text, _ = await post(server, CALLS, "v=0")
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (400, "unsupported_value")
        assert "start it with --webrtc CALLS" in error["message"]


async def test_no_more_calls_than_the_server_takes_and_no_more_than_there_are_rows() -> None:
    async with serving(model=parrot(slots=2), webrtc=1) as server, calling_by_peer(server) as client:
        await client.event("session.created")
        async with peer_client() as other:
            status, text, _ = await post(server, CALLS, await other.offer())
        assert (status, json.loads(text)["error"]["message"]) == (503, "1 of 1 calls by WebRTC")


async def test_a_peer_that_never_connects_frees_its_row() -> None:
    limits = {"connect_timeout_s": 0.3}
    async with (
        serving(model=parrot(slots=1), webrtc=1, limits=limits) as server,
        peer_client() as client,
    ):
        status, _, _ = await post(server, CALLS, await client.offer())
        assert status == 201
        await server.is_empty()
        await no_connections(server)
        _, metrics, _ = await server.get("/metrics")
        assert 'antiphon_admissions_total{model="null-echo",outcome="admitted"} 1.0' in metrics


async def test_an_offer_gets_no_packet_at_its_addresses_before_it_is_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = list[bytes]()
    async with serving(model=parrot(), webrtc=1) as server, peer_client() as client:
        offer = await client.offer()
        found = re.search(r" (\d+\.\d+\.\d+\.\d+) \d+ typ host", offer)
        assert found is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((found[1], 0))
            other.setblocking(False)

            async def refuse(_call: Call, **_: object) -> None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        received.append(await asyncio.get_running_loop().sock_recv(other, 2000))
                raise ServerFullError("full", retry_after_s=1)

            monkeypatch.setattr(Call, "admit", refuse)
            place = f" {found[1]} {other.getsockname()[1]} typ host"
            elsewhere = re.sub(rf" {re.escape(found[1])} \d+ typ host", place, offer)
            status, text, _ = await post(server, CALLS, elsewhere)
            assert (status, json.loads(text)["error"]["code"]) == (503, "server_full")
        await no_connections(server)
    assert received == []


async def test_a_call_counts_and_can_be_ended_before_its_peer_connects() -> None:
    async with serving(model=parrot(slots=1), webrtc=1) as server, peer_client() as client:
        status, _, _ = await post(server, CALLS, await client.offer())
        (call,) = server.calls
        assert (status, server.engine.health().active) == (201, 1)
        call.end(DrainingError("the server is shutting down"))
        await call.closed()
        await server.is_empty()
        await no_connections(server)
        _, metrics, _ = await server.get("/metrics")
        assert 'antiphon_closed_sockets_total{code="1012",model="null-echo"} 1.0' in metrics


async def test_a_fault_of_the_server_in_a_call_is_logged_and_releases_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_call: Call, _transport: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Call, "run", fail)
    async with serving(model=parrot(slots=1), webrtc=1) as server, calling_by_peer(server):
        await server.is_empty()
        await no_connections(server)
        _, metrics, _ = await server.get("/metrics")
        assert 'antiphon_closed_sockets_total{code="1011",model="null-echo"} 1.0' in metrics
        (record,) = [it for it in caplog.records if it.getMessage() == "call by WebRTC failed"]
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == "planted"


async def test_a_stun_server_is_silent_and_ends_the_wait_for_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer, "GATHER_S", 0.3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        server_name = f"stun:127.0.0.1:{silent.getsockname()[1]}"
        async with (
            serving(model=parrot(), webrtc=1, ice_server=(server_name,)) as server,
            peer_client() as client,
        ):
            status, text, _ = await post(server, CALLS, await client.offer())
            assert (status, json.loads(text)["error"]["code"]) == (503, "peer_connection_failed")
            await no_connections(server)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("stun:a.example:3478", {"urls": "stun:a.example:3478"}),
        ("stun:a.example", {"urls": "stun:a.example"}),
        (
            "turn://me:p%40ss@a.example:3478?transport=tcp",
            {"urls": "turn:a.example:3478?transport=tcp", "username": "me", "credential": "p@ss"},
        ),
        ("turns://me:x@a.example", {"urls": "turns:a.example", "username": "me", "credential": "x"}),
    ],
)
def test_servers_of_ice_by_their_addresses(address: str, found: dict[str, str]) -> None:
    assert ice_server(address) == found


@pytest.mark.parametrize(
    "address", ["", "a.example", "http://a", "stun:", "turn:a.example", "stun://x:secret@a", "stun:a:99999"]
)
def test_an_address_that_is_no_server_of_ice_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(ConfigError, match="expected stun:HOST:PORT or") as refused:
        ice_server(address)
    assert "secret" not in str(refused.value)


async def test_a_peer_that_opens_channel_after_channel_is_ended() -> None:
    async with serving(model=parrot(), webrtc=1) as server, calling_by_peer(server) as client:
        await client.event("session.created")
        for number in range(peer.MAX_CHANNELS):
            client.connection.createDataChannel(f"further {number}")
        error = (await client.event("error"))["error"]
        assert error["message"] == f"{peer.MAX_CHANNELS + 1} data channels, the limit is {peer.MAX_CHANNELS}"
        await server.is_empty()
        await no_connections(server)


async def test_a_peer_that_falls_silent_is_ended() -> None:
    async with (
        serving(model=parrot(), webrtc=1, limits={"liveness_timeout_s": 1.0}) as server,
        calling_by_peer(server) as client,
    ):
        await client.event("session.created")
        transport = client.connection.getSenders()[0].transport.transport
        await transport.stop()  # no packet leaves any more, and no word of the end
        await server.is_empty()


def loud(pcm: FloatArray) -> int:
    """Samples that are no silence."""
    return int(np.count_nonzero(np.abs(pcm) > 0.01))


async def test_a_network_that_loses_and_delays_packets_breaks_neither_events_nor_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(model=parrot(), webrtc=1) as server, peer_client() as client:
        offer = "".join(
            line for line in (await client.offer()).splitlines(keepends=True) if "a=candidate:" not in line
        )
        status, answer, location = await post(server, CALLS, offer)
        assert status == 201
        async with relayed(answer, seed=7) as (answer, relay):
            await client.accept(answer)
            await client.event("session.created")
            detection = {"type": "server_vad", "interrupt_response": False}
            client.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
            await client.event("session.updated")
            said, processed = 0.3 * speech(25), list[FloatArray]()
            (session,) = [call.participant.session for call in server.calls]
            assert session is not None
            push = session.push

            def watched(pcm: FloatArray, now_s: float) -> None:
                processed.append(pcm.copy())
                push(pcm, now_s)

            monkeypatch.setattr(session, "push", watched)
            relay.disturb(loss=0.05, delay_s=0.1)
            client.microphone.say(said)
            await client.event("response.done")
            assert relay.lost > 0
            assert relay.passed > 4 * relay.lost
            # aiortc's own receiver drops much after a loss, so the model's input is compared. A gap may
            # end the turn early: the rest of the speech comes after the response.
            await server.eventually(lambda: loud(np.concatenate(processed)) > 0.8 * loud(said))
            assert client.heard.any()
            async with server.http.delete(server.url(location)) as response:
                assert response.status == 200
        await server.is_empty()


async def test_a_draining_server_ends_calls_and_connections() -> None:
    async with serving(model=parrot(), webrtc=1) as server, calling_by_peer(server) as client:
        await client.event("session.created")
        for call in server.calls:
            call.end(DrainingError("the server is shutting down"))
        error = (await client.event("error"))["error"]
        assert error["message"] == "the server is shutting down"
        await server.is_empty()
        await no_connections(server)
