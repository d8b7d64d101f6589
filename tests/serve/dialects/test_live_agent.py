"""A voice agent over OpenAI Live, with null models and a scripted text model."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from antiphon.agent.values import AudioHeard, ToolCalled
from antiphon.audio.pcm import FloatArray
from antiphon.errors import FieldError
from antiphon.protocol import live
from antiphon.serve.dialects.live_agent import MAX_DELEGATIONS, LiveAgentDialect
from tests.serve.agent_client import SILENCE, SORRY, agent_serving, is_left, lettered, messages_of, word
from tests.serve.asr_client import spoken
from tests.serve.harness import PATIENCE_S, Server
from tests.serve.hostile import live_messages
from tests.serve.live_client import PATH, LiveClient, live_client, watchers_of
from tests.serve.tts_client import levels
from tests.support.text_model import Answer, TextModelServer, calls, ending, piece, says

LONG = "one two three four five six seven eight nine ten"
TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
RESPONSES: Mapping[str, Any] = {
    "type": "responses",
    "responses": {"model": "any", "tools": TOOLS, "instructions": "Use tools."},
}


@asynccontextmanager
async def talking(
    *answers: Answer, path: str = PATH, agent: dict[str, Any] | None = None, **session: Any
) -> AsyncIterator[tuple[LiveClient, TextModelServer, Server]]:
    """A session of the agent; in the end nothing of the call is left."""
    async with TextModelServer(*answers).serve() as text, agent_serving(text, agent=agent) as server:
        async with live_client(server, path) as client:
            await client.start(**{"model": "assistant", **session})
            yield client, text, server
        await is_left(server)
        await text.is_idle.wait()


async def say(client: LiveClient, said: list[int]) -> None:
    await client.speak(spoken([*said, *SILENCE]))


def sound(client: LiveClient) -> FloatArray:
    data = b"".join(base64.b64decode(it["delta"]) for it in client.of("session.output_audio.delta"))
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)


def transcript(client: LiveClient) -> str:
    return "".join(it["delta"] for it in client.of("session.output_transcript.delta"))


async def heard(client: LiveClient, *words: str) -> None:
    """Wait until these words are all that was said."""
    async with asyncio.timeout(PATIENCE_S):
        while levels(sound(client), None) != lettered(*words):
            await client.receive()


async def test_a_spoken_turn_gets_sound_and_the_timed_words_of_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long a machine keeps the caller's audio, no silence is heard before it.
    monkeypatch.setattr("antiphon.audio.clock.OVERDUE_S", PATIENCE_S)
    async with talking(says("it is **one**")) as (client, text, _):
        said, understood = word()
        await say(client, said)
        heard_word = await client.event("session.input_transcript.delta")
        assert heard_word["delta"] == f" {understood}"
        assert 0 <= heard_word["start_ms"] < heard_word["end_ms"] <= 400
        await heard(client, "it", "is", "one")
        while transcript(client) != " it is one":
            await client.receive()
        assert messages_of(text) == [("user", understood)]
        for told in client.of("session.output_transcript.delta"):  # the times are those of its sound
            part = sound(client)[round(24 * told["start_ms"]) : round(24 * told["end_ms"])]
            assert levels(part, None) == lettered(told["delta"].strip())


async def test_sound_is_continuous_and_exactly_silent_between_replies() -> None:
    async with talking() as (client, _, _):
        for _ in range(6):  # nothing is sent
            assert not (await client.audio()).any()
        await client.send("session.input_audio.mute")
        await say(client, word()[0])
        await client.event("session.input_audio.muted")
        for _ in range(16):
            assert not (await client.audio()).any()
        assert not client.of("session.input_transcript.delta")


async def test_the_session_brings_instructions_and_the_conversation_before() -> None:
    before = [
        {"role": "developer", "content": [{"type": "input_text", "text": "It rains."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
    ]
    wishes: dict[str, Any] = {
        "instructions": "Be kind.",
        "input": before,
        "audio": {"output": {"voice": "nobody"}},
    }
    async with talking(says("one"), **wishes) as (client, text, _):
        assert (await client.event("info"))["code"] == "voice_ignored"
        said, understood = word()
        await say(client, said)
        await heard(client, "one")
        told = [("system", "It rains."), ("user", "Hello."), ("assistant", "Hi.")]
        assert messages_of(text) == [("system", "Be kind."), *told, ("user", understood)]
        assert len(client.of("info")) == 1


async def test_the_callers_voice_cuts_a_reply() -> None:
    slow = Answer([*[piece(f"{it} ") for it in LONG.split()], *ending()])
    async with talking(slow, says("yes")) as (client, text, _):
        await say(client, word()[0])
        await client.until(lambda it: it.get("delta") == " three")
        await say(client, word(40, letters=8)[0])  # longer than any backchannel
        await client.until(lambda it: it.get("delta") == " yes")
        assert "ten" not in transcript(client)
        kept = dict(messages_of(text))["assistant"].split()
        assert 1 <= len(kept) < 10
        assert kept == LONG.split()[: len(kept)]


async def test_tools_are_called_by_delegation_to_responses() -> None:
    answers = calls(("weather", '{"at":"Ur"}'), ("weather", "{}")), says("it is hot")
    async with talking(*answers, delegation=RESPONSES) as (client, text, _):
        await say(client, word()[0])
        made = (await client.event("session.delegation.created"))["delegation"]
        assert (made["type"], made["target"]) == ("delegation", "responses")
        await client.until(lambda it: it.get("event", {}).get("type") == "response.completed")
        told = client.of("response.event")
        assert {it["delegation_id"] for it in told} == {made["id"]}
        assert [it["event"]["sequence_number"] for it in told] == list(range(8))
        assert told[0]["event"]["response"]["id"] == made["response_id"]
        done = [it["event"]["item"] for it in told if it["event"]["type"] == "response.output_item.done"]
        assert [(it["name"], it["arguments"]) for it in done] == [
            ("weather", '{"at":"Ur"}'),
            ("weather", "{}"),
        ]
        for item in done:
            output = {"type": "function_call_output", "call_id": item["call_id"], "output": "hot"}
            await client.send("response.item.create", item=output)
        await client.send("response.create")
        await heard(client, "it", "is", "hot")
        assert text.requests[0]["tools"][0]["function"]["name"] == "weather"
        roles = [it["role"] for it in text.requests[1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool"]
        assert messages_of(text)[0] == ("system", "Use tools.")


async def test_work_is_delegated_to_the_client_and_its_result_is_spoken_of() -> None:
    answers = calls(("delegate", "{}")), says("done")
    async with talking(*answers, delegation={"type": "client"}) as (client, text, _):
        await say(client, word()[0])
        made = (await client.event("session.delegation.created"))["delegation"]
        assert made == {"id": made["id"], "type": "delegation", "target": "client"}
        assert [it["function"]["name"] for it in text.requests[0]["tools"]] == ["delegate"]
        thought = {"content": "It takes a while.", "delegation_id": made["id"]}
        await client.send("session.thinking.append", **thought)
        await client.event("session.thinking.appended")
        result = {"content": "It is hot.", "delegation_id": made["id"], "event_id": "mine"}
        await client.send("session.commentary.append", **result)
        told = await client.event("session.commentary.appended")
        assert told["client_event_id"] == "mine"
        assert told["start_ms"] == told["end_ms"] > 0
        await heard(client, "done")
        roles = [it["role"] for it in text.requests[1]["messages"]]
        assert roles == ["user", "assistant", "tool", "system"]
        assert messages_of(text)[2] == ("tool", "It is hot.")
        await client.send("session.commentary.append", **result)
        error = await client.error()
        assert (error["code"], error["param"]) == ("invalid_value", "delegation_id")


async def test_the_oldest_of_too_many_delegations_is_dropped() -> None:
    asked = {"model": "assistant", "delegation": {"type": "client"}}
    start = live.decode(json.dumps({"type": "session.start", "session": asked}))
    assert isinstance(start, live.Start)
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        dialect = LiveAgentDialect(start, server.services.agents["assistant"])
        told = [
            json.loads(str(message))["delegation"]["id"]
            for number in range(MAX_DELEGATIONS + 1)
            for message in dialect.messages(ToolCalled(f"item{number}", f"call{number}", "delegate", ["{}"]))
        ]
        result = {"type": "session.commentary.append", "content": "Done."}
        with pytest.raises(FieldError, match="no delegation of that id waits for the client"):
            dialect.feed(json.dumps({**result, "delegation_id": told[0]}))
        for delegation in told[1:]:
            assert dialect.feed(json.dumps({**result, "delegation_id": delegation}))


async def test_appended_text_is_read_and_commentary_is_spoken_of() -> None:
    async with talking(says("noted")) as (client, text, _):
        for kind in ("instructions", "thinking"):
            await client.send(f"session.{kind}.append", content=f"Some {kind}.", delegation_id=None)
            await client.event(f"session.{kind}.appended")
        assert not text.requests
        await client.send("session.commentary.append", content="Dinner is ready.", delegation_id=None)
        await heard(client, "noted")
        told = ["Some instructions.", "Some thinking.", "Dinner is ready."]
        assert messages_of(text) == [("system", it) for it in told]
        await client.send("response.create", event_id="mine")
        error = await client.error()
        assert (error["code"], error["client_event_id"]) == ("unsupported_event", "mine")


async def test_an_update_changes_the_delegation_and_keeps_what_it_does_not_name() -> None:
    async with talking(says("one"), delegation=RESPONSES) as (client, text, _):
        await client.send("session.update", session={"delegation": {"type": "decisions"}})
        assert (await client.event("session.updated"))["session"]["delegation"] == {"type": "decisions"}
        await client.send("session.update", session={"delegation": RESPONSES})
        choice = {"type": "responses", "responses": {"tool_choice": "none"}}
        await client.send("session.update", session={"delegation": choice})
        await client.event("session.updated")
        shown = (await client.event("session.updated"))["session"]["delegation"]["responses"]
        assert shown == {**RESPONSES["responses"], "tool_choice": "none"}
        wrong = {"delegation": {**RESPONSES, "responses": {"tools": [{}]}}}
        await client.send("session.update", session=wrong, event_id="mine")
        error = await client.error()
        assert "session.delegation.responses.tools[0].type is missing" in error["message"]
        assert error["client_event_id"] == "mine"
        await say(client, word()[0])
        await heard(client, "one")
        assert (len(text.requests[0]["tools"]), text.requests[0]["tool_choice"]) == (1, "none")


async def test_a_failure_is_spoken_and_told_and_the_session_continues() -> None:
    async with talking(Answer(status=400), says("fine"), agent={"sorry": SORRY}) as (client, _, _):
        await say(client, word()[0])
        error = await client.error()
        assert (error["type"], error["code"]) == ("server_error", "text_model_failed")
        await say(client, word(40)[0])
        await heard(client, SORRY, "fine")


async def test_a_close_lets_a_reply_end() -> None:
    async with talking(says("one two three")) as (client, _, _):
        await say(client, word()[0])
        await client.until(lambda it: it.get("delta") == " one")
        await client.send("session.close")
        closed = await client.event("session.closed")
        assert closed["reason"] == "close_requested"
        assert closed["usage"]["seconds"] > 1
        assert transcript(client) == " one two three"
        assert (await client.closed()).code == 1000


async def test_a_reply_without_an_end_is_ended_after_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.dialects.live.DRAIN_S", 0.2)
    async with talking(Answer([piece("on and on ")], stays=True)) as (client, _, _):
        await say(client, word()[0])
        await client.until(lambda it: it.get("delta") == " on")
        await client.send("session.close")
        await client.event("session.closed")


async def test_a_watcher_sees_both_sides_and_may_append() -> None:
    async with talking(says("one"), says("two")) as (client, text, server):
        live_id = client.of("session.started")[0]["session"]["id"]
        async with live_client(server, f"{PATH}/{live_id}/attach") as watcher:
            await server.eventually(lambda: bool(watchers_of(server.calls[0])))
            await say(client, word()[0])
            await watcher.event("session.input_audio.append")
            await watcher.event("session.input_transcript.delta")
            shown = await watcher.until(lambda it: it.get("delta") == " one")
            audio = watcher.of("session.output_audio.delta")
            assert any(it["end_ms"] == shown["end_ms"] for it in audio)
            await watcher.send("session.commentary.append", content="Now.", delegation_id=None)
            await heard(client, "one", "two")
        assert messages_of(text)[-1] == ("system", "Now.")


async def test_silence_that_a_client_has_not_read_is_bounded_and_sent_over_turns() -> None:
    start = live.decode('{"type":"session.start","session":{"model":"assistant"}}')
    assert isinstance(start, live.Start)
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        dialect = LiveAgentDialect(start, server.services.agents["assistant"])
        watched = list[Any]()
        dialect.watchers.add(watched.append)
        assert len(dialect.messages(AudioHeard(24_000))) == 12
        told = [dialect.messages(AudioHeard(24_000 * 60))]
        while dialect.due_s < 0.0:
            told.append(dialect.due(0.0))
        assert [len(it) for it in told] == [*[12] * 10, 5]
        assert [it.start_ms for it in watched] == [80 * it for it in (*range(12), *range(762 - 125, 762))]


@pytest.mark.parametrize("path", [PATH, f"/m/assistant{PATH}"])
async def test_telephone_formats_and_paths_of_an_agent(path: str) -> None:
    audio = {"format": {"type": "audio/pcmu"}}
    async with talking(says("one"), path=path, audio=audio) as (client, _, _):
        delta = (await client.event("session.output_audio.delta"))["delta"]
        assert set(base64.b64decode(delta)) == {0xFF}


async def test_an_agent_without_a_row_refuses_and_other_sessions_are_as_before() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, slots=1) as server:
        async with live_client(server) as first:
            await first.start(model="assistant")
            async with live_client(server) as second:
                await second.send("session.start", session={"model": "assistant"})
                assert (await second.error())["code"] == "rate_limit_exceeded"
                assert (await second.closed()).code == 1013
        await is_left(server)
        async with live_client(server) as third:
            await third.send("session.start", session={"model": "scribe"})
            assert (await third.error())["code"] == "model_not_found"


async def test_hostile_messages_end_no_session() -> None:
    hostile = live_messages(np.random.default_rng(5))
    async with talking() as (client, _, _):
        sent = [it for it in hostile if isinstance(it, str) and "close" not in it and "mute" not in it]
        for message in sent:
            await client.ws.send_str(message)
        said, written = word()
        await say(client, [*SILENCE, *said])
        async with asyncio.timeout(PATIENCE_S):
            await client.until(lambda it: it.get("delta") == f" {written}")
        assert len(client.of("error")) > len(sent) // 2
