"""Selection of voices, and ``/api/tts_streaming`` by POST, over sockets."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from antiphon.log import LINE_PERIOD_S
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import Voice
from antiphon.serve.hosting.app import BURST_LINES
from antiphon.serve.media.tts_voices import MAX_NOTED_NAMES
from antiphon.serve.routes.tts import voice_of
from tests.serve.harness import Closed, response_to
from tests.serve.tts_client import (
    FRAMES,
    ONE_VOICE,
    SAID,
    SAID_FRAMES,
    SENTENCE,
    WIDTH,
    converse,
    levels,
    listening,
    speaking,
)
from tests.support.wav import decode_wav


async def test_a_voice_is_named_or_the_first(voices: Path) -> None:
    async with speaking(voices=voices) as (server, _):
        for name, level in (("", 101), ("alto", 101), ("deep/bass", 201)):
            async with listening(server, voice=name) as client:
                await converse(client, "a")
            assert levels(client.audio, level - 1) == [level]
        status, text, _ = await server.get("/v1/voices")
        assert status == 200
        assert '{"name": "alto", "model": "speaker", "is_default": true}' in text
        assert "hidden" not in text
        assert "other" not in text


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "expresso/ex03-ex01_happy_001_channel1_334s.wav", "x" * 900]
)
async def test_a_name_that_is_no_voice_here_is_spoken_by_the_first(
    voices: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As with Kyutai's server, whose clients name a voice of its own unless they are given one."""
    async with speaking(voices=voices) as (server, _):
        for _ in range(2):
            async with listening(server, voice=name) as client:
                assert (await converse(client, "a")).code == 1000
                assert response_to(client.ws).headers["Antiphon-Voice"] == "alto"
            assert levels(client.audio, 100) == [101]
        body = {"text": "a", "voice": name}
        async with server.http.post(server.url(kyutai_tts.PATH), json=body) as response:
            assert response.headers["Antiphon-Voice"] == "alto"
            assert levels(decode_wav(await response.read())[0][0], 100) == [101]
        async with listening(server, voice="deep/bass") as client:
            assert response_to(client.ws).headers["Antiphon-Voice"] == "deep/bass"
    assert caplog.text.count("no such voice") == 1, "each name once"


async def test_unknown_names_are_logged_once_each_and_only_so_many(
    voices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with speaking(voices=voices) as (server, _):
        model = server.services.models.first
        for index in range(3 * MAX_NOTED_NAMES):
            await voice_of(model, f"{index % (2 * MAX_NOTED_NAMES)}", server.services)
    assert caplog.text.count("no such voice") == MAX_NOTED_NAMES


async def test_a_default_that_is_broken_is_still_an_error(voices: Path) -> None:
    (voices / "alto.safetensors").write_bytes(b"nothing")
    async with speaking(voices=voices) as (server, _), listening(server, voice="nobody") as client:
        assert "this voice cannot be used" in (await client.until(kyutai.Error)).message
        assert (await client.until(Closed)).code == 1011


async def test_a_broken_voice_asked_for_without_end_is_few_lines(
    voices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (voices / "alto.safetensors").write_bytes(b"nothing")
    start_s = time.monotonic()
    async with speaking(voices=voices) as (server, _):
        for _ in range(BURST_LINES + 20):
            async with server.http.post(server.url(kyutai_tts.PATH), json={"text": "a"}) as response:
                assert response.status == 500
    lines = caplog.text.count("voice cannot be used")
    assert BURST_LINES <= lines <= BURST_LINES + (time.monotonic() - start_s) / LINE_PERIOD_S


async def test_a_voice_may_be_sent_before_the_text(voices: Path) -> None:
    async with speaking(voices=voices) as (server, _), listening(server) as client:
        await client.until(kyutai.Ready)
        await client.send(Voice(np.full(WIDTH * FRAMES, 0.4, np.float32), (1, WIDTH, FRAMES)))
        await converse(client, "a")
    assert levels(client.audio, 400) == [401]


async def test_a_model_of_one_voice_has_no_other() -> None:
    async with speaking(spec=ONE_VOICE) as (server, _):
        async with listening(server, voice="anybody") as client:
            await converse(client, "abc")
        assert levels(client.audio, None) == [3, 3, 3]
        async with listening(server) as client:
            await client.send(Voice(np.zeros(12, np.float32), (1, 4, 3)))
            assert "has one built-in voice" in (await client.until(kyutai.Error)).message


async def test_a_post_is_a_wav_that_begins_before_it_is_whole(voices: Path) -> None:
    async with speaking(voices=voices) as (server, steps):
        url, steps.held_at = server.url(kyutai_tts.PATH), SAID_FRAMES
        async with server.http.post(url, json={"text": SENTENCE, "voice": "deep/bass"}) as response:
            assert response.status == 200
            assert response.content_type == "audio/wav"
            first = await response.content.readany()
            steps.go_on()
            data = first + await response.read()
        pcm, rate = decode_wav(data)
        assert rate == 24_000
        assert levels(pcm[0], 200) == [200 + level for level in SAID]
        assert len(first) < len(data)
        await server.is_empty()


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b'{"text": 3}', 400, "the request.text is a int"),
        (b'{"voice": "alto"}', 400, "the request lacks 'text'"),
        (b"[]", 400, "an object is needed"),
        (b"{" * 100, 400, "is not JSON"),
        (b'{"text": "' + b"x" * 5000 + b'"}', 400, "a word of 5000 letters"),
        (b" " * 70_000, 400, "70000 bytes of JSON, the limit is 65536"),
        (b" " * 300_000, 413, ""),
    ],
)
async def test_a_post_that_cannot_be_spoken_is_told_why(
    voices: Path, body: bytes, status: int, sentence: str
) -> None:
    async with speaking(voices=voices) as (server, _):
        async with server.http.post(server.url(kyutai_tts.PATH), data=body) as response:
            assert response.status == status
            assert sentence in await response.text()
        await server.is_empty()


