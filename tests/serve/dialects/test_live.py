"""OpenAI Live with the null backend: supported, refused and ignored events, and the end."""

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
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import (
    FRAME_SAMPLES,
    PATIENCE_S,
    Client,
    Closed,
    Server,
    serving,
    socket_of,
    speech,
    unsent_bytes,
)
from tests.serve.live_client import PATH, live_client, parrot, watchers_of
from tests.support.null_models import CODEC, DUPLEX

FRAME_BYTES = 2 * FRAME_SAMPLES
PATIENT = {"liveness_timeout_s": 30.0, "close_timeout_s": 10.0}


async def test_a_session_starts_is_heard_and_ends() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        session = await client.start(audio={"output": {"voice": "marin"}}, delegation={"type": "client"})
        assert session["id"].startswith("live_")
        assert session["model"] == "null-echo"
        assert session["status"] == "active"
        assert session["expires_at"] > 1_700_000_000
        assert session["audio"] == {
            "format": {"type": "audio/pcm", "rate": 24000},
            "output": {"voice": "marin"},
        }
        assert session["delegation"] == {"type": "client"}
        assert client.events[0]["client_event_id"] == "start"
        said = 0.3 * speech(3)
        await client.speak(said)
        heard = await client.heard(3)
        np.testing.assert_allclose(heard[120:], said[120:], atol=2e-4)
        await client.send("session.close", event_id="bye")
        closed = await client.event("session.closed")
        assert (closed["reason"], closed["client_event_id"]) == ("close_requested", "bye")
        assert closed["session"]["id"] == session["id"]
        assert closed["usage"]["seconds"] >= 0.24
        assert await client.closed() == Closed(1000, "done")
        await server.is_empty()
        ids = [event["event_id"] for event in client.events if "event_id" in event]
        assert len(ids) == len(set(ids))


async def test_a_client_that_says_nothing_hears_exact_silence() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        await client.start()
        heard = [await client.audio() for _ in range(10)]
        assert all(frame.size == FRAME_SAMPLES and not frame.any() for frame in heard)


async def test_faint_noise_of_the_model_is_exact_silence() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        await client.start()
        await client.speak(np.full(5 * FRAME_SAMPLES, 0.001, np.float32))
        for _ in range(5):
            assert not (await client.audio()).any()


