"""Failures of an agent's text model in whole calls: audio for the caller, events for the client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon.agent.chat_stream import MAX_ARGUMENT_CHARS, MAX_LINE_BYTES, MAX_REPLY_CHARS, MAX_TOOL_CALLS
from tests.serve.agent_client import (
    SORRY,
    Caller,
    agent_serving,
    caller,
    calling,
    is_left,
    lettered,
    messages_of,
    patient,
    word,
)
from tests.support.text_model import (
    KEY,
    Answer,
    TextModelServer,
    calls,
    ending,
    piece,
    says,
    tool_call,
    unanswering,
)

SAID = piece("one two ")
BEGUN = [piece(tool_calls=[{"index": 0, "id": "call_a", "function": {"name": "weather"}}])]
ARGUMENTS = [
    piece(tool_calls=[{"index": 0, "function": {"arguments": "x" * (MAX_ARGUMENT_CHARS // 2 + 1)}}])
] * 2
FAILED = {"type": "failed"}


@dataclass(frozen=True)
class Row:
    """One row of the table: the text model's ``answer``, how often it is ``asked``, and what becomes of it.

    ``logged`` are words of what the operator reads; the client's error says ``again`` if it may.
    """

    answer: Answer
    logged: str
    asked: int = 1
    heard: Sequence[str] = (SORRY,)
    again: str = ""


ROWS: Mapping[str, Row] = {
    **{f"status {it}": Row(Answer(status=it), f"status {it}", asked=2) for it in (500, 502, 504)},
    **{f"status {it}": Row(Answer(status=it), f"status {it}") for it in (400, 401, 404, 429, 503)},
    "a redirect": Row(Answer(status=307, headers={"Location": "http://there/"}), "redirects"),
    "no stream": Row(Answer(headers={"Content-Type": "text/html"}), "without server-sent events"),
    "no JSON": Row(Answer(["data: {\n\n"]), "no JSON object"),
    "an error within": Row(Answer([{"error": {"message": KEY}}]), "an error within its stream"),
    "a long line": Row(Answer(["data: " + "x" * MAX_LINE_BYTES + "\n\n"]), "a line of"),
    "cut at once": Row(Answer(is_cut=True), "or closed the connection", asked=2),
    "cut within": Row(Answer([SAID], is_cut=True), "or closed the connection", heard=("one", "two")),
    "many tools": Row(calls(*[("weather", "{}")] * (MAX_TOOL_CALLS + 1)), "more than 16 tool calls"),
    "long arguments": Row(
        Answer([SAID, *BEGUN, *ARGUMENTS, *ending("tool_calls")]),
        f"{MAX_ARGUMENT_CHARS + 2} characters of arguments, the limit is {MAX_ARGUMENT_CHARS}",
        heard=("one", "two"),
    ),
    # The last row: within this time the text model is not asked again.
    "full for a while": Row(
        Answer(status=429, headers={"Retry-After": "9"}), "status 429", again="; try again in 9 s"
    ),
}


async def test_a_failure_is_spoken_told_and_over_with_the_next_turn(caplog: pytest.LogCaptureFixture) -> None:
    answers = [row.answer for row in ROWS.values() for _ in range(row.asked)]
    async with calling(*answers, agent={"sorry": SORRY}) as (client, text, _):
        heard: list[int] = []
        for row in ROWS.values():
            before = len(text.requests)
            await client.say(word()[0])
            response = await client.done()
            assert (response["status"], len(text.requests) - before) == ("failed", row.asked), row
            assert response["status_details"]["error"] == {
                "type": "server_error",
                "code": "text_model_failed",
                "message": f"the agent's text model has failed{row.again}",
            }
            assert row.logged in logged(caplog)[-1]  # where it is, is for the operator alone
            assert [it["type"] for it in response["output"]] == ["message"]
            heard += lettered(*row.heard)
            assert client.letters == heard, row
        assert {it for role, it in messages_of(text) if role == "assistant"} == {"one two"}
        assert KEY not in json.dumps([client.events, logged(caplog)]) + caplog.text


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the operator reads of failures so far."""
    fields = [vars(it)["fields"] for it in caplog.records if it.message == "the text model failed"]
    return [it["reason"] for it in fields]


async def answered(client: Caller) -> dict[str, Any]:
    """The response to a turn."""
    await client.say(word()[0])
    return await client.done()


