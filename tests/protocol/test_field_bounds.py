"""Each field of lists and texts in JSON events has a limit; the refusal has both numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import FieldError
from antiphon.protocol import live, realtime
from antiphon.protocol.event_text import MAX_EVENT_CHARS, MAX_PLAIN_CHARS
from antiphon.protocol.fields import Fields
from antiphon.protocol.live_session import MAX_INSTRUCTIONS_CHARS, MAX_MESSAGES
from antiphon.protocol.realtime import MAX_METADATA
from antiphon.protocol.realtime_session import RealtimeSession
from antiphon.protocol.realtime_tools import (
    MAX_INPUT,
    MAX_ITEM_CHARS,
    MAX_PARTS,
    MAX_TOOLS,
    read_item,
    reply_fields,
)

Decode = Callable[[str], Any]


def session_of(**fields: Any) -> dict[str, Any]:
    return {"type": "session.start", "session": {"model": "echo", **fields}}


def respond(**fields: Any) -> dict[str, Any]:
    return {"type": "response.create", "response": fields}


def entries(count: int) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": []} for _ in range(count)]


@pytest.mark.parametrize(
    ("decode", "event", "words"),
    [
        (live.decode, session_of(input=entries(MAX_MESSAGES + 1)), "has 129 entries, the limit is 128"),
        (
            live.decode,
            session_of(instructions="x" * (MAX_INSTRUCTIONS_CHARS + 1)),
            "65537 characters, the limit is 65536",
        ),
        (realtime.decode, respond(metadata={str(n): "" for n in range(MAX_METADATA + 1)}), "has 17 keys"),
        (live.decode, {"type": "x" * MAX_EVENT_CHARS}, f"the limit is {MAX_EVENT_CHARS}"),
        (
            live.decode,
            {"type": "session.update", "a": "x" * MAX_PLAIN_CHARS},
            f"characters without audio, the limit is {MAX_PLAIN_CHARS}",
        ),
    ],
    ids=["messages", "instructions", "metadata", "an event", "an event without audio"],
)
def test_a_field_beyond_its_bound_is_refused_with_both_numbers(
    decode: Decode, event: dict[str, Any], words: str
) -> None:
    with pytest.raises(FieldError, match=words):
        decode(json.dumps(event))


@pytest.mark.parametrize(
    ("name", "entry", "most"),
    [
        ("tools", {"type": "function", "name": "time"}, MAX_TOOLS),
        ("input", {"type": "item_reference", "id": "item_1"}, MAX_INPUT),
    ],
)
def test_lists_of_a_response_are_bounded(name: str, entry: dict[str, str], most: int) -> None:
    found = reply_fields(RealtimeSession("assistant"), Fields({name: [entry] * most}, "response"))
    assert len(getattr(found, name)) == most
    with pytest.raises(FieldError, match=rf"response\.{name} has {most + 1} entries, the limit is {most}"):
        reply_fields(RealtimeSession("assistant"), Fields({name: [entry] * (most + 1)}, "response"))


def test_an_item_for_a_text_model_is_bounded() -> None:
    def item(*texts: str) -> Fields:
        content = [{"type": "input_text", "text": it} for it in texts]
        return Fields({"type": "message", "role": "user", "content": content}, "item")

    half = "x" * (MAX_ITEM_CHARS // 2)
    assert len(read_item(item(half, half[1:])).text) == MAX_ITEM_CHARS
    with pytest.raises(
        FieldError, match=f"has {MAX_ITEM_CHARS + 1} characters, the limit is {MAX_ITEM_CHARS}"
    ):
        read_item(item(half, half))
    with pytest.raises(FieldError, match=f"has {MAX_PARTS + 1} entries, the limit is {MAX_PARTS}"):
        read_item(item(*["x"] * (MAX_PARTS + 1)))