@pytest.mark.parametrize(
    ("kind", "rate", "law"),
    [("audio/pcmu", 8000, Law.MU), ("audio/pcma", 8000, Law.A), ("audio/pcm", 16000, None)],
)
async def test_other_formats_go_both_ways(kind: str, rate: int, law: Law | None) -> None:
    tone = (0.4 * np.sin(2 * np.pi * 500 * np.arange(rate) / rate)).astype(np.float32)
    sent = g711.encode(tone, law) if law else (tone * 32767).astype("<i2").tobytes()
    async with serving(model=parrot()) as server, live_client(server) as client:
        session = await client.start(audio={"format": {"type": kind, "rate": rate}})
        assert session["audio"]["format"] == {"type": kind, "rate": rate}
        await client.append(sent)
        data = b""
        while len(data) < len(sent) * 9 // 10:
            data += base64.b64decode((await client.event("session.output_audio.delta"))["delta"])
        heard = g711.decode(data, law) if law else np.frombuffer(data, "<i2") / 32768
        spectrum = np.abs(np.fft.rfft(heard[rate // 10 : rate // 10 + rate // 2]))
        assert np.argmax(spectrum) == 250  # half a second: bins of 2 Hz
        assert 0.36 < np.abs(heard[rate // 10 : rate // 2]).max() < 0.44


async def test_text_has_the_time_of_its_audio() -> None:
    async with serving(spec=DUPLEX) as server, live_client(server) as client:
        await client.start(model="null-duplex")
        for _ in range(10):
            await client.speak(0.3 * speech(1))
        words = [await client.event("session.output_transcript.delta") for _ in range(5)]
        for word in words:
            position = client.events.index(word)
            before = [it for it in client.events[:position] if it["type"] == "session.output_audio.delta"]
            assert word["end_ms"] == 80 * len(before)
            assert word["start_ms"] == word["end_ms"] - 80
            assert word["delta"].startswith(" t")


async def test_muted_it_hears_silence_and_time_goes_on() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        await client.start()
        await client.send("session.input_audio.mute", event_id="m")
        assert (await client.event("session.input_audio.muted"))["client_event_id"] == "m"
        await client.speak(0.3 * speech(5))
        for _ in range(5):
            assert not (await client.audio()).any()
        await client.send("session.input_audio.unmute", event_id="u")
        assert (await client.event("session.input_audio.unmuted"))["client_event_id"] == "u"
        await client.speak(0.3 * speech(3))
        while not (await client.audio()).any():
            pass


async def test_a_session_may_change_its_delegation() -> None:
    async with serving() as server, live_client(server) as client:
        await client.start()
        delegation = {"type": "responses", "responses": {"model": "x"}}
        await client.send("session.update", event_id="u", session={"delegation": delegation})
        updated = await client.event("session.updated")
        assert (updated["client_event_id"], updated["session"]["delegation"]) == ("u", delegation)


async def test_what_has_no_effect_is_said_once() -> None:
    async with serving() as server, live_client(server) as client:
        await client.start(
            instructions="Be brief.",
            audio={"output": {"voice": "marin"}},
            input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            delegation={"type": "responses", "responses": {"model": "x"}},
            triggers=[{"type": "decisions"}],
            store=True,
        )
        infos = [await client.event("info") for _ in range(6)]
        assert {it["code"]: it["message"] for it in infos} == {
            "instructions_ignored": "instructions has no effect: the model null-echo takes no instructions",
            "voice_ignored": "voice has no effect: the model null-echo has no voice of that name",
            "input_ignored": "input has no effect: the model null-echo reads no earlier conversation",
            "delegation_ignored": "delegation has no effect: the model null-echo delegates nothing",
            "triggers_ignored": "triggers has no effect: the model null-echo makes no decisions",
            "store_ignored": "store has no effect: the model null-echo is not recorded for the client",
        }


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            '{"type":"session.commentary.append","event_id":"c","content":"x","delegation_id":null}',
            {
                "type": "invalid_request_error",
                "code": "unsupported_event",
                "message": "type is session.commentary.append, which the model null-echo cannot follow",
                "param": "type",
                "client_event_id": "c",
            },
        ),
        (
            '{"type":"session.start","session":{"model":"null-echo"}}',
            {
                "type": "invalid_request_error",
                "code": "session_already_started",
                "message": "type is session.start, and the session has started",
                "param": "type",
            },
        ),
        (
            '{"type":"session.input_audio.append","event_id":"a","audio":"AAAA"}',
            {
                "type": "invalid_request_error",
                "code": "invalid_value",
                "message": "audio is 3 bytes are no whole number of s16le samples of 2 bytes",
                "param": "audio",
                "client_event_id": "a",
            },
        ),
        (
            '{"type":"response.cancel"}',
            {
                "type": "invalid_request_error",
                "code": "unknown_event",
                "message": "type is 'response.cancel', which no client of this API sends",
                "param": "type",
            },
        ),
        (
            b"\x01abc",
            {
                "type": "invalid_request_error",
                "code": "invalid_json",
                "message": "a binary message of 4 bytes, events are text",
            },
        ),
    ],
)
async def test_an_error_leaves_the_session_as_it_is(message: str | bytes, error: dict[str, Any]) -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        await client.start()
        await (client.ws.send_bytes(message) if isinstance(message, bytes) else client.ws.send_str(message))
        assert await client.error() == error
        await client.speak(0.3 * speech(2))
        while not (await client.audio()).any():
            pass


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("{", "invalid_json", "an event is not JSON: "),
        (
            '{"type":"session.close","event_id":"z"}',
            "session_not_started",
            "the first event has to be session.start",
        ),
        (
            '{"type":"session.start","session":{"model":"gpt-live-1"}}',
            "model_not_found",
            "no model 'gpt-live-1' here; there is: null-echo (codec); to serve it under this name: "
            "--alias gpt-live-1=null-echo",
        ),
        (
            '{"type":"session.start","session":{"model":"null-echo","audio":{"format":{"type":"audio/opus"}}}}',
            "invalid_value",
            "session.audio.format.type is 'audio/opus', not one of audio/pcm, audio/pcmu, audio/pcma",
        ),
    ],
)
async def test_an_error_before_the_start_ends_the_connection(message: str, code: str, words: str) -> None:
    async with serving() as server, live_client(server) as client:
        await client.ws.send_str(message)
        error = await client.error()
        assert error["code"] == code
        assert error["message"].startswith(words)
        assert (await client.closed()).code == 1008
        await server.is_empty()


