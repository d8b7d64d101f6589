"""``/v1/audio/speech`` over sockets: sound from the first frame, and refusals in OpenAI's format."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientPayloadError

from antiphon.audio.codec import Encoder
from antiphon.audio.codecs import AudioCodec
from antiphon.audio.pcm import FloatArray, float_from_s16le
from antiphon.errors import AudioError
from antiphon.log import Log
from antiphon.protocol.speech_request import PATH
from antiphon.serve.dialects import speech_body
from antiphon.serve.dialects.speech_body import SpeechBody
from antiphon.serve.hosting.front_end import drain
from tests.serve.harness import FRAME_SAMPLES, Server, serving
from tests.serve.tts_client import SAID, SENTENCE, count_frames, levels, listening, speaking
from tests.support.null_models import DUPLEX


def pcm_of(data: bytes) -> FloatArray:
    return float_from_s16le(data)


async def order(server: Server, path: str = PATH, **fields: Any) -> tuple[int, Any, Any]:
    """Status, headers and body of an answer; without a format the samples are bare."""
    body = {"response_format": "pcm", **fields}
    async with server.http.post(server.url(path), json=body) as response:
        data = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, response.headers, json.loads(data) if is_json else data


def events_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in data.split(b"\n\n") if line]


async def test_the_words_are_heard_and_begin_before_they_are_whole() -> None:
    async with speaking() as (server, steps):
        steps.held_at = 3  # the second frame: two steps before the first read text only
        body = {"input": SENTENCE, "response_format": "pcm"}
        async with server.http.post(server.url(PATH), json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "audio/pcm"
            first = await response.content.readany()
            steps.go_on()
            data = first + await response.read()
        assert levels(pcm_of(data)) == SAID
        assert len(first) == FRAME_SAMPLES * 2
        await server.is_empty()


async def test_mp3_is_what_an_order_without_a_format_gets() -> None:
    async with speaking() as (server, _):
        status, headers, data = await order(server, input="abc", response_format=None)
        assert (status, headers["Content-Type"]) == (200, "audio/mpeg")
        assert data[0] == 0xFF


async def test_a_voice_is_named_by_its_id_or_is_the_first(voices: Path) -> None:
    async with speaking(voices=voices) as (server, _):
        for voice, spoken, level in (
            ("deep/bass", "deep%2Fbass", 201),
            ({"id": "deep/bass"}, "deep%2Fbass", 201),
            ("alloy", "alto", 101),
            (None, "alto", 101),
        ):
            _, headers, data = await order(server, input="a", voice=voice)
            assert levels(pcm_of(data), level - 1) == [level]
            assert headers["Antiphon-Voice"].replace("/", "%2F") == spoken
        _, text, _ = await server.get("/v1/audio/voices")
        found = json.loads(text)
    assert found["voices"] == found["data"]
    assert [(it["id"], it["object"], it["model"]) for it in found["data"]] == [
        ("alto", "audio.voice", "speaker"),
        ("deep/bass", "audio.voice", "speaker"),
    ]


async def test_a_speed_changes_the_length_and_instructions_are_named_as_ignored() -> None:
    async with speaking() as (server, _):
        _, headers, data = await order(server, input="abcdefgh " * 4, speed=2, instructions="Whisper.")
        assert headers["Antiphon-Ignored"] == "instructions"
        frames = len(data) / 2 / FRAME_SAMPLES
        assert frames == pytest.approx(count_frames("abcdefgh " * 4) / 2, abs=1)
        _, headers, _ = await order(server, input="a", speed=1.0, instructions="")
        assert "Antiphon-Ignored" not in headers


async def test_events_hold_the_same_sound_and_end_with_the_usage() -> None:
    async with speaking() as (server, _):
        _, headers, data = await order(server, input="abc ab", stream_format="sse")
    assert headers["Content-Type"] == "text/event-stream"
    *deltas, done = events_of(data)
    sound = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert levels(pcm_of(sound)) == [3, 3, 3, 2, 2]
    assert done["usage"] == {"input_tokens": 2, "output_tokens": 14, "total_tokens": 16}


async def test_words_that_cannot_be_said_are_named_and_counted() -> None:
    text = "abc \u96ea\u2014ab, \U0001f600 \u96ea <speak>"
    async with speaking() as (server, _):
        _, headers, data = await order(server, input=text, stream_format="sse")
        _, plain, _ = await order(server, input="abc ab")
        many = " ".join(map(chr, range(0x4E00, 0x4E00 + 20)))
        _, more, _ = await order(server, input=f"abc {many}")
        faces = " ".join(chr(0x1F600 + it) * 40 for it in range(16))
        _, long, _ = await order(server, input=f"abc {faces}")
    assert headers["Antiphon-Unspoken"] == "%E9%9B%AA, %F0%9F%98%80, %3Cspeak%3E, +1"
    assert events_of(data)[-1]["usage"] == {
        "input_tokens": 2, "output_tokens": 15, "total_tokens": 17, "unspoken_words": 4,
    }  # fmt: skip
    assert "Antiphon-Unspoken" not in plain
    assert more["Antiphon-Unspoken"].count("%") == 3 * 16
    assert more["Antiphon-Unspoken"].endswith(", +4")
    *names, rest = long["Antiphon-Unspoken"].split(", ")
    assert (len(names), rest) == (3, "+13")  # each name has 480 bytes


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_a_text_of_nothing_that_can_be_said_is_refused(stream_format: str) -> None:
    async with speaking() as (server, _):
        status, _, body = await order(server, input="\u96ea \U0001f600", stream_format=stream_format)
        assert status == 400
        assert body["error"] == {
            "message": "this model cannot speak any word of this text: '\u96ea', '\U0001f600'",
            "type": "invalid_request_error",
            "param": "input",
            "code": "invalid_value",
        }
        status, _, body = await order(server, input="\u00ad \u200f (\u2014)")
        assert (status, body["error"]["message"]) == (400, "input has no words")
        await server.is_empty()


async def begin_and_break(server: Server, **fields: Any) -> bytes:
    """What comes of an answer whose row breaks at its last word."""
    body = {"input": "abcdefgh " * 40 + "abcdefghi", "response_format": "pcm", **fields}
    async with server.http.post(server.url(PATH), json=body) as response:
        assert response.status == 200
        return await response.read()


async def test_what_fails_midway_is_cut_or_ends_its_events_with_an_error() -> None:
    async with speaking(poison=9) as (server, _):
        with pytest.raises(Exception, match=r"payload|reset|disconnected|closed"):
            await begin_and_break(server)
        *_, last = events_of(await begin_and_break(server, stream_format="sse"))
        assert last["error"]["type"] == "server_error"
        assert last["error"]["code"] == "server_error"
        await server.is_empty()


async def test_what_outlasts_a_drain_is_cut_or_ends_its_events_with_an_error() -> None:
    for stream_format in ("audio", "sse"):
        async with speaking() as (server, steps):
            steps.held_at = 3
            body = {"input": SENTENCE, "response_format": "pcm", "stream_format": stream_format}
            async with server.http.post(server.url(PATH), json=body) as response:
                data = await response.content.readany()
                await drain(server.app, 0.05, is_cut=lambda: False, log=Log())
                if stream_format == "audio":
                    with pytest.raises(ClientPayloadError):
                        await response.read()
                else:
                    *_, last = events_of(data + await response.read())
                    assert last["error"]["code"] == "server_draining"
                    assert (
                        last["error"]["message"] == "the server is shutting down; calls had 0.05 s to finish"
                    )
            steps.go_on()
            await server.is_empty()


async def test_sound_that_cannot_be_encoded_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Encoder):
        def encode(self, pcm: FloatArray) -> list[bytes]:
            raise AudioError("a sample to be encoded is not finite")

    broken = AudioCodec("audio/mpeg", lambda *_: Broken())
    monkeypatch.setattr(speech_body, "CODECS", {"pcm": broken})
    async with speaking() as (server, _):
        status, _, body = await order(server, input="a")
        assert status == 500
        assert body["error"]["message"].startswith("the model's audio cannot be encoded: a sample")
        assert body["error"]["type"] == "server_error"
        await server.is_empty()


@pytest.mark.parametrize("speed", [0.3, 1.0, 3.0])
def test_sound_that_a_tempo_held_back_is_a_fault_of_ours_too(speed: float) -> None:
    body = SpeechBody("mp3", 24_000, speed=speed)

    def say() -> None:
        body.feed(np.full(1920, np.nan, np.float32))
        body.finish(1, 0, 1)

    with pytest.raises(AudioError, match="sample"):
        say()
    body.close()


async def test_a_full_server_says_when_to_come_again() -> None:
    async with speaking(slots=1) as (server, _), listening(server) as client:
        await client.receive()
        headers = {"X-Antiphon-Elsewhere": "1"}
        async with server.http.post(server.url(PATH), json={"input": "a"}, headers=headers) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            body = await response.json()
        assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "server_full")
        waiting = asyncio.create_task(order(server, input="abc"))
        await server.eventually(lambda: server.engine.health().queued == 1)
        await client.ws.close()
        assert levels(pcm_of((await waiting)[2])) == [3, 3, 3]


async def test_a_server_that_leaves_says_when_to_come_again() -> None:
    async with speaking() as (server, _):
        server.engine.drain()
        status, headers, body = await order(server, input="a")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert body["error"]["code"] == "server_draining"


async def test_too_many_sessions_of_an_address_are_429() -> None:
    limits = {"max_sessions_per_address": 1}
    async with speaking(slots=2, limits=limits) as (server, _), listening(server) as client:
        await client.receive()
        status, headers, body = await order(server, input="a")
        assert (status, headers["Retry-After"]) == (429, "10")
        assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "rate_limit_exceeded")


async def test_a_model_is_named_in_the_body_or_in_the_address() -> None:
    async with speaking(also=[("talker", DUPLEX)]) as (server, _):
        for path, model in ((PATH, "speaker"), (f"/m/speaker{PATH}", None), (f"/m/speaker{PATH}", "speaker")):
            assert (await order(server, path, input="a", model=model))[0] == 200
        status, _, body = await order(server, f"/m/speaker{PATH}", input="a", model="talker")
        assert (status, body["error"]["param"]) == (400, "model")
        assert body["error"]["message"] == "model is 'talker', and the address names 'speaker'"
        status, _, body = await order(server, input="a", model="talker")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
    async with serving() as server:
        status, _, body = await order(server, input="a")
        assert status == 404
        assert body["error"]["message"] == "no tts model here; there is: null-echo (codec)"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": "x" * 5000}, "input", "a word of 5000 letters"),
        ({"input": ""}, "input", "input is empty, 1 to"),
        ({"input": "(:)"}, "input", "input has no words"),
        ({"input": "a", "speed": 9}, "speed", "speed is 9, 0.25 to 4 are allowed"),
    ],
)
async def test_an_order_that_cannot_be_followed_takes_no_row(
    fields: dict[str, Any], param: str, message: str
) -> None:
    async with speaking() as (server, steps):
        status, _, body = await order(server, **fields)
        assert (status, body["error"]["param"]) == (400, param)
        assert body["error"]["message"].startswith(message)
        assert steps.taken == 0


async def test_whatever_refuses_does_so_in_the_words_of_the_api() -> None:
    async with speaking() as (server, _):
        for method, path, headers, status, code in (
            ("GET", "/v1/nothing", {}, 404, "not_found"),
            ("POST", "/v1/models", {}, 405, "method_not_allowed"),
            ("POST", PATH, {"Origin": "https://elsewhere.example"}, 403, "forbidden"),
            ("POST", PATH, {"Host": "elsewhere.example"}, 421, "misdirected_request"),
            ("GET", "/v1/models?model=nobody", {}, 404, "model_not_found"),
            ("GET", "/v1/models/nobody", {}, 404, "model_not_found"),
            ("GET", "/v1/live/sessions", {}, 404, "model_not_found"),
        ):
            async with server.http.request(method, server.url(path), headers=headers) as response:
                assert response.status == status, path
                body = await response.json()
                assert body["error"]["code"] == code, path
                assert body["error"]["message"]
        for size in (70_000, 300_000):
            async with server.http.post(server.url(PATH), data=b" " * size) as response:
                assert response.status == 413
                error = (await response.json())["error"]
            assert error["code"] == "request_too_large"
            assert error["message"] == f"a request of {size} bytes, the limit is 65536"


async def test_a_get_of_what_is_posted_names_the_method_beside_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<html></html>")
    async with serving(page=tmp_path) as server:
        for path in (PATH, f"/m/any{PATH}", "/v1/audio/transcriptions", "/v1/realtime/client_secrets"):
            for method in ("GET", "HEAD"):
                async with server.http.request(method, server.url(path)) as response:
                    assert (response.status, response.headers["Allow"]) == (405, "POST"), path


async def test_a_model_may_be_asked_for_by_its_name() -> None:
    async with speaking() as (server, _):
        _, text, _ = await server.get("/v1/models/speaker")
        found = json.loads(text)
        assert (found["id"], found["object"], found["owned_by"]) == ("speaker", "model", "antiphon")
        _, text, _ = await server.get("/v1/models")
        assert json.loads(text) == {"object": "list", "data": [found]}


async def test_who_leaves_before_the_end_gives_the_row_back() -> None:
    async with speaking(step_s=0.02) as (server, _):
        async with server.http.post(server.url(PATH), json={"input": "abcdefgh " * 40}) as response:
            await response.content.readany()
        await server.is_empty()