async def test_a_post_names_what_it_leaves_out_and_refuses_what_is_all_left_out() -> None:
    async with speaking() as (server, _):
        url = server.url(kyutai_tts.PATH)
        async with server.http.post(url, json={"text": "ab \u96ea abc"}) as response:
            assert response.headers["Antiphon-Unspoken"] == "%E9%9B%AA"
            assert levels(decode_wav(await response.read())[0][0]) == [2, 2, 3, 3, 3]
        async with server.http.post(url, json={"text": "\u96ea"}) as response:
            assert response.status == 400
            assert await response.text() == "this model cannot speak any word of this text: '\u96ea'\n"
        for nothing in ("", " ", "\u200b", "(\u2014)"):
            async with server.http.post(url, json={"text": nothing}) as response:
                assert response.status == 200
                assert decode_wav(await response.read())[0].size == 0
        await server.is_empty()


async def test_a_post_waits_for_a_row_unless_there_are_others_to_ask() -> None:
    async with speaking(slots=1) as (server, _), listening(server) as client:
        await client.until(kyutai.Ready)
        url, headers = server.url(kyutai_tts.PATH), {"X-Antiphon-Elsewhere": "1"}
        async with server.http.post(url, json={"text": "abc"}, headers=headers) as response:
            assert response.status == 503
        waiting = asyncio.create_task(server.http.post(url, json={"text": "abc"}))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert (await converse(client, "abc")).code == 1000
        async with await waiting as response:
            assert levels(decode_wav(await response.read())[0][0]) == [3, 3, 3]


async def test_a_post_that_fails_midway_is_cut_not_ended() -> None:
    text = "abcdefgh " * 40 + "abcdefghi"
    async with speaking(poison=9) as (server, _):
        async with server.http.post(server.url(kyutai_tts.PATH), json={"text": text}) as response:
            assert response.status == 200
            with pytest.raises(Exception, match=r"payload|reset|disconnected|closed"):
                await response.read()
        await server.is_empty()


async def test_a_client_that_leaves_midway_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with speaking(step_s=0.01) as (server, _):
        async with server.http.post(server.url(kyutai_tts.PATH), json={"text": "abcdefgh " * 40}) as response:
            await response.content.readany()
            response.close()
        await server.is_empty()
        await server.eventually(lambda: not _writers(asyncio.all_tasks() - before))


def _writers(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if "HttpBody._write_on" in repr(task)]


async def test_who_does_not_take_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    end, ends = web.StreamResponse.write_eof, 0

    async def never_taken(response: web.StreamResponse, data: bytes = b"") -> None:
        nonlocal ends
        ends += 1
        if ends == 1:
            await asyncio.Event().wait()
        await end(response, data)  # aiohttp's own, which finds the connection cut

    monkeypatch.setattr(web.StreamResponse, "write_eof", never_taken)
    async with speaking(limits={"liveness_timeout_s": 0.3}) as (server, _):
        async with server.http.post(server.url(kyutai_tts.PATH), json={"text": "abc"}) as response:
            with pytest.raises(Exception, match=r"payload|reset|disconnected|closed"):
                await response.read()
        await server.is_empty()


async def test_an_empty_text_is_an_empty_wav() -> None:
    async with (
        speaking() as (server, _),
        server.http.post(server.url(kyutai_tts.PATH), json={"text": ""}) as response,
    ):
        assert response.status == 200
        assert len(await response.read()) == 44
