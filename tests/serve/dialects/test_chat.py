"""/api/chat with stock clients: handshake, refusals, and only messages that they parse."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.backends.base import FloatArray
from antiphon.models.spec import ModelSpec
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from tests.serve.harness import FRAME_SAMPLES, STOCK_QUERY, Client, Server, serving, speech
from tests.support.null_models import CODEC, DUPLEX
from tests.support.stamp import read_stamp


async def refusal(server: Server, query: str = "", **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
    """The answer to a WebSocket request that is refused before the upgrade."""
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with server.http.get(server.url(f"/api/chat?{query}"), headers={**upgrade, **headers}) as response:
        return response.status, await response.text(), response


async def speak_ogg(client: Client, pcm: FloatArray) -> None:
    encoder = make_encoder(AudioFormat.OGG)
    for start in range(0, pcm.shape[0], FRAME_SAMPLES):
        for payload in encoder.encode(pcm[start : start + FRAME_SAMPLES]):
            await client.send(moshi.Audio(payload))


async def test_the_first_message_is_the_handshake_of_the_specification() -> None:
    async with serving() as server, server.call(STOCK_QUERY) as client:
        assert await client.receive() == moshi.Handshake(0, 0)


async def test_a_stock_caller_hears_its_echo_and_sees_only_tags_it_knows() -> None:
    async with serving(spec=DUPLEX) as server, server.call(STOCK_QUERY) as client:
        await client.receive()
        await speak_ogg(client, speech(8))
        decoder = make_decoder(AudioFormat.OGG)
        samples = 0
        while samples < (8 - DUPLEX.delay_frames - 1) * FRAME_SAMPLES:
            message = await client.receive()
            if isinstance(message, moshi.Audio):
                samples += decoder.feed(message.data).size
        assert {type(message) for message in client.messages} == {moshi.Handshake, moshi.Audio, moshi.Text}


async def test_audio_before_the_handshake_is_heard() -> None:
    """moshi.client does not wait for the handshake."""
    async with serving() as server, server.call() as client:
        await speak_ogg(client, speech(3))
        assert await client.receive() == moshi.Handshake(0, 0)
        await client.until(lambda it: isinstance(it, moshi.Audio))


async def test_text_comes_after_the_audio_of_its_frame() -> None:
    async with serving(spec=DUPLEX) as server, server.caller("text_temperature=0") as client:
        await client.speak(speech(10))
        await client.until(lambda it: isinstance(it, moshi.Text))
        kinds = [type(it) for it in client.messages if isinstance(it, moshi.StampedAudio | moshi.Text)]
        assert kinds == [moshi.StampedAudio, moshi.Text]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("text_temperature=warm", "text_temperature is 'warm', a number is needed"),
        ("text_temperature=3", "0.2 to 1.2 are allowed, or 0 for greedy"),
        ("audio_topk=9", "10 to 500 are allowed, or 0 for all"),
        ("ext=1&format=mp3", "format='mp3' is not known: ogg, opus, pcm_s16le, pcm_f32le"),
        ("ext=1&wait=-1", "wait is -1.0, 0 to 600 are allowed"),
        ("ext=1&wait=601", "wait is 601.0, 0 to 600 are allowed"),
    ],
)
async def test_a_query_that_cannot_be_honoured_is_400_before_the_upgrade(query: str, words: str) -> None:
    async with serving() as server:
        status, text, _ = await refusal(server, query)
        assert status == 400
        assert words in text
        assert server.engine.health().active == 0


async def test_parameters_are_the_sessions_own() -> None:
    query = "text_temperature=0&audio_topk=10&text_seed=5"
    async with serving() as server, server.caller(query) as client:
        ready = next(it for it in client.messages if isinstance(it, moshi.Event))
        parameters = ready.fields["parameters"]
        chosen = [parameters[name] for name in ("text_temperature", "audio_topk", "text_seed")]
        assert chosen == [0, 10, 5]
        assert parameters["audio_temperature"] == 0.8


async def test_seeds_that_nobody_names_are_drawn_for_each_session_and_reported() -> None:
    seeds: list[tuple[int, int]] = []
    async with serving() as server:
        for _ in range(2):
            async with server.caller("text_temperature=0.5") as client:
                ready = next(it for it in client.messages if isinstance(it, moshi.Event))
                parameters = ready.fields["parameters"]
                seeds.append((parameters["text_seed"], parameters["audio_seed"]))
    assert len({seed for pair in seeds for seed in pair}) == 4


@pytest.mark.parametrize(("spec", "replies"), [(CODEC, 3), (DUPLEX, 1)])
async def test_max_steps_ends_the_call(spec: ModelSpec, replies: int) -> None:
    max_steps = spec.delay_frames + replies
    async with serving(spec=spec) as server, server.caller(f"max_steps={max_steps}") as client:
        await client.speak(speech(8))
        assert (await client.closed()).code == 1000
        heard = [it.frame for it in client.messages if isinstance(it, moshi.StampedAudio)]
        assert heard == list(range(spec.delay_frames, max_steps))


async def test_max_steps_among_the_frames_without_reply_ends_the_call_too() -> None:
    async with serving(spec=DUPLEX) as server, server.caller("max_steps=1") as client:
        await client.speak(speech(3))
        assert (await client.closed()).code == 1000
        assert not any(isinstance(it, moshi.StampedAudio) for it in client.messages)


async def test_a_checkpoint_may_bring_its_own_defaults() -> None:
    spec = replace(CODEC, generation={"lm_gen_config": {"temp_text": 0.4}})
    async with serving(spec=spec) as server, server.call("ext=1") as client:
        assert (await client.event("ready")).fields["parameters"]["text_temperature"] == 0.4


async def test_a_plain_request_is_told_to_upgrade() -> None:
    async with serving() as server:
        status, text, headers = await server.get("/api/chat")
        assert (status, headers["Upgrade"]) == (426, "websocket")
        assert "ws://" in text


async def test_an_unknown_model_is_404_and_names_what_there_is() -> None:
    sentence = (
        "no model 'moshika' here; there is: null-echo (codec); to serve it under this name: "
        "--alias moshika=null-echo"
    )
    async with serving() as server:
        status, text, _ = await refusal(server, "model=moshika")
        assert (status, text) == (404, f"{sentence}\n")
        async with server.call("ext=1&model=moshika") as client:
            assert (await client.event("error")).fields == {"code": 1008, "message": sentence}
            assert (await client.closed()).code == 1008
        async with server.call("ext=1&model=null-echo") as client:
            await client.event("ready")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_foreign_origin_is_refused_before_the_upgrade(origin: str) -> None:
    async with serving() as server:
        status, text, _ = await refusal(server, Origin=origin)
        assert status == 403
        assert f"origin {origin!r} may not connect" in text


async def test_our_own_and_allowed_origins_pass() -> None:
    async with serving(allow_origin=("https://voice.example",)) as server:
        for origin in (server.url(""), "https://voice.example"):
            async with server.call(Origin=origin) as client:
                assert await client.receive() == moshi.Handshake(0, 0)
        await server.is_empty()


async def test_a_full_server_is_503_with_retry_after() -> None:
    async with serving(slots=1) as server, server.call() as client:
        await client.receive()
        status, text, response = await refusal(server)
        assert status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert "the only row is in use" in text


async def test_a_plain_request_to_a_full_server_is_told_so_and_takes_no_row() -> None:
    async with serving(slots=1) as server, server.call() as client:
        await client.receive()
        for _ in range(3):
            status, text, headers = await server.get("/api/chat?ext=1")
            assert (status, json.loads(text)["code"]) == (503, 1013)
            assert json.loads(text)["error"].startswith("the only row is in use")
            assert int(headers["Retry-After"]) >= 1
        assert (await server.get("/api/chat?ext=1&wait=5"))[0] == 426  # a socket would be let wait
        assert 'outcome="full"} 0.0' in (await server.get("/metrics"))[1]  # nobody was refused


async def test_a_plain_request_to_a_server_that_leaves_is_told_so() -> None:
    async with serving() as server:
        server.engine.drain()
        status, text, headers = await server.get("/api/chat?ext=1&wait=5")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert json.loads(text) == {
            "error": "the server is shutting down and admits no new sessions",
            "code": 1001,
        }


async def test_a_row_is_free_again_after_its_caller_left() -> None:
    async with serving(slots=1) as server:
        for _ in range(3):
            async with server.call() as client:
                await client.receive()
            await server.is_empty()


async def test_a_caller_that_vanishes_frees_its_row() -> None:
    async with serving(slots=1) as server, server.call() as client:
        await client.receive()
        client.cut()
        await server.is_empty()


@pytest.mark.parametrize("garbage", [b"", b"\x03\x09", b"\x06late", b"\x02\xff", b"\x01" + bytes(100_000)])
async def test_a_stock_caller_that_sends_nonsense_is_closed_with_1007(garbage: bytes) -> None:
    async with serving() as server, server.call() as client:
        await client.receive()
        await client.ws.send_bytes(garbage)
        closed = await client.closed()
        assert closed.code == 1007
        assert closed.reason
        assert all(isinstance(it, moshi.Handshake) for it in client.messages)


async def test_tags_nobody_knows_and_text_messages_are_passed_over() -> None:
    async with serving() as server, server.call() as client:
        await client.receive()
        for data in (b"\x55whatever", b"\x06", b"\x04{}", b"\x05oh", b"\x10{broken"):
            await client.ws.send_bytes(data)
        await client.ws.send_str("hello")
        await speak_ogg(client, speech(3))
        await client.until(lambda it: isinstance(it, moshi.Audio))


async def test_a_message_over_the_limit_is_closed_with_1009() -> None:
    async with serving(limits={"max_message_bytes": 2048}) as server, server.call() as client:
        await client.receive()
        await client.ws.send_bytes(b"\x01" + bytes(4096))
        assert (await client.closed()).code == 1009
        await server.is_empty()


async def test_pause_silences_the_caller_until_start() -> None:
    async with serving() as server, server.caller() as client:
        await client.send(moshi.Control(moshi.ControlAction.PAUSE))
        await client.speak(speech(2))
        await client.send(moshi.Control(moshi.ControlAction.START))
        await client.speak(speech(1, seed=1))
        stamped, pcm = await client.reply()
        assert stamped.frame == 0
        async with server.caller() as other:
            await other.speak(speech(1, seed=1))
            _, unpaused = await other.reply()
        assert read_stamp(pcm).frame_hash == read_stamp(unpaused).frame_hash
        await client.send(moshi.Control(moshi.ControlAction.END_TURN))
        await client.speak(speech(1))
        stamped, _ = await client.reply()
        assert stamped.frame == 1


async def test_no_control_byte_makes_a_stock_caller_hear_of_our_extension() -> None:
    async with serving() as server, server.call() as client:
        for action in moshi.ControlAction:
            await client.send(moshi.Control(action))
        await speak_ogg(client, speech(3))
        await client.until(lambda it: isinstance(it, moshi.Audio))
        assert {moshi.encode(it)[0] for it in client.messages} <= {0, 1, 2}


async def test_pings_of_the_peer_are_answered() -> None:
    async with (
        serving() as server,
        server.http.ws_connect(server.url("/api/chat", "ws"), autoping=False) as ws,
    ):
        assert (await ws.receive()).data == moshi.encode(moshi.Handshake(0, 0))
        await ws.ping(b"there?")
        async with asyncio.timeout(120.0):
            answer = await ws.receive()
        assert (answer.type, bytes(answer.data)) == (aiohttp.WSMsgType.PONG, b"there?")


async def test_seeds_are_drawn_from_all_whole_numbers_that_javascript_reads_exactly() -> None:
    async with serving() as server:
        (model,) = server.services.models
        drawn = [model.parameters() for _ in range(60)]
    seeds = {seed for each in drawn for seed in (each.text_seed, each.audio_seed)}
    assert len(seeds) == 120
    assert 2**40 < max(seeds) < 2**53
