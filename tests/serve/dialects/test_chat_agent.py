"""A voice agent over ``/api/chat``, with null models and a scripted text model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from antiphon.audio.pcm import FloatArray
from antiphon.protocol import moshi
from tests.serve.agent_client import SILENCE, agent_serving, is_left, lettered, messages_of, word
from tests.serve.asr_client import spoken
from tests.serve.harness import FRAME_SAMPLES, Client, Server
from tests.serve.tts_client import levels
from tests.support.text_model import Answer, TextModelServer, calls, ending, piece, says

LONG = "one two three four five six seven eight nine ten"


@asynccontextmanager
async def chatting(
    *answers: Answer, query: str = "", **agent: Any
) -> AsyncIterator[tuple[Client, TextModelServer, Server]]:
    """A caller of the extension; in the end nothing of the call is left."""
    async with TextModelServer(*answers).serve() as text, agent_serving(text, agent=agent) as server:
        async with server.call(f"ext=1&format=pcm_f32le&model=assistant{query}") as client:
            yield client, text, server
        await is_left(server)
        await text.is_idle.wait()


async def say(client: Client, said: list[int]) -> None:
    await client.speak(spoken([*said, *SILENCE]))


def written(client: Client) -> str:
    return "".join(it.text for it in client.messages if isinstance(it, moshi.Text))


def heard(client: Client) -> FloatArray:
    sounds = [np.frombuffer(it.data, "<f4") for it in client.messages if isinstance(it, moshi.StampedAudio)]
    return np.concatenate(sounds, dtype=np.float32)


async def test_a_spoken_turn_gets_sound_and_the_words_of_both_sides() -> None:
    async with chatting(says("it is one"), query="&text_topk=50&consent=record&wait=5") as (
        client,
        text,
        _,
    ):
        ready = (await client.event("ready")).fields
        assert (ready["model"], ready["parameters"]) == ("assistant", {})
        assert "resume" not in ready
        assert "recorded" not in ready
        said, understood = word()
        await say(client, said)
        assert (await client.event("heard")).fields == {"text": understood}
        await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " one")
        await client.speak(np.zeros(40 * FRAME_SAMPLES, np.float32))
        wanted = lettered("it", "is", "one")
        while levels(heard(client), None) != wanted:
            await client.reply()
        assert written(client) == " it is one"
        assert messages_of(text) == [("user", understood)]


async def test_silence_comes_for_each_frame_that_the_agent_says_nothing_to() -> None:
    async with chatting() as (client, _text, _):
        await client.event("ready")
        await client.speak(np.zeros(5 * FRAME_SAMPLES, np.float32))
        frames = [await client.reply() for _ in range(5)]
        assert [stamp.frame for stamp, _ in frames] == [0, 1, 2, 3, 4]
        assert all(pcm.size == FRAME_SAMPLES and not pcm.any() for _, pcm in frames)


async def test_a_prompt_takes_the_place_of_the_instructions() -> None:
    async with chatting(query="&text_prompt=Be+kind.", instructions="Be brief.") as (client, text, _):
        await client.event("ready")
        said, understood = word()
        await say(client, said)
        await client.until(lambda it: isinstance(it, moshi.Text))
        assert messages_of(text) == [("system", "Be kind."), ("user", understood)]


async def test_a_flush_cuts_the_reply_and_nothing_more_of_it_comes() -> None:
    endless = Answer([piece("on and on and ")], stays=True)
    async with chatting(endless, says("done")) as (client, text, _):
        await client.event("ready")
        await say(client, word()[0])
        await client.until(
            lambda it: isinstance(it, moshi.StampedAudio) and any(np.frombuffer(it.data, "<f4"))
        )
        await client.send(moshi.Event("flush"))
        cut = (await client.event("interrupted")).fields["at_frame"]
        await text.is_idle.wait()
        before = len(client.messages)
        await client.speak(np.zeros(3 * FRAME_SAMPLES, np.float32))
        await say(client, word()[0])
        await client.until(lambda it: isinstance(it, moshi.Text))
        after = client.messages[before:]
        assert "".join(it.text for it in after if isinstance(it, moshi.Text)) == " done"
        assert min(it.frame for it in after if isinstance(it, moshi.StampedAudio)) >= cut


async def test_the_callers_voice_cuts_a_reply() -> None:
    slow = Answer([*[piece(f"{it} ") for it in LONG.split()], *ending()])
    async with chatting(slow, says("yes")) as (client, _text, _):
        await client.event("ready")
        await say(client, word()[0])
        await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " three")
        await say(client, word(40, letters=8)[0])  # longer than any backchannel
        await client.event("interrupted")
        await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " yes")
        assert "ten" not in written(client)


async def test_a_call_of_a_tool_is_shown() -> None:
    async with chatting(calls(("weather", '{"at":"Ur"}'))) as (client, _text, _):
        await client.event("ready")
        await say(client, word()[0])
        assert (await client.event("tool")).fields == {"name": "weather", "arguments": '{"at":"Ur"}'}


async def test_a_failed_text_model_is_apologised_for_and_the_call_continues() -> None:
    async with chatting(Answer(status=400), says("fine"), sorry="sorry now") as (client, _text, _):
        await client.event("ready")
        await say(client, word()[0])
        await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " now")
        await say(client, word(40)[0])
        await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " fine")


async def test_a_stock_client_hears_ogg_and_sees_words_alone() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, agent={"greeting": "hello"}) as server:
        async with server.call("model=assistant") as client:
            assert isinstance(await client.receive(), moshi.Handshake)
            await client.until(lambda it: isinstance(it, moshi.Text) and it.text == " hello")
            sounds = [it.data for it in client.messages if isinstance(it, moshi.Audio)]
            assert sounds
            assert all(it.startswith(b"OggS") for it in sounds)
        await is_left(server)


@pytest.mark.parametrize("path", ["/api/chat", "/m/assistant/api/chat"])
async def test_an_agent_answers_without_a_name_and_by_its_path(path: str) -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call("ext=1&format=pcm_f32le", path=path) as client:
            assert (await client.event("ready")).fields["model"] == "assistant"
        await is_left(server)


async def test_a_call_of_an_agent_is_refused_when_full() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, slots=1) as server:
        query = "ext=1&format=pcm_f32le&model=assistant"
        async with server.call(query) as first:
            await first.event("ready")
            async with server.call(f"{query}&wait=60") as second:
                error = await second.event("error")
                assert error.fields["code"] == 1013
        await is_left(server)
        _, answer, _ = await server.get("/api/models")
        assert all("/api/chat" not in it["paths"] for it in json.loads(answer)["models"])