async def test_a_text_model_that_is_full_for_a_while_is_left_to_the_next() -> None:
    full = Answer(status=503, headers={"Retry-After": "9"})
    async with (
        TextModelServer(full).serve() as text,
        TextModelServer(says("one"), says("two")).serve() as other,
        agent_serving(text, other) as server,
    ):
        async with caller(server) as client:
            for _ in range(2):
                assert (await answered(client))["status"] == "completed"
            assert (len(text.requests), client.letters) == (1, lettered("one", "two"))
        await is_left(server)


async def test_a_text_model_whose_queue_of_connections_is_full_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with unanswering() as url:
        gone = TextModelServer()
        gone.url = url
        async with agent_serving(gone, agent={"sorry": SORRY}) as server, caller(server) as client:
            patient(server, connect_s=0.1)
            assert (await answered(client))["status"] == "failed"
            assert "cannot be reached" in logged(caplog)[-1]
            assert client.letters == lettered(SORRY)


async def test_a_text_model_that_says_nothing_is_asked_twice_and_apologised_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = Answer(stays=True)
    async with calling(silent, silent, agent={"sorry": SORRY}) as (client, text, server):
        patient(server, first_s=0.2)
        assert (await answered(client))["status"] == "failed"
        assert "has not begun a reply within 0.2 s" in logged(caplog)[-1]
        assert client.letters == lettered(SORRY)
        assert len(text.requests) == 2


async def test_a_first_word_that_comes_late_is_said() -> None:
    slow = Answer([*[piece(reasoning_content="Hm. ")] * 4, SAID, *ending()], pause_s=0.1)
    async with calling(slow) as (client, text, _):
        assert (await answered(client))["status"] == "completed"
        assert client.letters == lettered("one", "two")
        assert len(text.requests) == 1


@pytest.mark.parametrize("end", [{"is_cut": True}, {"stays": True}])
async def test_what_was_said_stays_where_a_text_model_leaves_within_a_reply(end: dict[str, Any]) -> None:
    async with calling(Answer([SAID], **end)) as (client, text, server):
        patient(server, next_s=0.2)
        assert (await answered(client))["status"] == "failed"
        assert client.letters == lettered("one", "two")
        await answered(client)
        assert ("assistant", "one two") in messages_of(text)


async def test_a_reply_at_its_limit_of_tokens_is_incomplete() -> None:
    async with calling(Answer([piece("one "), *ending("length")])) as (client, _, _):
        details = (await answered(client))["status_details"]
        assert details == {"type": "incomplete", "reason": "max_output_tokens"}
        assert client.letters == lettered("one")


async def test_a_reply_without_an_end_is_cut_at_its_limit_of_characters() -> None:
    endless = Answer([piece("again " * 500)], repeats=True)
    async with calling(endless, session={"output_modalities": ["text"]}) as (client, text, _):
        response = await answered(client)
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert len(response["output"][0]["content"][0]["text"]) == MAX_REPLY_CHARS
        await text.is_idle.wait()


@pytest.mark.parametrize(
    "events", [[], [piece("")], [piece("```\ncode\n```")], [piece("<think>Hm.</think>")]]
)
async def test_a_reply_without_a_word_is_complete_and_silent(events: list[dict[str, Any]]) -> None:
    async with calling(Answer([*events, *ending()]), says("fine")) as (client, text, _):
        response = await answered(client)
        assert (response["status"], response["output"]) == ("completed", [])
        await answered(client)
        assert client.letters == lettered("fine")
        assert {role for role, _ in messages_of(text)} == {"user"}


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_tool_call_that_may_be_cut_is_not_made(is_cut: bool) -> None:
    begun = tool_call("weather", '{"at":"Ur"}')[:-2]
    answer = Answer(begun, is_cut=True) if is_cut else Answer([*begun, *ending("length")])
    async with calling(answer, agent={"sorry": SORRY}) as (client, text, _):
        response = await answered(client)
        assert response["status"] == ("failed" if is_cut else "incomplete")
        assert "function_call" not in [it["type"] for it in response["output"]]
        await answered(client)
        assert {it["role"] for it in text.requests[1]["messages"]} == {"user"}


async def test_the_next_text_model_answers_where_the_first_is_gone() -> None:
    gone = TextModelServer()
    gone.url = "http://127.0.0.1:9/v1"
    async with (
        TextModelServer(says("one")).serve() as text,
        agent_serving(gone, text) as server,
        caller(server) as client,
    ):
        assert (await answered(client))["status"] == "completed"
