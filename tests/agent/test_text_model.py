"""The client of text models, with a server that produces each fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.agent.chat_stream import (
    MAX_LINE_BYTES,
    MAX_NAME_CHARS,
    MAX_REPLY_CHARS,
    CallPiece,
    ChatStream,
    Piece,
    ReplyEnded,
    TextPiece,
    TokensUsed,
)
from antiphon.agent.text_model import MAX_LIST_BYTES, Endpoint, TextModel, TextModelTimeouts, TextRequest
from antiphon.errors import TextModelError
from tests.support.text_model import KEY, Answer, TextModelServer, calls, ending, piece, says

REQUEST = TextRequest([{"role": "user", "content": "Hello?"}], max_tokens=50)
PATIENT = TextModelTimeouts()


async def asked(
    *servers: TextModelServer, request: TextRequest = REQUEST, patience: TextModelTimeouts = PATIENT
) -> list[Piece]:
    """The reply of a client to whom these servers are an endpoint each."""
    model = TextModel([Endpoint(server.url, "scripted") for server in servers], patience)
    try:
        async with contextlib.aclosing(model.reply(request)) as pieces:
            return [piece async for piece in pieces]
    finally:
        assert model.running == 0
        await model.close()


def text_of(pieces: list[Piece]) -> str:
    return "".join(it.text for it in pieces if isinstance(it, TextPiece))


def test_a_reply_comes_in_pieces_and_ends_with_its_tokens() -> None:
    async def scene() -> list[Piece]:
        async with TextModelServer(says("Yes, it is.")).serve() as server:
            found = await asked(server)
            (body,) = server.requests
            assert body["messages"] == REQUEST.messages
            assert (body["model"], body["max_tokens"]) == ("scripted", 50)
            assert body["stream_options"] == {"include_usage": True}
            assert "tools" not in body
            return found

    found = asyncio.run(scene())
    assert found == [*map(TextPiece, ("Yes, ", "it ", "is. ")), ReplyEnded(), TokensUsed(11, 3)]


def test_tool_calls_come_in_pieces_each_with_its_id() -> None:
    async def scene() -> list[Piece]:
        tools = [{"type": "function", "function": {"name": "weather"}}]
        async with TextModelServer(calls(("weather", '{"at":"Ur"}'), ("time", "{}"))).serve() as server:
            request = TextRequest(REQUEST.messages, 50, tools, "required", parallel_tool_calls=False)
            found = await asked(server, request=request)
            (body,) = server.requests
            assert (body["tools"], body["tool_choice"]) == (tools, "required")
            assert body["parallel_tool_calls"] is False
            return found

    made: dict[int, list[str]] = {}
    for found in asyncio.run(scene()):
        if isinstance(found, CallPiece):
            made.setdefault(found.index, [found.call_id, found.name, ""])[2] += found.arguments
    assert made == {0: ["call_0", "weather", '{"at":"Ur"}'], 1: ["call_1", "time", "{}"]}


BROKEN: dict[str, tuple[Answer, str]] = {
    "no JSON": (Answer(["data: {nonsense\n\n"]), "sent an event of 9 bytes that is no JSON object"),
    "no object": (Answer(["data: [1]\n\n"]), "sent an event of 3 bytes that is no JSON object"),
    "deep": (Answer([f"data: {'[' * 9000}\n\n"]), "sent an event of 9000 bytes that is no JSON object"),
    "content": (Answer([{"choices": [{"delta": {"content": 3}}]}]), "sent an event whose content is no text"),
    "choices": (Answer([{"choices": "none"}]), "sent an event whose choices are no list of objects"),
    "an error": (Answer([{"error": {"message": KEY}}]), "reports an error within its stream"),
    "long": (Answer(["data: " + "a" * MAX_LINE_BYTES]), f"the limit is {MAX_LINE_BYTES}"),
    "a nameless tool": (Answer([piece(tool_calls=[{"index": 0}])]), "sent a tool call without a name"),
    "a long name": (calls(("t" * (MAX_NAME_CHARS + 1), "{}")), "sent a malformed tool call"),
    "no stream": (Answer(headers={"Content-Type": "text/html"}), "answered without server-sent events"),
    "a redirect": (Answer(status=307, headers={"Location": "http://there/"}), "redirects, which is not foll"),
    "a wrong key": (Answer(status=401), "refuses the request: status 401"),
    "a fault": (Answer(status=500), "refuses the request: status 500"),
    "an end": (Answer(is_cut=True), "cannot be reached, or closed the connection: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_and_nothing_of_its_words_is_repeated(name: str) -> None:
    answer, words = BROKEN[name]

    async def scene() -> int:
        async with TextModelServer(usual=answer).serve() as server:
            with pytest.raises(TextModelError, match=words) as raised:
                await asked(server)
            assert KEY not in str(raised.value)
            return len(server.requests)

    tries = asyncio.run(scene())
    assert tries == (2 if name in ("a fault", "an end") else 1)


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_is_not_asked_again(status: int) -> None:
    async def scene() -> None:
        async with (
            TextModelServer(usual=Answer(status=status)).serve() as server,
            TextModelServer().serve() as other,
        ):
            with pytest.raises(TextModelError, match=f"status {status}"):
                await asked(server)
            assert len(server.requests) == 1
            assert text_of(await asked(server, other)) == "I see. "

    asyncio.run(scene())


def test_a_server_that_is_full_for_a_while_is_asked_again_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(header: str, words: str | None) -> int:
        full = Answer(status=429, headers={"Retry-After": header})
        async with TextModelServer(full).serve() as server:
            model = TextModel([Endpoint(server.url, "scripted")])
            with pytest.raises(TextModelError, match="status 429"):
                await anext(model.reply(REQUEST))
            with contextlib.nullcontext() if words is None else pytest.raises(TextModelError, match=words):
                await anext(model.reply(REQUEST))
            await model.close()
            return len(server.requests)

    assert asyncio.run(scene("9", r"^127\.0\.0\.1:\d+ is full for [5-9] s more, as it said$")) == 1
    assert asyncio.run(scene("Thu, 26 Nov 2026 08:00:00 GMT", None)) == 2  # a date is of another clock
    monkeypatch.setattr("antiphon.agent.text_model.MAX_RETRY_AFTER_S", 0)
    assert asyncio.run(scene("9", None)) == 2


def test_the_next_endpoint_is_asked_where_one_is_gone_silent_or_wrong() -> None:
    async def scene() -> None:
        gone = TextModelServer()
        gone.url = "http://127.0.0.1:9/v1"
        silent = TextModelServer(usual=Answer(stays=True))
        wrong = TextModelServer(usual=Answer(["data: no\n\n"]))
        async with silent.serve(), wrong.serve(), TextModelServer().serve() as last:
            found = await asked(gone, silent, wrong, last, patience=TextModelTimeouts(first_s=2.0))
            assert text_of(found) == "I see. "
            assert (len(silent.requests), len(wrong.requests), len(last.requests)) == (2, 1, 1)
            await silent.is_idle.wait()

    asyncio.run(scene())


def test_what_was_said_stays_and_no_other_is_asked_once_a_reply_has_begun() -> None:
    async def scene(answer: Answer, words: str, patience: TextModelTimeouts = PATIENT) -> None:
        async with TextModelServer(answer).serve() as server, TextModelServer().serve() as other:
            model = TextModel([Endpoint(server.url, "a"), Endpoint(other.url, "b")], patience)
            said = model.reply(REQUEST)
            assert await anext(said) == TextPiece("Well ")
            with pytest.raises(TextModelError, match=words):
                await anext(said)
            assert not other.requests
            await server.is_idle.wait()
            await model.close()

    silent, words = Answer([piece("Well ")], stays=True), "has not continued its reply within 0.2 s"
    asyncio.run(scene(silent, words, TextModelTimeouts(next_s=0.2)))
    asyncio.run(scene(Answer([piece("Well ")], is_cut=True), "cannot be reached, or closed|ended within"))


def test_a_model_may_think_longer_than_it_may_be_silent_but_not_for_ever() -> None:
    async def scene(answer: Answer, patience: TextModelTimeouts) -> list[Piece]:
        async with TextModelServer(answer, usual=answer).serve() as server:
            found = await asked(server, patience=patience)
            assert len(server.requests) == 1
            return found

    thinking = [piece(reasoning_content="Hm. ")] * 8
    slow = Answer([*thinking, piece("Yes."), *ending()], pause_s=0.3)
    found = asyncio.run(scene(slow, TextModelTimeouts(first_s=2.0, next_s=2.0)))
    assert text_of(found) == "Yes."
    with pytest.raises(TextModelError, match=r"has not begun a reply within 0\.3 s"):
        asyncio.run(scene(Answer(thinking, repeats=True), TextModelTimeouts(reasoning_s=0.3)))


def test_counts_of_tokens_and_empty_parts_of_calls_are_no_progress() -> None:
    counts = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    empty = _part("", index=0)

    async def scene() -> None:
        answer = Answer([*_first_of("time"), counts, piece(tool_calls=[empty])], repeats=True, pause_s=0.01)
        async with TextModelServer(answer).serve() as server:
            await asked(server, patience=TextModelTimeouts(reasoning_s=0.3))

    with pytest.raises(TextModelError, match=r"has not continued its reply within 0\.3 s"):
        asyncio.run(scene())


def _first_of(name: str) -> list[dict[str, Any]]:
    return [piece(tool_calls=[_part("", name, index=0, id="a")])]


def test_events_of_a_reply_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.agent.chat_stream.MAX_EVENTS", 20)
    stream = ChatStream()
    stream.feed("".join([_as_line(piece(reasoning_content="Hm."))] * 20).encode())
    with pytest.raises(TextModelError, match="more than 20 events in a reply"):
        stream.feed(_as_line(piece("Yes.")).encode())


@pytest.mark.parametrize("size", [1, 3, 200])
def test_what_a_model_thinks_within_its_text_is_left_out(size: int) -> None:
    text = "<think>Is 2 < 3? </thin so>\n</think>It is <b>1</b> <thin<think>well</think>g> 5 <th"
    events = [piece(text[at : at + size]) for at in range(0, len(text), size)]
    stream = ChatStream()
    found = stream.feed("".join(map(_as_line, [*events, *ending()])).encode())
    assert text_of(found) == "It is <b>1</b> <thing> 5 <th"
    assert found[-2] == ReplyEnded()
    assert text_of(ChatStream().feed(_as_line(piece("<think>on and on")).encode() + b"data: [DONE]\n")) == ""


def _calls_of(*parts: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = ChatStream().feed("".join(_as_line(piece(tool_calls=[part])) for part in parts).encode())
    made: dict[int, list[str]] = {}
    for it in found:
        assert isinstance(it, CallPiece)
        made.setdefault(it.index, [it.call_id, it.name, ""])[2] += it.arguments
    return [(call_id, name, arguments) for call_id, name, arguments in made.values()]


def _part(arguments: str, name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {"arguments": arguments, **({"name": name} if name else {})}}


def test_a_new_id_begins_a_call_whatever_its_index_is_and_none_is_needed() -> None:
    two = [("a", "time", "{}"), ("b", "date", "{}")]
    indices: Sequence[dict[str, Any]] = ({"index": 0}, {"index": None}, {})
    for index in indices:
        assert _calls_of(_part("{}", "time", id="a", **index), _part("{}", "date", id="b", **index)) == two
        pieces = (
            _part("{", "time", id="a", **index),
            _part("}", **index),
            _part("{}", "date", id="b", **index),
        )
        assert _calls_of(*pieces) == two
    assert _calls_of(_part("{}", "time"), _part("{}", "time")) == [("", "time", "{}")] * 2
    once = [("a", "time", "{}")]
    assert _calls_of(_part("{", "time", index=0, id="a"), _part("}", "time", index=0, id="a")) == once
    assert _calls_of(_part("{", "time", index=0, id="a"), _part("}", index=0, id="other")) == once


def test_an_endless_reply_is_cut() -> None:
    async def scene() -> list[Piece]:
        async with TextModelServer(Answer([piece("again " * 500)], repeats=True)).serve() as server:
            found = await asked(server)
            await server.is_idle.wait()
            return found

    found = asyncio.run(scene())
    assert len(text_of(found)) == MAX_REPLY_CHARS
    assert found[-1] == ReplyEnded(is_cut=True)


def test_a_caller_that_leaves_ends_the_request() -> None:
    async def scene() -> None:
        async with TextModelServer(Answer([piece("Well ")], stays=True)).serve() as server:
            model = TextModel([Endpoint(server.url, "a")])
            task = asyncio.ensure_future(_read(model))
            await server.has_request.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.is_idle.wait()
            assert model.running == 0
            await model.close()

    async def _read(model: TextModel) -> None:
        async with contextlib.aclosing(model.reply(REQUEST)) as pieces:
            async for _ in pieces:
                pass

    asyncio.run(scene())


def test_the_only_model_needs_no_name_and_the_key_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", KEY)

    async def scene() -> None:
        async with TextModelServer().serve() as server:
            model = TextModel([Endpoint(server.url, key_env="A_KEY")])
            assert [it async for it in model.reply(REQUEST)]
            assert server.requests[0]["model"] == "scripted"
            assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
            await model.close()
            server.models = ("one", "x" * 5000)
            model = TextModel([Endpoint(server.url)])
            with pytest.raises(
                TextModelError, match=r"has 2 models, set llm_model to one of them: one, x{100}$"
            ):
                await model.name(model.endpoints[0])
            await model.close()

    asyncio.run(scene())


def test_no_more_of_a_list_of_models_is_read_than_its_limit() -> None:
    async def scene() -> None:
        async with TextModelServer().serve() as server:
            server.models = ("x" * MAX_LIST_BYTES,)
            model = TextModel([Endpoint(server.url)])
            with pytest.raises(TextModelError, match="has no list of models at /models"):
                await model.name(model.endpoints[0])
            await model.close()

    asyncio.run(scene())


def test_a_stream_is_read_alike_however_it_is_cut() -> None:
    events = [piece("Grüße "), piece(tool_calls=[{"index": 0, "function": {"name": "a", "arguments": {}}}])]
    lines = [": ping\n\n", "event: x\r\n", *map(_as_line, [*events, *ending()]), "data: [DONE]\r\n\r\n"]
    data = "".join(lines).encode()
    whole = ChatStream().feed(data)
    assert whole[:2] == [TextPiece("Grüße "), CallPiece(0, "", "a", "{}")]
    for size in (1, 3, 7):
        stream = ChatStream()
        cut = [it for at in range(0, len(data), size) for it in stream.feed(data[at : at + size])]
        stream.finish()
        assert cut == whole


def _as_line(event: dict[str, Any]) -> str:
    import json

    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def test_a_stream_that_ends_within_a_reply_is_not_whole() -> None:
    stream = ChatStream()
    stream.feed(_as_line(piece("Well")).encode())
    with pytest.raises(TextModelError, match="the text model's stream ended within a reply"):
        stream.finish()


def test_whether_a_text_model_is_there_is_asked_once_for_all_who_want_to_know() -> None:
    async def scene() -> None:
        async with TextModelServer().serve() as gone:
            pass
        async with TextModelServer().serve() as server:
            model = TextModel([Endpoint(gone.url, "scripted"), Endpoint(server.url, "scripted")])
            try:
                assert await asyncio.gather(*(model.is_up() for _ in range(20))) == [True] * 20
                assert server.lists == 1
            finally:
                await model.close()
        model = TextModel([Endpoint(gone.url, "scripted")])
        try:
            assert not await model.is_up()
        finally:
            await model.close()

    asyncio.run(scene())