async def test_a_client_that_does_not_start_is_not_waited_for() -> None:
    async with serving(limits={"handshake_timeout_s": 0.2}) as server, live_client(server) as client:
        error = await client.error()
        assert (error["code"], error["message"]) == ("session_timeout", "no session.start for 0.2 s")
        assert (await client.closed()).code == 1008


async def test_a_client_that_leaves_before_it_starts_leaves_nothing() -> None:
    async with serving() as server:
        async with live_client(server) as client:
            await client.ws.close()
        await server.is_empty()


async def test_a_full_house_says_so_in_words_that_clients_know() -> None:
    async with serving(slots=1, engine={"max_queue": 0}) as server, live_client(server) as first:
        await first.start()
        async with live_client(server) as second:
            await second.send("session.start", session={"model": "null-echo"})
            error = await second.error()
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert (await second.closed()).code == 1013


async def test_a_proxy_with_other_workers_hears_of_a_full_house_before_the_upgrade() -> None:
    async with serving(slots=1, engine={"max_queue": 0}) as server, live_client(server) as first:
        await first.start()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with live_client(server, **{"X-Antiphon-Elsewhere": "1"}):
                pass
        assert refused.value.status == 503


async def test_too_many_sessions_of_one_address() -> None:
    async with serving(limits={"max_sessions_per_address": 1}) as server, live_client(server) as first:
        await first.start()
        async with live_client(server) as second:
            error = await second.error()
            assert error["code"] == "rate_limit_exceeded"
            assert error["message"] == "your address 127.0.0.1 has 1 of 1 sessions"
            assert (await second.closed()).code == 1013


async def test_a_refusal_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(limits={"max_sessions_per_address": 1}) as server:
        async with live_client(server) as first:
            await first.start()
            async with live_client(server) as second:
                await second.closed()
        async with live_client(server) as third:
            await third.send("session.start", session={"model": "none"})
            await third.closed()
    refusals = [it for it in caplog.records if it.getMessage() == "session refused"]
    assert [vars(it)["fields"]["error"] for it in refusals] == ["SessionLimitError", "UnknownModelError"]


async def test_a_server_that_leaves_says_so_and_closes_with_1012() -> None:
    async with serving() as server, live_client(server) as client:
        await client.start()
        (call,) = server.calls
        call.announce_draining(5.0)
        info = await client.event("info")
        assert (info["code"], info["message"]) == ("server_draining", "the server shuts down within 5 s")
        call.end(DrainingError("the server is shutting down"))
        assert (await client.error())["code"] == "server_draining"
        assert await client.closed() == Closed(1012, "the server is shutting down")


async def test_a_plain_get_is_told_that_this_is_a_websocket() -> None:
    async with serving() as server:
        assert (await server.get(PATH))[0] == 426


async def test_the_path_may_name_the_model() -> None:
    async with serving(also=[("other", CODEC)]) as server:
        async with live_client(server, "/m/other/v1/live/sessions") as client:
            await client.start(model="other")
        async with live_client(server, "/m/other/v1/live/sessions") as client:
            await client.send("session.start", session={"model": "null-echo"})
            message = (await client.error())["message"]
            assert message == "session.model is 'null-echo', and the path names 'other'"


async def test_usage_is_told_in_seconds_of_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.dialects.live.USAGE_PERIOD_S", 0.1)
    async with serving(spec=DUPLEX) as server, live_client(server) as client:
        await client.start(model="null-duplex")
        usage = await client.event("session.usage.updated")
        assert usage["usage"]["seconds"] > 0
        assert 0 < usage["context_window"]["usage_ratio"] <= 1


