"""Transcripts of the caller in OpenAI Live: a recogniser's row next to the talker's."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.codec import SampleDecoder
from antiphon.audio.g711 import Law
from antiphon.protocol import kyutai
from antiphon.serve.calls import captions
from tests.serve.asr_client import scribe, sentence, spoken
from tests.serve.harness import FRAME_SAMPLES, speech
from tests.serve.live_client import PATH, LiveClient, beside_a_talker, live_client, recogniser_of, watchers_of
from tests.serve.live_resuming import cut

INPUT = "session.input_transcript.delta"
OUTPUT = "session.output_audio.delta"


async def bye(client: LiveClient) -> None:
    await client.send("session.close")
    await client.event("session.closed")


async def test_what_the_caller_says_is_written_with_its_times() -> None:
    tokens, texts = sentence(4)
    said = spoken([*tokens, 0])
    async with beside_a_talker() as (server, _):
        async with scribe(server) as caller:
            await caller.send(kyutai.Init())
            await caller.speak(np.concatenate((said, spoken([3] * 10))))
            times = [1000 * (await caller.until(kyutai.Word)).start_time for _ in texts]
        async with live_client(server) as client:
            await client.start()
            await client.speak(said)
            words = [await client.event(INPUT) for _ in texts]
            await bye(client)
        await server.eventually(lambda: recogniser_of(server).health().active == 0)
    assert [word["delta"] for word in words] == [f" {text}" for text in texts]
    # The first word may come after silence, in frames, for as long as the machine kept the caller's audio.
    silence_ms = words[0]["start_ms"] - times[0]
    assert silence_ms >= 0
    assert silence_ms % 80 == pytest.approx(0)
    assert [word["start_ms"] - silence_ms for word in words] == pytest.approx(times)
    assert [word["end_ms"] - word["start_ms"] for word in words] == [3 * 80] * 4  # two tokens and padding
    assert client.of("info") == []


async def test_the_recogniser_hears_what_the_talker_hears_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded = 0
    put = SampleDecoder.put

    def counted(decoder: SampleDecoder, data: bytes) -> None:
        nonlocal decoded
        decoded += len(data)
        put(decoder, data)

    monkeypatch.setattr(SampleDecoder, "put", counted)
    async with beside_a_talker() as (server, steps), live_client(server) as client:
        await client.start(audio={"format": {"type": "audio/pcmu"}})
        sent = g711.encode(0.3 * speech(10)[::3], Law.MU)
        await client.append(sent)
        while sum(len(base64.b64decode(it["delta"])) for it in client.of(OUTPUT)) < len(sent):
            await client.event(OUTPUT)
        await bye(client)
        assert steps.taken >= 10
    assert decoded == len(sent)


async def test_a_muted_caller_is_not_written_down() -> None:
    tokens, _ = sentence(3)
    async with beside_a_talker() as (server, _), live_client(server) as client:
        await client.start()
        await client.send("session.input_audio.mute")
        await client.event("session.input_audio.muted")
        await client.speak(spoken([*tokens, 0]))
        for _ in range(20):
            await client.audio()
        await bye(client)
    assert client.of(INPUT) == []


async def test_the_last_word_is_written_before_the_end() -> None:
    tokens, texts = sentence(2)
    async with beside_a_talker() as (server, _), live_client(server) as client:
        await client.start()
        await client.speak(spoken(tokens[:-1]))  # ends within the last word
        await bye(client)
    kinds = [event["type"] for event in client.events]
    assert [event["delta"] for event in client.of(INPUT)] == [f" {text}" for text in texts]
    assert kinds[-1] == "session.closed"


async def test_watchers_see_the_transcript() -> None:
    tokens, texts = sentence(2)
    async with beside_a_talker() as (server, _), live_client(server) as client:
        session = await client.start()
        async with live_client(server, f"/v1/live/sessions/{session['id']}/attach") as watcher:
            (call,) = server.calls
            await server.eventually(lambda: len(watchers_of(call)) == 1)
            await client.speak(spoken([*tokens, 0]))
            seen = [(await watcher.event(INPUT))["delta"] for _ in texts]
            await bye(client)
    assert seen == [f" {text}" for text in texts]


async def test_without_a_free_row_of_the_recogniser_one_notice_and_the_call_goes_on() -> None:
    async with (
        beside_a_talker(rows=1, engine={"max_queue": 0}) as (server, _),
        scribe(server) as other,
        live_client(server) as client,
    ):
        await server.eventually(lambda: recogniser_of(server).health().active == 1)
        await client.start()
        said = 0.3 * speech(5)
        await client.speak(said)
        heard = await client.heard(5)
        await bye(client)
        assert other.closed is None
    np.testing.assert_allclose(heard[120:], said[120:], atol=2e-4)
    (notice,) = client.of("info")
    assert notice["code"] == "input_transcript_unavailable"
    assert notice["message"] == ("no transcript of the input: the only row is in use")
    assert client.of(INPUT) == []


async def test_a_recogniser_that_fails_is_left_behind_with_one_notice() -> None:
    async with beside_a_talker() as (server, _), live_client(server) as client:
        await client.start()
        await client.speak(0.3 * speech(2))
        await client.audio()
        recogniser_of(server).stop(5.0)
        notice = await client.event("info")
        said = 0.3 * speech(5)
        heard = len(client.of(OUTPUT))
        await client.speak(said)
        while len(client.of(OUTPUT)) < heard + 5:
            await client.event(OUTPUT)
        await bye(client)
    assert notice["code"] == "input_transcript_ended"
    assert notice["message"].startswith("no more transcripts of the input: ")
    assert client.of("info") == [notice]


async def test_a_recogniser_that_is_too_slow_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "MAX_BEHIND_S", 1.0)
    async with beside_a_talker(step_s=0.3) as (server, _), live_client(server) as client:
        await client.start()
        talking = asyncio.create_task(_talk(client, 120))
        notice = await client.event("info")
        talking.cancel()
        heard = len(client.of(OUTPUT))
        await client.speak(0.3 * speech(3))
        while len(client.of(OUTPUT)) < heard + 3:
            await client.event(OUTPUT)
        await bye(client)
        await server.eventually(lambda: recogniser_of(server).health().active == 0)
    assert notice["code"] == "input_transcript_ended"
    assert notice["message"] == "no more transcripts of the input: it is more than 1 s behind"


async def _talk(client: LiveClient, frames: int) -> None:
    for _ in range(frames):
        await client.speak(0.3 * speech(1))
        await asyncio.sleep(FRAME_SAMPLES / 24_000)


async def test_a_client_that_vanishes_gives_both_rows_back() -> None:
    async with beside_a_talker() as (server, _):
        async with live_client(server) as client:
            await client.start()
            await server.eventually(lambda: recogniser_of(server).health().active == 1)
        await server.is_empty()
        await server.eventually(lambda: recogniser_of(server).health().active == 0)


async def test_a_call_that_is_refused_takes_no_row_of_the_recogniser() -> None:
    async with beside_a_talker() as (server, _), live_client(server) as client:
        await client.send("session.start", session={"model": "null-echo", "audio": {"format": {"type": "x"}}})
        await client.error()
        assert recogniser_of(server).health().active == 0


async def test_a_server_that_stops_while_the_recogniser_is_asked_gives_the_talkers_row_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    async def never(*_: Any, **__: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(captions.Captions, "admit", never)
    async with beside_a_talker() as (server, _), live_client(server) as client:
        await client.send("session.start", session={"model": "null-echo"})
        await asked.wait()
        assert server.engine.health().active == 1
        (handler,) = [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task)]
        handler.cancel()
        await server.is_empty()


async def test_a_resumed_session_has_a_new_recogniser_whose_times_go_on() -> None:
    tokens, texts = sentence(1)
    resume = {"type": "session.resume", "session": {"model": "null-echo"}}
    async with beside_a_talker(rows=1) as (server, _):
        async with live_client(server, f"{PATH}?resume=1") as client:
            await client.send("session.start", session={"model": "null-echo"})
            token = (await client.event("session.started"))["resume"]["token"]
            await client.speak(speech(5))
            await client.until(lambda it: it.get("frame") == 4)
            cut(client)
        await server.eventually(lambda: recogniser_of(server).health().active == 0)
        async with live_client(server, f"{PATH}?resume=again") as client:
            await client.ws.send_json({**resume, "token": token, "frame": 4, "input_frame": 5})
            await client.event("session.resumed")
            await client.speak(spoken([*tokens, 0, *[0] * 10]))
            word = await client.event(INPUT)
            await bye(client)
    assert word["delta"] == f" {texts[0]}"
    assert word["start_ms"] >= 5 * 80
