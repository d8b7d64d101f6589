"""Transcripts in OpenAI Realtime: transcription sessions and the caller of a conversation."""

from __future__ import annotations

import pytest

from antiphon.protocol import kyutai, realtime_input
from tests.serve.asr_client import scribe, sentence, spoken
from tests.serve.harness import Closed
from tests.serve.live_client import beside_a_talker, recogniser_of
from tests.serve.realtime_client import COMPLETED, MANUAL, PATH, dictate, realtime_client

PATHS = (f"{PATH}?intent=transcription", f"{PATH}?model=scribe", f"/m/scribe{PATH}")
DELTA = "conversation.item.input_audio_transcription.delta"


@pytest.mark.parametrize("path", PATHS)
async def test_a_transcription_session(path: str) -> None:
    async with beside_a_talker() as (server, _):
        async with realtime_client(server, path) as client:
            created = (await client.event("session.created"))["session"]
            assert created["object"] == "realtime.transcription_session"
            updated = await client.update(type="transcription", audio={"input": MANUAL})
            assert updated["audio"]["input"]["turn_detection"] is None
            for count in (4, 2):
                completed, texts = await dictate(client, count)
                assert completed["transcript"] == " ".join(texts)
                assert completed["usage"]["type"] == "duration"
                assert completed["usage"]["seconds"] >= 0.3 * count
                deltas = [it["delta"] for it in client.of(DELTA) if it["item_id"] == completed["item_id"]]
                assert "".join(deltas) == completed["transcript"]
                committed = client.of("input_audio_buffer.committed")[-1]
                assert committed["item_id"] == completed["item_id"]
            assert not [kind for kind in client.kinds if kind.startswith("response.")]
        await server.eventually(lambda: recogniser_of(server).health().active == 0)


@pytest.mark.parametrize("path", [PATHS[0], f"{PATH}?model=null-echo"])
async def test_a_turn_that_is_never_committed_ends_with_so_many_words(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime_input, "MAX_TURN_CHARS", 20)
    async with beside_a_talker() as (server, _), realtime_client(server, path) as client:
        await client.update(audio={"input": MANUAL})
        tokens, texts = sentence(8)
        turns = []
        for _ in range(2):
            await client.speak(spoken([*tokens, 0, *[3] * 12]))
            turns.append(await client.event(COMPLETED))
        assert [it["transcript"] for it in turns] == [" ".join(texts)] * 2
        assert turns[0]["item_id"] != turns[1]["item_id"]
        assert not client.of("error")


async def test_what_a_transcription_session_refuses() -> None:
    async with beside_a_talker() as (server, _), realtime_client(server, PATHS[0]) as client:
        await client.send("response.create", event_id="r")
        assert await client.error() == {
            "type": "invalid_request_error",
            "code": "unsupported_event",
            "message": "type is for conversations, and this is a transcription session",
            "param": "type",
            "event_id": "r",
        }
        other = {"transcription": {"model": "gpt-4o-transcribe"}}
        await client.send("session.update", session={"audio": {"input": other}})
        error = await client.error()
        assert error["code"] == "model_not_found"
        assert error["message"] == (
            "session.audio.input.transcription.model is 'gpt-4o-transcribe', and this session's is 'scribe': "
            "another one is named in the query or in the path"
        )
        await client.send("input_audio_buffer.commit")
        assert (await client.error())["code"] == "input_audio_buffer_commit_empty"
        await client.update(audio={"input": MANUAL})
        assert (await dictate(client, 1))[0]["transcript"] == sentence(1)[1][0]  # all that was no end


async def test_a_full_recogniser() -> None:
    async with (
        beside_a_talker(rows=1, engine={"max_queue": 0}) as (server, _),
        scribe(server),
        realtime_client(server, PATHS[0]) as client,
    ):
        assert (await client.error())["code"] == "rate_limit_exceeded"
        assert (await client.closed()).code == 1013


async def test_words_that_are_taken_back_are_in_no_transcript() -> None:
    async with beside_a_talker() as (server, _), realtime_client(server, PATHS[0]) as client:
        await client.update(audio={"input": MANUAL})
        tokens, texts = sentence(2)
        await client.speak(spoken([*tokens, 0, *[3] * 12]))
        for _ in texts:
            await client.event(DELTA)
        await client.send("input_audio_buffer.clear")
        await client.event("input_audio_buffer.cleared")
        completed, said = await dictate(client, 1)
        assert completed["transcript"].split() == said


async def test_the_caller_of_a_conversation_is_written_down_by_a_recogniser_that_is_here() -> None:
    async with beside_a_talker() as (server, _):
        async with realtime_client(server, f"{PATH}?model=null-echo") as client:
            await client.update(audio={"input": MANUAL})
            completed, texts = await dictate(client, 3)
            assert completed["transcript"] == " ".join(texts)
            assert "response.created" in client.kinds
        await server.eventually(lambda: recogniser_of(server).health().active == 0)


async def test_turns_are_told_that_the_recogniser_has_no_free_row_and_an_update_asks_again() -> None:
    async with (
        beside_a_talker(rows=1, engine={"max_queue": 0}) as (server, _),
        realtime_client(server) as client,
    ):
        async with scribe(server) as other:
            await other.until(kyutai.Ready)
            await client.update(audio={"input": MANUAL})
            items = []
            for _ in range(2):
                await client.speak(spoken([5]))
                await client.send("input_audio_buffer.commit")
                failed = await client.event("conversation.item.input_audio_transcription.failed")
                items.append(failed["item_id"])
                assert failed["error"]["message"].startswith("no transcript of the input: ")
                assert "the only row is in use" in failed["error"]["message"]
            assert items == [it["item_id"] for it in client.of("input_audio_buffer.committed")]
        await server.eventually(lambda: recogniser_of(server).health().active == 0)
        await client.update(audio={"input": MANUAL})
        completed, texts = await dictate(client, 2)
        assert completed["transcript"] == " ".join(texts)


async def test_turns_that_wait_for_a_lost_recogniser_are_told() -> None:
    async with beside_a_talker(poison=77) as (server, steps), realtime_client(server) as client:
        steps.held_at = 0
        await client.update(audio={"input": MANUAL})
        await client.speak(spoken([*sentence(2)[0], 77, 0]))
        await client.send("input_audio_buffer.commit")
        await client.event("input_audio_buffer.committed")
        steps.go_on()
        failed = await client.event("conversation.item.input_audio_transcription.failed")
        assert failed["error"]["message"].startswith("no more transcripts of the input")
        await client.speak(spoken([5]))
        await client.send("input_audio_buffer.commit")
        again = await client.event("conversation.item.input_audio_transcription.failed")
        assert again["error"] == failed["error"]
        await client.update(audio={"input": MANUAL})
        completed, texts = await dictate(client, 1)
        assert completed["transcript"] == " ".join(texts)
        await client.ws.close()
        assert isinstance(await client.closed(), Closed)
