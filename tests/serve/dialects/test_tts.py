"""``/api/tts_streaming`` over WebSockets: content, formats and end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import numpy as np
import pytest

from antiphon.audio.codecs import make_decoder
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import Eos, Spoken, Text, Voice
from tests.serve.harness import FRAME_SAMPLES, Closed
from tests.serve.tts_client import (
    SAID,
    SAID_FRAMES,
    SENTENCE,
    converse,
    levels,
    listening,
    speaking,
)


async def test_kyutais_flow_words_then_the_end() -> None:
    async with speaking() as (server, _), listening(server) as client:
        closed = await converse(client, SENTENCE)
        await server.is_empty()
    assert closed.code == 1000
    assert isinstance(client.messages[0], kyutai.Ready)
    assert levels(client.audio) == SAID
    assert client.told(Spoken) == [
        Spoken("a", 0.16, 0.4),
        Spoken("be", 0.4, 0.64),
        Spoken("cat", 1.04, 1.68),
    ]
    assert all(audio.pcm.size == FRAME_SAMPLES for audio in client.told(kyutai.Audio))


async def test_words_may_come_one_by_one_as_text_frames_and_end_with_a_byte() -> None:
    async with speaking() as (server, _), listening(server, "Pcm") as client:
        for word in ("a", "be", '<break time="0.4s"/>', "cat"):
            await client.ws.send_str(word)
            await asyncio.sleep(0.03)
        await client.ws.send_bytes(b"\0")
        closed = await client.until(Closed)
    assert closed.code == 1000
    assert levels(np.frombuffer(b"".join(client.told(bytes)), "<f4")) == SAID


@pytest.mark.parametrize("format_", ["OggOpus", "OggOpusMessagePack"])
async def test_ogg_is_one_stream_to_its_end(format_: str) -> None:
    async with speaking() as (server, _), listening(server, format_) as client:
        assert (await converse(client, SENTENCE)).code == 1000
    told = client.told(bytes) if format_ == "OggOpus" else [it.data for it in client.told(kyutai.OggOpus)]
    decoder = make_decoder("ogg")
    pcm = np.concatenate([decoder.feed(data) for data in told])
    assert pcm.size == SAID_FRAMES * FRAME_SAMPLES
    assert b"".join(told).count(b"OpusHead") == 1
    if format_ == "OggOpusMessagePack":
        assert [word.text for word in client.told(Spoken)] == ["a", "be", "cat"]


async def test_the_format_is_ogg_when_nobody_says() -> None:
    async with speaking() as (server, _), server.http.ws_connect(server.url(kyutai_tts.PATH, "ws")) as ws:
        await ws.send_str("a")
        assert (await ws.receive_bytes()).startswith(b"OggS")


async def test_the_end_without_words_is_an_end() -> None:
    async with speaking() as (server, _), listening(server) as client:
        assert (await converse(client, " ")).code == 1000
    assert not client.audio.size


async def test_a_word_that_cannot_be_said_takes_no_time_and_keeps_its_place() -> None:
    async with speaking() as (server, _), listening(server) as client:
        closed = await converse(client, "\u96ea a \U0001f600", "be \u0441\u043d\u0435\u0433")
    assert closed.code == 1000
    assert levels(client.audio) == [1, 2, 2]
    told = client.told(Spoken)
    assert [word.text for word in told] == ["\u96ea", "a", "\U0001f600", "be", "\u0441\u043d\u0435\u0433"]
    assert [word.is_heard for word in told] == [False, True, False, True, False]
    assert [word.start_s for word in told[1:]] == sorted(word.start_s for word in told[1:])
    assert told[2].start_s == told[1].stop_s
    assert told[4].start_s == told[3].stop_s


@pytest.mark.parametrize("format_", ["PcmMessagePack", "Pcm"])
async def test_a_text_of_nothing_that_can_be_said_ends_with_an_error(format_: str) -> None:
    async with speaking() as (server, _), listening(server, format_) as client:
        await client.send(Text("\u96ea"))
        if format_ == "PcmMessagePack":
            assert await client.until(Spoken) == Spoken("\u96ea", 0.0, 0.0)  # before the text has ended
        await client.send(Eos())
        closed = await client.until(Closed)
        await server.is_empty()
    assert closed.code == 1007
    assert closed.reason == "this model cannot speak any word of this text: '\u96ea'"
    assert len(client.told(kyutai.Error)) == (format_ == "PcmMessagePack")


async def test_a_flood_of_words_that_cannot_be_said_is_bounded() -> None:
    async with speaking() as (server, _), listening(server) as client:
        texts = ["\u96ea " * 2_000] * 3
        (closed, told) = (await converse(client, *texts, "a")), client.told(Spoken)
    assert closed.code == 1000
    assert len(told) == 6_001
    assert levels(client.audio) == [1]


async def test_a_long_text_is_said_whole_and_in_order() -> None:
    words = ["ab" * (1 + index % 4) for index in range(300)]
    async with speaking(engine={"text_entries": 16}) as (server, _), listening(server, "Pcm") as client:
        closed = await converse(client, " ".join(words[:100]), " ".join(words[100:]))
    assert closed.code == 1000
    expected = [len(word) for word in words for _ in word]
    assert levels(np.frombuffer(b"".join(client.told(bytes)), "<f4")) == expected


async def test_everybody_hears_what_was_said_for_them() -> None:
    async def one(letter: int) -> list[int]:
        async with listening(server) as client:
            await converse(client, *["x" * letter for _ in range(10)])
            return levels(client.audio)

    async with speaking(slots=4) as (server, _):
        said = await asyncio.gather(*(one(1 + letter) for letter in range(4)))
    assert said == [[1 + letter] * 10 * (1 + letter) for letter in range(4)]


async def test_speech_is_made_no_faster_than_it_is_taken() -> None:
    async with (
        speaking(limits={"max_unsent_bytes": 4096}) as (server, steps),
        listening(server, "Pcm") as client,
    ):
        client.transport.pause_reading()
        await client.send(Text("abcdefgh " * 200))
        await client.send(Eos())
        await server.eventually(lambda: steps.taken > 30)
        while (taken := steps.taken) is not None:
            await asyncio.sleep(0.3)
            if steps.taken == taken:
                break
        assert taken < 1600
        client.transport.resume_reading()
        await client.until(Closed)
    assert levels(np.frombuffer(b"".join(client.told(bytes)), "<f4")) == [8] * 1600


async def test_a_listener_that_takes_nothing_is_let_go() -> None:
    limits = {"liveness_timeout_s": 0.4, "max_unsent_bytes": 4096, "close_timeout_s": 0.2}
    async with speaking(limits=limits) as (server, _), listening(server, "Pcm") as client:
        client.transport.pause_reading()
        for _ in range(4):
            await client.send(Text("abcdefgh " * 5000))
        await server.is_empty()
        client.transport.abort()


async def test_who_is_full_says_so_in_kyutais_words() -> None:
    async with speaking(slots=1, engine={"max_queue": 0}) as (server, _), listening(server) as first:
        await first.until(kyutai.Ready)
        async with listening(server) as second:
            assert (await second.until(kyutai.Error)).message == kyutai.NO_FREE_CHANNELS
            assert (await second.until(Closed)).code == 1013
        async with listening(server, "OggOpus") as third:
            assert (await third.until(Closed)).code == 1013
        assert third.messages == []
        assert (await server.get(kyutai_tts.PATH))[0] == 503
        assert (await converse(first, "abc")).code == 1000
        async with listening(server) as again:
            assert (await converse(again, "abc")).code == 1000


async def test_who_drains_lets_a_text_be_said_to_its_end() -> None:
    async with speaking(step_s=0.005) as (server, _), listening(server) as client:
        await client.send(Text("abcdefgh " * 5))
        await client.until(kyutai.Audio)
        server.engine.drain()
        async with listening(server) as late:
            assert "shutting down" in (await late.until(kyutai.Error)).message
            assert (await late.until(Closed)).code == 1001
        assert (await converse(client)).code == 1000
    assert levels(client.audio) == [8] * 40


def packed(**fields: Any) -> bytes:
    return bytes(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x01", "a msgpack int was sent, a map is needed"),
        (b"\xdd\xff\xff\xff\xff", "are no msgpack"),
        (packed(type="Audio", pcm=[]), "'Audio' is not known here; there are: Text, Voice, Eos"),
        (packed(type="Text", text=7), "Text.text is a int, text is needed"),
        (packed(type="Text", text="x" * 5000), "a word of 5000 letters, the limit is 4096"),
        (packed(type="Voice", embeddings=[1.0] * 12, shape=[3, 5]), "12 numbers, its shape [3, 5] needs 15"),
        (packed(type="Voice", embeddings=[1.0], shape=[2**40, 2**40]), "Voice has 1 numbers"),
        (packed(type="Voice", embeddings=[], shape=[0]), "Voice.shape is [0], 1 to 3 sizes are needed"),
        (packed(type="Voice", embeddings=[1.0] * 12, shape=[1, 3, 4]), "this model needs [1, 4, 3]"),
        (packed(type="Voice", embeddings=[float("nan")], shape=[1]), "finite numbers are needed"),
    ],
)
async def test_what_means_nothing_ends_with_a_sentence_and_nobody_else(data: bytes, sentence: str) -> None:
    async with speaking() as (server, _), listening(server) as other, listening(server) as client:
        await other.until(kyutai.Ready)
        await client.ws.send_bytes(data)
        assert sentence in (await client.until(kyutai.Error)).message
        assert (await client.until(Closed)).code == 1007
        assert (await converse(other, "abc")).code == 1000
        await server.is_empty()


async def test_the_order_is_voice_text_end() -> None:
    for late in (Voice(np.zeros(12, np.float32), (1, 4, 3)), Text("a")):
        async with speaking() as (server, _), listening(server) as client:
            await client.send(Text("a"))
            if isinstance(late, Text):
                await client.send(Text('<break time="9s"/>'))
                await client.send(Eos())
            await client.send(late)
            message = (await client.until(kyutai.Error)).message
            assert message in (
                "Voice came after text; Voice must precede the first Text", "text came after its end",
            )  # fmt: skip


async def test_a_request_that_cannot_be_is_refused_before_the_upgrade() -> None:
    async with speaking() as (server, _):
        assert (await server.get(f"{kyutai_tts.PATH}?format=mp3"))[0] == 400
        assert (await server.get(kyutai_tts.PATH))[0] == 426
        async with server.http.get(
            server.url(f"{kyutai_tts.PATH}?format=mp3"),
            headers={
                "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            },
        ) as response:  # fmt: skip
            assert response.status == 400
            assert "format is 'mp3'; there is: PcmMessagePack" in await response.text()


async def test_a_step_that_fails_ends_who_it_was_for() -> None:
    async with speaking(poison=9) as (server, _), listening(server) as client:
        await client.send(Text("abcdefgh " * 100 + "abcdefghi"))
        await client.send(Eos())
        assert "planned to fail" in (await client.until(kyutai.Error)).message
        assert (await client.until(Closed)).code == 1011


async def test_who_says_nothing_is_let_go_and_who_waits_for_us_is_not() -> None:
    limits = {"handshake_timeout_s": 1.0, "idle_timeout_s": 0.5, "liveness_timeout_s": 5.0}
    async with speaking(step_s=0.02, limits=limits) as (server, _):
        async with listening(server) as client:
            assert "no first text for" in (await client.until(kyutai.Error)).message
        async with listening(server) as client:
            assert (await converse(client, "abcdefgh " * 6)).code == 1000
        assert levels(client.audio) == [8] * 48


async def test_a_caller_that_leaves_frees_its_row() -> None:
    async with speaking(step_s=0.005) as (server, _):
        async with listening(server) as client:
            await client.send(Text("abcdefgh " * 100))
            await client.until(kyutai.Audio)
        await server.is_empty()
        assert server.engine.health().active == 0
