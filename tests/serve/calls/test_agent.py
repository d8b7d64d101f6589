"""A voice agent over OpenAI Realtime, with null models and a scripted text model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.backends.base import StepInputs, StepOutputs
from antiphon.errors import ConfigError
from tests.serve.agent_client import agent_serving, caller, calling, is_left, lettered, messages_of, word
from tests.serve.asr_client import STT
from tests.serve.harness import serving
from tests.serve.realtime_client import realtime_client
from tests.serve.tts_client import ONE_VOICE, speaker
from tests.support.null_backend import NullBackend
from tests.support.null_models import null_checkpoint
from tests.support.text_model import Answer, TextModelServer, calls, ending, piece, says

TRANSCRIBED: Mapping[str, Any] = {"audio": {"input": {"transcription": {"model": "scribe"}}}}
TRANSCRIBED_BY_HAND: Mapping[str, Any] = {
    "audio": {"input": {"turn_detection": None, "transcription": {"model": "scribe"}}}
}
MANUAL: Mapping[str, Any] = {"audio": {"input": {"turn_detection": None}}}
SPEAK = "/api/tts_streaming?format=PcmMessagePack"
LONG = "one two three four five six seven eight nine ten"


def message(text: str, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


async def test_a_spoken_turn_gets_a_spoken_reply_in_the_order_of_the_api() -> None:
    async with calling(says("it is **one**"), session=TRANSCRIBED) as (client, text, _):
        said, written = word()
        await client.say(said)
        response = await client.done()
        assert response["status"] == "completed"
        assert response["usage"]["input_tokens"] == 11
        assert response["output"][0]["content"][0]["transcript"] == "it is one"
        assert client.letters == lettered("it", "is", "one")
        assert messages_of(text) == [("user", written)]
        (completed,) = client.of("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == written
        beside = ("delta", "transcription")
        kinds = dict.fromkeys(it for it in client.kinds if not any(map(it.__contains__, beside)))
        assert [*kinds][3:] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.done",
        ]


async def test_a_conversation_goes_on_with_what_was_said_before() -> None:
    async with calling(says("one"), says("two"), session={"instructions": "Be kind."}) as (client, text, _):
        first, second = word(), word(40)
        await client.say(first[0])
        await client.done()
        await client.say(second[0])
        await client.done()
        assert client.letters == lettered("one", "two")
        assert messages_of(text) == [
            ("system", "Be kind."),
            ("user", first[1]),
            ("assistant", "one"),
            ("user", second[1]),
        ]


async def test_speech_cuts_a_reply_and_what_was_not_heard_is_not_in_the_history() -> None:
    slow = Answer([*[piece(f"{it} ") for it in LONG.split()], *ending()])
    async with calling(slow, says("yes")) as (client, text, _):
        await client.say(word()[0])
        await client.until(lambda it: it.get("delta") == " three")
        await client.say(word(40, letters=8)[0])  # longer than any backchannel
        cut = await client.done()
        assert cut["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert (await client.done())["status"] == "completed"
        kinds = [it["type"] for it in client.events]
        begins = [at for at, it in enumerate(kinds) if it == "input_audio_buffer.speech_started"]
        assert begins[1] < kinds.index("response.done")
        heard = dict(messages_of(text))["assistant"].split()
        assert heard == LONG.split()[: len(heard)]
        assert 1 <= len(heard) < len(LONG.split())
        shown = cut["output"][0]["content"][0]["transcript"].split()
        assert heard == shown[: len(heard)]


async def test_a_backchannel_does_not_cut_a_reply() -> None:
    async with calling(says(LONG)) as (client, _text, _):
        await client.say(word()[0])
        await client.event("response.output_audio.delta")
        await client.speak_briefly()
        assert (await client.done())["status"] == "completed"
        assert client.letters == lettered(*LONG.split())
        assert len(client.of("input_audio_buffer.speech_started")) == 1


async def test_a_client_cancels_a_reply_and_the_request_ends() -> None:
    endless = Answer([piece("on and on and ")], stays=True)
    async with calling(endless) as (client, text, _):
        await client.say(word()[0])
        await client.event("response.output_audio.delta")
        await client.send("response.cancel")
        assert (await client.done())["status_details"]["reason"] == "client_cancelled"
        await text.is_idle.wait()
        await client.send("response.cancel")
        assert (await client.error())["code"] == "response_cancel_not_active"
        await client.say(word()[0])
        assert (await client.done())["status"] == "completed"


WEATHER = {"name": "weather", "description": "How it is.", "parameters": {"type": "object"}}


async def test_a_tool_is_called_answered_and_spoken_of() -> None:
    answers = calls(("weather", '{"at":"Ur"}'), ("time", "{}")), says("it is hot")
    tools = [{"type": "function", **WEATHER}, {"type": "function", "name": "time"}]
    asked = {"tools": tools, "tool_choice": "required"}
    async with calling(*answers, session=asked) as (client, text, _):
        await client.say(word()[0])
        response = await client.done()
        made = [(it["name"], it["arguments"]) for it in response["output"]]
        assert made == [("weather", '{"at":"Ur"}'), ("time", "{}")]
        deltas = client.of("response.function_call_arguments.delta")
        assert "".join(it["delta"] for it in deltas) == '{"at":"Ur"}{}'
        done = client.of("response.function_call_arguments.done")
        assert [it["call_id"] for it in done] == ["call_0", "call_1"]
        assert text.requests[0]["tools"][0] == {"type": "function", "function": WEATHER}
        assert text.requests[0]["tool_choice"] == "required"
        for call in done:
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hot"}
            await client.send("conversation.item.create", item=output)
        await client.send("response.create", response={"tool_choice": "none"})
        assert (await client.done())["status"] == "completed"
        assert client.letters == lettered("it", "is", "hot")
        roles = [it["role"] for it in text.requests[1]["messages"]]
        assert roles == ["user", "assistant", "tool", "tool"]
        assert text.requests[1]["tool_choice"] == "none"


async def test_the_caller_may_speak_while_a_tool_runs() -> None:
    answers = calls(("weather", "{}")), says("wait"), says("hot")
    async with calling(*answers, session={"tools": [{"type": "function", **WEATHER}]}) as (client, text, _):
        await client.say(word()[0])
        (call,) = (await client.done())["output"]
        second, written = word(40)
        await client.say(second)
        await client.done()
        assert messages_of(text)[-1] == ("user", written)
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "9"}
        await client.send("conversation.item.create", item=output)
        await client.send("response.create")
        await client.done()
        roles = [it["role"] for it in text.requests[2]["messages"]]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]
        assert client.letters == lettered("wait", "hot")


async def test_calls_without_an_id_get_one_each_and_keep_their_outputs() -> None:
    nameless = [
        Answer([piece(tool_calls=[{"function": {"name": "time", "arguments": it}}]), *ending("tool_calls")])
        for it in ('{"of":1}', '{"of":2}')
    ]
    async with calling(*nameless, says("yes")) as (client, text, _):
        for number in (1, 2):
            await client.send("response.create")
            (call,) = (await client.done())["output"]
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": f"is {number}"}
            await client.send("conversation.item.create", item=output)
        await client.send("response.create")
        await client.done()
        asked, one, two = text.requests[-1]["messages"]
        made = [(it["id"], it["function"]["arguments"]) for it in asked["tool_calls"]]
        assert made == [(one["tool_call_id"], '{"of":1}'), (two["tool_call_id"], '{"of":2}')]
        assert (one["content"], two["content"]) == ("is 1", "is 2")


async def test_a_word_of_any_length_is_said() -> None:
    async with calling(says("ha" * 200), says("\u54c8" * 2500), says("yes")) as (client, _text, _):
        for letter in ("h", "\u54c8"):  # they take half a minute to say: the begin will do
            await client.say(word()[0])
            said = await client.event("response.output_audio_transcript.delta")
            assert said["delta"].startswith(letter)
            await client.send("response.cancel")
            await client.done()
        await client.say(word(40)[0])
        assert (await client.done())["status"] == "completed"
        assert client.transcript.endswith("yes")


class Pausing(NullBackend):
    """A recogniser whose every head takes silence for a pause."""

    def step(self, inputs: StepInputs) -> StepOutputs:
        outputs = super().step(inputs)
        assert inputs.pcm is not None
        assert outputs.vad is not None
        quiet = np.abs(inputs.pcm).max(axis=1) == 0
        return outputs._replace(vad=np.where(quiet[:, None], np.float32(0.9), np.zeros_like(outputs.vad)))


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
async def test_a_turn_ends_where_the_recogniser_finds_a_pause(kind: str) -> None:
    length = {"silence_duration_ms": 5000} if kind == "server_vad" else {"eagerness": "low"}
    recogniser = null_checkpoint(STT), Pausing(STT, 2, step_ms=1.0)
    async with (
        TextModelServer(says("one")).serve() as text,
        agent_serving(text, model=recogniser) as server,
        caller(server, audio={"input": {"turn_detection": {"type": kind, **length}}}) as client,
    ):
        said, written = word()
        await client.say(said, silence=[3] * 10)  # 800 ms, and nothing after it
        assert (await client.done())["status"] == "completed"
        assert messages_of(text) == [("user", written)]


async def test_words_of_a_turn_are_not_in_the_next_where_turns_become_manual() -> None:
    async with calling(says("one"), says("two")) as (client, text, _):
        first, second = word(), word(40)
        await client.say(first[0])
        await client.done()
        await client.update(**MANUAL)
        await client.say(second[0], silence=())
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        await client.done()
        assert messages_of(text) == [("user", first[1]), ("assistant", "one"), ("user", second[1])]


async def test_a_response_of_text_apart_from_the_conversation_has_its_own_words() -> None:
    async with calling(says("a word"), says("b")) as (client, text, _):
        await client.send("conversation.item.create", item=message("Hello there."))
        own = {
            "conversation": "none",
            "output_modalities": ["text"],
            "instructions": "Sum up.",
            "input": [message("Only this.")],
            "metadata": {"for": "me"},
            "max_output_tokens": 20,
        }
        await client.send("response.create", response=own)
        await client.send("response.create", event_id="second")
        assert (await client.error())["code"] == "conversation_already_has_active_response"
        response = await client.done()
        assert response["metadata"] == {"for": "me"}
        assert response["conversation_id"] is None
        assert response["output"][0]["content"] == [{"type": "output_text", "text": "a word "}]
        assert messages_of(text) == [("system", "Sum up."), ("user", "Only this.")]
        assert text.requests[0]["max_tokens"] == 20
        await client.send("response.create")
        await client.done()
        assert messages_of(text) == [("user", "Hello there.")]
        assert client.letters == lettered("b")


async def test_items_are_created_shown_truncated_and_deleted() -> None:
    async with calling(says("one two"), says("b")) as (client, text, _):
        await client.send("conversation.item.create", item={**message("First."), "id": "a"})
        first = {"item": {**message("Who?", "system"), "id": "s"}, "previous_item_id": "root"}
        await client.send("conversation.item.create", **first)
        await client.send("conversation.item.create", item={**message("Gone."), "id": "g"})
        await client.send("conversation.item.delete", item_id="g")
        assert (await client.event("conversation.item.deleted"))["item_id"] == "g"
        await client.send("response.create")
        spoken = (await client.done())["output"][0]["id"]
        await client.send("conversation.item.retrieve", item_id=spoken)
        shown = (await client.event("conversation.item.retrieved"))["item"]
        assert shown["content"][0]["transcript"] == "one two"
        await client.send("conversation.item.truncate", item_id=spoken, content_index=0, audio_end_ms=600)
        await client.event("conversation.item.truncated")
        await client.send("response.create")
        await client.done()
        assert messages_of(text) == [("system", "Who?"), ("user", "First."), ("assistant", "one")]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "mcp_call"}, "item.type is 'mcp_call'"),
        ({**message(""), "content": [{"type": "input_image"}]}, "item.content[0].type is"),
        ({"type": "function_call_output", "output": "x"}, "item.call_id is missing"),
    ],
)
async def test_an_item_that_no_text_model_reads_is_refused(item: dict[str, Any], words: str) -> None:
    async with calling() as (client, _, _):
        await client.send("conversation.item.create", item=item)
        assert words in (await client.error())["message"]
        await client.send("response.create", response={"tools": [{"type": "web_search"}]})
        assert "response.tools[0].type is 'web_search'" in (await client.error())["message"]


async def test_turns_by_hand_end_with_the_clients_word() -> None:
    async with calling(says("one"), session=MANUAL) as (client, text, _):
        said, written = word()
        await client.say(said, silence=())
        await client.send("input_audio_buffer.commit")
        committed = await client.event("input_audio_buffer.committed")
        await client.send("response.create")
        assert (await client.done())["status"] == "completed"
        assert messages_of(text) == [("user", written)]
        assert not client.of("input_audio_buffer.speech_started")
        await client.send("conversation.item.delete", item_id=committed["item_id"])
        await client.event("conversation.item.deleted")
        await client.send("response.create")
        await client.done()
        assert messages_of(text) == [("assistant", "one")]


async def test_a_greeting_comes_first_and_is_said_word_for_word() -> None:
    async with calling(says("one"), agent={"greeting": "hello there"}) as (client, text, _):
        await client.done()
        assert client.letters == lettered("hello", "there")
        assert not text.requests
        await client.say(word()[0])
        await client.done()
        assert messages_of(text)[0] == ("assistant", "hello there")


async def test_a_call_gets_a_row_of_each_model_or_none() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, slots=1) as server:
        async with server.http.ws_connect(server.url(SPEAK, "ws")) as taken:
            await taken.receive()
            async with realtime_client(server, "/v1/realtime?model=assistant") as client:
                assert (await client.error())["code"] == "rate_limit_exceeded"
                assert (await client.closed()).code == 1013
            await server.eventually(lambda: server.engines["scribe"].health().active == 0)
        await is_left(server)
        async with caller(server) as called:
            await called.say(word()[0])
            await called.done()


async def test_eight_callers_are_answered_each_with_its_own_words() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, slots=8) as server:

        async def call(number: int) -> None:
            async with caller(server) as client:
                said, written = word(20 + 2 * number)
                await client.say(said)
                await client.done()
                assert client.letters == lettered("I", "see.")
                assert [("user", written)] in [messages_of(text, at) for at in range(len(text.requests))]

        await asyncio.gather(*map(call, range(8)))
        await is_left(server)


async def test_an_agent_is_listed_measured_and_its_tokens_are_recorded(tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    async with (
        TextModelServer(says("one two")).serve() as text,
        agent_serving(text, usage=str(usage)) as server,
    ):
        async with caller(server, "/v1/realtime") as client:  # no model talks: the agent does
            await client.say(word()[0])
            await client.done()
        await is_left(server)
        listed = json.loads((await server.get("/v1/models"))[1])["data"]
        assert [it["id"] for it in listed if "root" not in it] == ["scribe", "assistant", "speaker"]
        described = json.loads((await server.get("/api/models"))[1])
        assert described["agents"] == [
            {"name": "assistant", "stt": "scribe", "tts": "speaker", "voice": None}
        ]
        metrics = (await server.get("/metrics"))[1]
        assert 'antiphon_agent_replies_total{agent="assistant",outcome="completed"} 1.0' in metrics
        assert 'antiphon_agent_tokens_total{agent="assistant",direction="in"} 11.0' in metrics
        for part in ("text", "first_text", "sound", "flush"):
            assert f'antiphon_agent_{part}_seconds_count{{agent="assistant"}} 1.0' in metrics
    (record,) = map(json.loads, usage.read_text().splitlines())
    assert (record["model"], record["tokens_in"], record["tokens_out"]) == ("assistant", 11, 2)
    assert record["seconds_out"] > 0.4
    assert record["seconds_in"] > 1.0


async def test_tokens_count_of_a_reply_that_its_caller_does_not_wait_for(tmp_path: Path) -> None:
    usage = tmp_path / "usage.jsonl"
    agent = {"greeting": "hello"}
    async with (
        TextModelServer(says(LONG)).serve() as text,
        agent_serving(text, usage=str(usage), agent=agent) as server,
    ):
        async with caller(server) as client:
            await client.done()
            await client.say(word()[0])
            await client.event("response.output_audio.delta")
            await text.is_idle.wait()
        await is_left(server)
        metrics = (await server.get("/metrics"))[1]
        assert 'antiphon_agent_tokens_total{agent="assistant",direction="out"} 10.0' in metrics
        assert 'antiphon_agent_text_seconds_count{agent="assistant"} 1.0' in metrics  # not of the greeting
    (record,) = map(json.loads, usage.read_text().splitlines())
    assert (record["tokens_in"], record["tokens_out"]) == (11, 10)


async def test_a_recogniser_of_the_same_server_still_writes() -> None:
    path = "/v1/realtime?intent=transcription&model=scribe"
    async with (
        TextModelServer().serve() as text,
        agent_serving(text) as server,
        realtime_client(server, path) as client,
    ):
        assert (await client.event("session.created"))["session"]["type"] == "transcription"


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"name": "scribe"}, "the agent 'scribe' has the name of a model here"),
        ({"stt": "speaker"}, "no stt model of that name is served"),
        ({"voice": "alba"}, "is to speak as 'alba', and speaker has no such voice"),
    ],
)
async def test_an_agent_that_cannot_be_is_refused_at_the_start(agent: dict[str, str], words: str) -> None:
    text_model = TextModelConfig(llm="http://127.0.0.1:9/v1")
    config = AgentConfig(**{"name": "assistant", "text_models": (text_model,), **agent})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        async with serving(spec=STT, beside=[speaker(spec=ONE_VOICE)], agents=(config,)):
            pass