async def test_an_answer_under_way_is_finished_before_the_close() -> None:
    async with serving(model=parrot()) as server, live_client(server) as client:
        await client.start()
        await client.speak(0.3 * speech(4))
        await client.send("session.close")
        await client.event("session.closed")
        audio = [
            np.frombuffer(base64.b64decode(it["delta"]), "<i2")
            for it in client.of("session.output_audio.delta")
        ]
        assert sum(bool(frame.any()) for frame in audio) >= 4
        assert not audio[-1].any()


async def hostile(server: Server, messages: list[str | bytes]) -> None:
    async with live_client(server) as client:
        await client.start()
        for message in messages:
            await (
                client.ws.send_bytes(message) if isinstance(message, bytes) else client.ws.send_str(message)
            )
        await client.send("session.close")
        await client.closed()


async def test_hostile_messages_beside_a_talker_cost_it_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine, what the talker says is not replaced by silence.
    monkeypatch.setattr("antiphon.audio.clock.OVERDUE_S", PATIENCE_S)
    nasty: list[str | bytes] = [
        "{",
        "[" * 5000,
        '{"type":3}',
        '{"type":"session.update","session":[]}',
        '{"type":"session.input_audio.append","audio":"!"}',
        json.dumps({"type": "session.input_audio.append", "audio": "A" * 60_001}),
        b"\xff" * 1000,
        '{"type":"session.start"}',
    ] * 50
    limits = {"max_messages_per_s": 100_000}
    async with serving(model=parrot(slots=3), limits=limits) as server, live_client(server) as talker:
        await talker.start()
        floods = asyncio.gather(*(hostile(server, nasty) for _ in range(2)))
        said, heard = 0.3 * speech(30), []
        for index in range(30):
            await talker.speak(said[index * FRAME_SAMPLES : (index + 1) * FRAME_SAMPLES])
            heard.append(await talker.audio())
        await floods
        await talker.send("session.close")
        await talker.closed()
    loud = np.concatenate([frame for frame in heard if frame.any()])
    assert loud.size > 25 * FRAME_SAMPLES
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_message_too_large_ends_the_connection() -> None:
    async with serving() as server, live_client(server) as client:
        await client.start()
        await client.ws.send_str(" " * 1_100_000)
        assert (await client.closed()).code == 1009


@pytest.mark.parametrize("by_watcher", [False, True])
async def test_who_does_not_read_its_answers_gets_no_more_of_them(by_watcher: bool) -> None:
    delegation = {"type": "responses", "responses": "x" * 500_000}
    async with serving(model=parrot(), limits=PATIENT) as server, live_client(server) as client:
        session = await client.start()
        (call,) = server.calls
        socket = socket_of(call)
        async with live_client(server, f"{PATH}/{session['id']}/attach") as watcher:
            sender = watcher if by_watcher else client
            await server.eventually(lambda: len(watchers_of(call)) == 1)
            transport = Client(client.ws).transport
            transport.pause_reading()
            await client.send("session.update", session={"delegation": delegation})
            await server.eventually(socket.is_congested)
            for _ in range(12):
                await sender.send("session.update", session={})
            await asyncio.sleep(0.3)
            assert unsent_bytes(call) < 1_500_000
            transport.resume_reading()
            for _ in range(13):
                assert (await client.event("session.updated"))["session"]["delegation"] == delegation


async def test_a_wrong_key_has_the_body_of_openai(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key of alice"))) + "\n")
    async with serving(api_keys=str(keys)) as server:
        for headers, code in (
            ({}, "missing_authorization"),
            ({"Authorization": "Bearer no"}, "invalid_api_key"),
        ):
            status, body, answer = await server.get(PATH, **headers)
            assert status == 401
            assert json.loads(body)["error"]["code"] == code
            assert answer["WWW-Authenticate"].startswith("Bearer")
            with pytest.raises(aiohttp.WSServerHandshakeError):
                async with live_client(server, **headers):
                    pass
        async with live_client(server, **{"x-api-key": "key of alice"}) as client:
            await client.start()
