"""OpenAI Realtime with the null backend: supported events, refusals, and the end."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.errors import DrainingError
from antiphon.serve.access.ephemeral import EphemeralKeys
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.dialects import translation
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Closed, Server, serving, speech
from tests.serve.hostile_requests import UPGRADE, masked
from tests.serve.live_client import parrot
from tests.serve.realtime_client import PATH, RealtimeClient, realtime_client
from tests.support.null_models import CODEC, DUPLEX, HIBIKI

SECRETS = f"{PATH}/client_secrets"


async def said_back(client: RealtimeClient) -> None:
    """Say something, which a parrot says back, and send no more: the server hears silence."""
    await client.speak(0.3 * speech(12))


async def post(server: Server, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with server.http.post(server.url(SECRETS), data=data, headers=headers) as response:
        return response.status, await response.json()


async def test_a_session_begins_hears_answers_and_ends() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        created = (await client.event("session.created"))["session"]
        assert created["id"].startswith("sess_")
        assert (created["object"], created["model"]) == ("realtime.session", "null-echo")
        assert (await client.event("conversation.created"))["conversation"][
            "object"
        ] == "realtime.conversation"
        updated = await client.update(output_modalities=["audio"], instructions="Be kind.")
        assert updated["instructions"] == "Be kind."
        assert updated["id"] == created["id"]
        await said_back(client)
        done = await client.event("response.done")
        assert done["response"]["status"] == "completed"
        sound = b"".join(base64.b64decode(it["delta"]) for it in client.of("response.output_audio.delta"))
        assert np.abs(np.frombuffer(sound, "<i2")).max() > 3000
        assert len(sound) < 2 * 28 * FRAME_SAMPLES  # no sound between responses
        ids = [event["event_id"] for event in client.events]
        assert len(ids) == len(set(ids))
        await client.ws.close()
        await server.is_empty()


async def test_a_session_is_created_before_anything_is_answered_however_early_it_is_asked() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        headers = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        upgrade = f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{headers}\r\n".encode()
        writer.write(upgrade + masked(0x81, b'{"type":"conversation.item.create","item":{}}'))
        async with asyncio.timeout(PATIENCE_S):
            came = await reader.readuntil(b'"error"')
        assert b'"session.created"' in came
        writer.close()


async def test_a_caller_and_its_turns() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.update()
        await said_back(client)
        stopped = await client.event("input_audio_buffer.speech_stopped")
        (started,) = client.of("input_audio_buffer.speech_started")
        assert started["item_id"] == stopped["item_id"]
        assert 0 <= started["audio_start_ms"] < stopped["audio_end_ms"]
        committed = await client.event("input_audio_buffer.committed")
        added = await client.until(
            lambda it: it["type"] == "conversation.item.added" and it["item"]["role"] == "user"
        )
        assert added["item"]["id"] == committed["item_id"] == started["item_id"]
        assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]


async def test_a_response_that_is_asked_for_repeats_its_metadata() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.send("response.create", response={"metadata": {"client_event_id": "x"}})
        created = (await client.event("response.created"))["response"]
        assert created["metadata"] == {"client_event_id": "x"}
        await client.send("response.cancel")
        done = (await client.event("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        await client.send("response.cancel", event_id="c")
        error = await client.error()
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c")


TEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
UNREAD = "the model null-echo answers only audio from input_audio_buffer.append"


@pytest.mark.parametrize(
    ("item", "response", "named"),
    [
        (TEXT, {}, "items"),
        ({**TEXT, "content": [{"type": "input_audio", "audio": ""}]}, {}, "items"),
        (None, {"input": [TEXT], "conversation": "none"}, "response.input, response.conversation"),
    ],
)
async def test_a_response_to_items_fails_at_once_and_sound_is_answered_all_the_same(
    item: dict[str, Any] | None, response: dict[str, Any], named: str
) -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.update()
        if item is not None:
            await client.send("conversation.item.create", item=item)
            await client.send("conversation.item.create", item={**TEXT, "role": "assistant"})
        await client.send("response.create", response={"metadata": {"a": "b"}, **response})
        done = (await client.event("response.done"))["response"]
        assert (done["status"], done["metadata"], done["output"]) == ("failed", {"a": "b"}, [])
        assert done["status_details"]["error"] == {
            "type": "invalid_request_error",
            "code": "unsupported_value",
            "message": f"{named}: {UNREAD}",
        }
        await said_back(client)
        done = (await client.event("response.done"))["response"]
        assert done["status"] == "completed"
        assert len(done["output"]) == 1


@pytest.mark.parametrize("is_spoken_to", [False, True])
async def test_an_item_before_the_callers_speech_is_no_question(is_spoken_to: bool) -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.update(audio={"input": {"turn_detection": None}})
        role = "user" if is_spoken_to else "assistant"
        await client.send("conversation.item.create", item={**TEXT, "role": role})
        if is_spoken_to:
            await client.speak(0.3 * speech(4))
            await client.send("input_audio_buffer.commit")
        await client.send("response.create", response={"metadata": {"a": "b"}})
        await client.send("response.cancel")
        asked = await client.until(
            lambda it: it["type"] == "response.done" and it["response"]["metadata"] is not None
        )
        assert asked["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    "headers",
    [
        {"OpenAI-Beta": "realtime=v1"},
        {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.k, openai-beta.realtime-v1"},
        {},
    ],
)
async def test_a_client_of_the_retired_beta_is_sent_away_in_words(headers: dict[str, str]) -> None:
    async with serving(model=parrot()) as server, realtime_client(server, **headers) as client:
        if not headers:
            await client.send("session.update", session={"modalities": ["audio"], "voice": "alloy"})
        error = await client.error()
        assert (error["type"], error["code"]) == ("invalid_request_error", "beta_api_shape_disabled")
        assert error["message"].startswith("the beta of this API is retired, use its general availability")
        assert (await client.closed()).code == 4000
        await server.is_empty()


async def test_a_wav_in_each_append_is_one_error_and_samples_after_a_header_are_heard() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.update(audio={"input": {"turn_detection": None}})
        for number in range(3):
            await client.append(b"RIFF\x24\0\0\0WAVEfmt " + bytes(4001), event_id=f"a{number}")
        await client.speak(0.3 * speech(1))
        await client.send("input_audio_buffer.commit")
        await client.event("input_audio_buffer.committed")
        (told,) = client.of("error")
        assert told["error"] == {
            "type": "invalid_request_error",
            "code": "invalid_value",
            "message": "audio is a file, WAV; bare samples are needed, in the session's format: "
            "audio/pcm, audio/pcmu or audio/pcma. Further events with files are dropped",
            "param": "audio",
            "event_id": "a0",
        }


async def test_events_that_are_acknowledged() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.event("session.created")
        item = {"id": "mine", "type": "message", "role": "user", "content": []}
        await client.send("conversation.item.create", item=item)
        assert (await client.event("conversation.item.added"))["item"]["id"] == "mine"
        assert (await client.event("conversation.item.done"))["item"]["status"] == "completed"
        await client.send("conversation.item.retrieve", item_id="mine")
        assert (await client.event("conversation.item.retrieved"))["item"]["role"] == "user"
        await client.send("conversation.item.truncate", item_id="mine", content_index=0, audio_end_ms=7)
        truncated = await client.event("conversation.item.truncated")
        assert (truncated["item_id"], truncated["audio_end_ms"]) == ("mine", 7)
        await client.send("conversation.item.delete", item_id="mine")
        assert (await client.event("conversation.item.deleted"))["item_id"] == "mine"
        await client.send("input_audio_buffer.clear")
        await client.event("input_audio_buffer.cleared")
        await client.update(audio={"input": {"turn_detection": None}})
        await client.send("input_audio_buffer.commit", event_id="c")
        error = await client.error()
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "c")
        await client.speak(0.3 * speech(1))
        await client.send("input_audio_buffer.commit")
        await client.event("input_audio_buffer.committed")
        assert not client.of("input_audio_buffer.speech_started")


async def test_a_hard_interruption_ends_the_response_at_once() -> None:
    async with serving(spec=DUPLEX) as server:
        async with realtime_client(server, f"{PATH}?duplex_interrupt=hard") as client:
            await client.update()
            await client.event("response.content_part.added")  # the null backend talks without end
            await client.speak(0.3 * speech(6))
            done = (await client.event("response.done"))["response"]
            assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
            assert done["output"][0]["content"][0]["transcript"].startswith("t")
        async with realtime_client(server) as client:
            await client.update()
            await client.event("response.content_part.added")
            await client.speak(0.3 * speech(6))
            await client.event("input_audio_buffer.speech_started")
            for _ in range(10):
                await client.event("response.output_audio.delta")
            assert not client.of("response.done")  # informed, and nothing cut


async def test_both_directions_have_a_format_of_their_own() -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        audio = {"input": {"format": {"type": "audio/pcmu"}}, "output": {"format": {"type": "audio/pcma"}}}
        shown = (await client.update(audio=audio))["audio"]
        assert (shown["input"]["format"], shown["output"]["format"]) == (
            {"type": "audio/pcmu"},
            {"type": "audio/pcma"},
        )
        tone = (0.4 * np.sin(2 * np.pi * 500 * np.arange(8000) / 8000)).astype(np.float32)
        await client.append(g711.encode(tone, Law.MU))
        data = b""
        while len(data) < 6000:
            data += base64.b64decode((await client.event("response.output_audio.delta"))["delta"])
        heard = g711.decode(data[1000:5000], Law.A)
        assert np.argmax(np.abs(np.fft.rfft(heard))) == 250
        assert 0.36 < np.abs(heard).max() < 0.44


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            b"\0",
            {
                "code": "invalid_json",
                "message": "a binary message of 1 bytes, events are text",
                "param": None,
            },
        ),
        (
            '{"type":"output_audio_buffer.clear","event_id":"e"}',
            {
                "code": "unsupported_event",
                "message": "type is output_audio_buffer.clear, which is for WebRTC and SIP",
                "param": "type",
            },
        ),
        (
            '{"type":"input_audio_buffer.append","audio":"AAAA"}',
            {
                "code": "invalid_value",
                "message": "audio is 3 bytes are no whole number of s16le samples of 2 bytes",
                "param": "audio",
            },
        ),
        (
            '{"type":"session.update","session":{"type":"transcription"}}',
            {
                "code": "invalid_value",
                "message": "session.type is 'transcription', and this is a realtime session",
                "param": "session.type",
            },
        ),
    ],
)
async def test_an_error_leaves_the_session_as_it_is(message: str | bytes, error: dict[str, Any]) -> None:
    async with serving(model=parrot()) as server, realtime_client(server) as client:
        await client.update()
        await (client.ws.send_bytes(message) if isinstance(message, bytes) else client.ws.send_str(message))
        found = await client.error()
        assert {name: found[name] for name in error} == error
        assert found["type"] == "invalid_request_error"
        await said_back(client)
        await client.event("response.done")


@pytest.mark.parametrize("query", ["duplex_interrupt=often", "reply_silence_ms=399", "reply_silence_ms=1e3"])
async def test_a_wrong_query_is_refused_before_the_upgrade(query: str) -> None:
    async with serving() as server:
        status, text, _ = await server.get(f"{PATH}?{query}")
        assert status == 400
        message = json.loads(text)["error"]["message"]
        assert message in ("duplex_interrupt is soft or hard", "reply_silence_ms is 400 to 1000")


async def test_refusals_come_in_words_that_clients_know() -> None:
    async with serving(slots=1, engine={"max_queue": 0}) as server, realtime_client(server) as first:
        await first.event("session.created")
        async with realtime_client(server) as second:
            error = await second.error()
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert (await second.closed()).code == 1013
        async with realtime_client(server, f"{PATH}?model=gpt-realtime") as third:
            error = await third.error()
            assert error["code"] == "model_not_found"
            assert error["message"] == (
                "no model 'gpt-realtime' here; there is: null-echo (codec); to serve it under this name: "
                "--alias gpt-realtime=null-echo"
            )
            assert (await third.closed()).code == 1008
        assert (await server.get(PATH))[0] == 503  # a plain GET learns what would be wrong
    async with serving() as server:
        assert (await server.get(PATH))[0] == 426
        async with realtime_client(server, f"{PATH}?intent=transcription") as client:
            assert (await client.error())["message"] == "no stt model here; there is: null-echo (codec)"


async def test_a_server_that_leaves_says_so() -> None:
    async with serving() as server, realtime_client(server) as client:
        await client.event("session.created")
        (call,) = server.services.calls
        call.end(DrainingError("the server is shutting down"))
        assert (await client.error())["code"] == "server_draining"
        assert await client.closed() == Closed(1012, "the server is shutting down")


async def test_a_client_that_is_silent_is_answered_in_time_all_the_same() -> None:
    async with serving(spec=DUPLEX) as server, realtime_client(server) as client:
        await client.event("response.output_audio.delta")  # without a word of the client


async def test_a_browser_shows_its_key_as_a_subprotocol(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    async with serving(api_keys=str(keys)) as server:
        offered = ["realtime", "openai-insecure-api-key.key-of-alice"]
        async with realtime_client(server, protocols=offered) as client:
            assert client.ws.protocol == "realtime"
            await client.event("session.created")
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with realtime_client(server, protocols=["realtime", "openai-insecure-api-key.no"]):
                pass


# Ephemeral keys.


async def test_an_ephemeral_key_opens_the_session_it_is_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    async with serving(api_keys=str(keys)) as server:
        wanted = {"type": "realtime", "instructions": "Be kind.", "output_modalities": ["text"]}
        body = {"session": wanted, "expires_after": {"anchor": "created_at", "seconds": 60}}
        status, made = await post(server, body, Authorization="Bearer key-of-alice")
        assert status == 200
        assert made["value"].startswith("ek_")
        assert made["session"]["instructions"] == "Be kind."
        offered = ["realtime", f"openai-insecure-api-key.{made['value']}"]
        async with realtime_client(server, protocols=offered) as client:
            session = (await client.event("session.created"))["session"]
            assert (session["instructions"], session["output_modalities"]) == ("Be kind.", ["text"])
            assert [call.caller.name for call in server.services.calls] == ["alice"]
        # It is for sessions of this kind alone, and makes no other.
        for path in ("/v1/models", "/api/chat", "/v1/live/sessions"):
            assert (await server.get(path, Authorization=f"Bearer {made['value']}"))[0] == 401
        assert (await post(server, {}, Authorization=f"Bearer {made['value']}"))[0] == 401
        keys.write_text(format_key(KeyEntry("bob", digest_of("key-of-bob"))) + "\n")
        assert (await server.get(PATH, Authorization=f"Bearer {made['value']}"))[0] == 401


async def test_an_ephemeral_key_needs_no_api_key_where_none_is_asked_for() -> None:
    async with serving(also=[("other", CODEC)]) as server:
        status, made = await post(server, {"session": {"model": "other"}})
        assert (status, made["session"]["model"]) == (200, "other")
        async with realtime_client(server, Authorization=f"Bearer {made['value']}") as client:
            assert (await client.event("session.created"))["session"]["model"] == "other"
        headers = {"Authorization": f"Bearer {made['value']}"}
        status, text, _ = await server.get(f"{PATH}?model=null-echo", **headers)
        assert status == 400
        message = json.loads(text)["error"]["message"]
        assert message == "session.model is 'other', and the connection names 'null-echo'"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[]", 400, "the body is a JSON list, an object is needed"),
        (
            {"expires_after": {"seconds": 9}},
            400,
            "expires_after.seconds is 9, 10 to 7200 are allowed",
        ),
        ({"expires_after": {"anchor": "x"}}, 400, "expires_after.anchor is 'x', not one of created_at"),
        ({"session": {"type": "x"}}, 400, "session.type is 'x', not one of realtime, transcription"),
        ({"session": {"instructions": "x" * 3000}}, 400, "session is 3"),
        ({"session": {"model": "none"}}, 404, "no model 'none' here"),
    ],
)
async def test_ephemeral_keys_that_are_refused(body: Any, status: int, words: str) -> None:
    async with serving() as server:
        found, answer = await post(server, body)
        assert found == status
        error = answer["error"]
        assert (error if isinstance(error, str) else error["message"]).startswith(words)


def test_the_bytes_of_a_session_in_a_key_are_those_of_its_letters() -> None:
    instructions = "Parlez français, s'il vous plaît. 日本語も。" * 40
    assert 1500 < len(instructions.encode()) < 2500
    keys = EphemeralKeys()
    found = keys.read(keys.issue(None, {"instructions": instructions}, 60)[0])
    assert found is not None
    assert found.session == {"instructions": instructions}


def test_an_ephemeral_key_ends_and_cannot_be_changed() -> None:
    now_s = 1000.0
    maker, reader = (EphemeralKeys(b"s" * 32, time_s=lambda: now_s) for _ in range(2))
    alice = KeyEntry("alice", digest_of("a"))
    value, expires_at = maker.issue(alice, {"instructions": "\U0001f600"}, 60)
    assert expires_at == 1060
    found = reader.read(value)  # of another process with the same secret
    assert found is not None
    assert reader.is_of(found, alice)
    assert not reader.is_of(found, KeyEntry("alice", digest_of("b")))
    padded = value.removeprefix("ek_") + "=" * (-len(value.removeprefix("ek_")) % 4)
    said = base64.urlsafe_b64decode(padded)
    assert alice.digest.hex().encode() not in said  # its holder learns nothing of the API key
    assert found.session == {"instructions": "\U0001f600"}
    assert EphemeralKeys(b"t" * 32, time_s=lambda: now_s).read(value) is None
    for place in range(3, len(value)):
        other = "A" if value[place] != "A" else "B"
        assert reader.read(value[:place] + other + value[place + 1 :]) != found or place == len(value) - 1
    for broken in ("", "ek_", "ek_x", "ek_\xff", "ek_" + "A" * 10_000, value[:-4]):
        assert reader.read(broken) is None
    now_s = 1060.0
    assert reader.read(value) is None


# Translations.


async def test_a_translator_repeats_what_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAIN_S", "LAG_S"):  # a null backend is never silent
        monkeypatch.setattr(translation, name, 0.001)
    async with serving(spec=HIBIKI) as server:
        async with realtime_client(server, f"{PATH}/translations") as client:
            created = (await client.event("session.created"))["session"]
            assert (created["type"], created["model"]) == ("translation", "null-hibiki")
            updated = await client.update(audio={"output": {"language": "fr"}})
            assert updated["audio"]["output"] == {"language": "fr"}
            await client.send(
                "session.input_audio_buffer.append", audio=base64.b64encode(bytes(3840)).decode()
            )
            sound = await client.event("session.output_audio.delta")
            assert (sound["format"], sound["sample_rate"], sound["channels"]) == ("pcm16", 24000, 1)
            text = await client.event("session.output_transcript.delta")
            assert text["delta"].startswith(" t")
            assert text["elapsed_ms"] % 80 == 0
            await client.send("response.create", event_id="r")
            assert (await client.error())["event_id"] == "r"
            await client.send("session.close")
            await client.event("session.closed")
            assert await client.closed() == Closed(1000, "done")
        await server.is_empty()


async def test_translations_need_a_translator() -> None:
    async with serving(spec=DUPLEX) as server, realtime_client(server, f"{PATH}/translations") as client:
        error = await client.error()
        assert error["message"] == "the model null-duplex does not translate; there is: none that does"
        assert error["code"] == "model_not_found"
