"""A Realtime client's input for a text model: items of the conversation, and the options of a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import FieldError
from antiphon.protocol.fields import INVALID_VALUE, Fields
from antiphon.protocol.live_session import MAX_INSTRUCTIONS_CHARS, MAX_NAME_CHARS
from antiphon.protocol.realtime_session import RealtimeSession

MAX_ITEM_CHARS: Final = 65_536
MAX_OUTPUT_TOKENS: Final = 100_000
MAX_INPUT: Final = 256
"""Limits on the text of one item, the tokens of a response, and the items of a response's own input."""

MAX_TOOLS: Final = 128
MAX_PARTS: Final = 256
"""Limits on the tools of a session or a response, and on the contents of an item."""

ROLES: Final = ("system", "user", "assistant")
PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "input_audio": "transcript",
    "output_audio": "transcript",
}
"""Types of content, and the key of each type's text."""


@dataclass(frozen=True, slots=True)
class WrittenItem:
    """An item of a Realtime conversation that a text model can read. ``role`` is the role of a message, or
    "call" or "output" for the items of a tool.
    """

    role: str
    text: str
    call_id: str = ""
    name: str = ""


def read_item(fields: Fields) -> WrittenItem:
    """Read an item for a text model.

    Raises:
        FieldError: the item is of another type, or a field is missing or too long.
    """
    match fields.choice("type", ("message", "function_call", "function_call_output")):
        case "function_call_output":
            output = fields.optional_text("output", max_chars=MAX_ITEM_CHARS) or ""
            return WrittenItem("output", output, fields.text("call_id", max_chars=MAX_NAME_CHARS))
        case "function_call":
            arguments = fields.optional_text("arguments", max_chars=MAX_ITEM_CHARS) or ""
            name = fields.text("name", max_chars=MAX_NAME_CHARS)
            return WrittenItem("call", arguments, fields.text("call_id", max_chars=MAX_NAME_CHARS), name)
        case _:
            return WrittenItem(fields.choice("role", ROLES), _text_of(fields))


def _text_of(fields: Fields) -> str:
    """The text of a message's content."""
    texts = [
        part.text(PARTS[part.choice("type", tuple(PARTS))], max_chars=MAX_ITEM_CHARS)
        for part in fields.objects("content", most=MAX_PARTS)
    ]
    text = "\n".join(texts)
    if len(text) > MAX_ITEM_CHARS:
        words = f"has {len(text)} characters, the limit is {MAX_ITEM_CHARS}"
        raise fields.error("content", INVALID_VALUE, words)
    return text


def read_tools(fields: Fields) -> list[dict[str, Any]]:
    """Read ``tools`` in the format of text models, [] if absent.

    Raises:
        FieldError: a tool is not a function, or has no name.
    """
    read = []
    for tool in fields.objects("tools", most=MAX_TOOLS):
        tool.choice("type", ("function",))
        tool.text("name", max_chars=MAX_NAME_CHARS)
        function = {name: tool.values[name] for name in ("name", "description", "parameters") if name in tool}
        read.append({"type": "function", "function": function})
    return read


def read_choice(fields: Fields) -> Any:
    """Read ``tool_choice`` in the format of text models, None if absent.

    Raises:
        FieldError: the choice is invalid.
    """
    choice = fields.values.get("tool_choice")
    if not isinstance(choice, dict):
        return fields.optional_choice("tool_choice", ("auto", "none", "required"))
    function = fields.object("tool_choice")
    function.choice("type", ("function",))
    return {"type": "function", "function": {"name": function.text("name", max_chars=MAX_NAME_CHARS)}}


@dataclass(frozen=True, slots=True)
class ReplyFields:
    """The options of a text model's reply; ``max_tokens`` None stands for the agent's own limit.

    ``input`` replaces the conversation: each entry is an item, or the id of an item of the conversation. None
    keeps the conversation.
    """

    instructions: str
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Any
    parallel_tool_calls: bool | None
    max_tokens: int | None
    input: Sequence[str | WrittenItem] | None = None
    is_apart: bool = False


def reply_fields(session: RealtimeSession, response: Fields | None = None) -> ReplyFields:
    """The options of a reply: the session's options, overridden by the options of a ``response``.

    Raises:
        FieldError: a field of the response cannot be used.
    """
    given = Fields({}, "session") if response is None else response
    own = Fields({**session.kept, **given.values}, given.path, given.event_id)
    instructions = session.instructions
    if response is not None and response.values.get("instructions") is not None:
        instructions = response.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS) or ""
    parallel = own.flag("parallel_tool_calls") if "parallel_tool_calls" in own else None
    return ReplyFields(
        instructions,
        read_tools(own),
        read_choice(own),
        parallel,
        _tokens(own),
        None if response is None else _input(response),
        response is not None and response.values.get("conversation") == "none",
    )


def _tokens(fields: Fields) -> int | None:
    if fields.values.get("max_output_tokens") in (None, "inf"):
        return None
    return fields.count("max_output_tokens", low=1, high=MAX_OUTPUT_TOKENS, default=1)


def _input(response: Fields) -> Sequence[str | WrittenItem] | None:
    if "input" not in response:
        return None
    return [
        item.text("id", max_chars=MAX_NAME_CHARS)
        if item.values.get("type") == "item_reference"
        else read_item(item)
        for item in response.objects("input", most=MAX_INPUT)
    ]


def refuse_second(event_id: str | None) -> FieldError:
    """The error for a response requested while one is in progress."""
    return FieldError(
        "the conversation has an active response already; cancel it, or wait for response.done",
        param=None,
        code="conversation_already_has_active_response",
        event_id=event_id,
    )
