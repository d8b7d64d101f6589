"""Delegation in OpenAI Live: work that a model hands to the client, or to a model with tools.

With type ``client`` the application does the work: the model reports a delegation, and the application
appends the result. With type ``responses`` the session has tools; calls and outputs have the format of
OpenAI's Responses API. Derived from the types of the ``openai`` package 3.54.0 (``types/live``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from antiphon.protocol.fields import Fields
from antiphon.protocol.live_session import MAX_INSTRUCTIONS_CHARS
from antiphon.protocol.realtime_tools import MAX_OUTPUT_TOKENS, read_choice, read_tools


class Target(StrEnum):
    """The target of delegated work: the client, or a text model with tools."""

    CLIENT = "client"
    RESPONSES = "responses"


DELEGATE: Final = "delegate"
"""The tool with which a text model hands work to the client."""

DELEGATE_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": DELEGATE,
        "description": "Hand the caller's latest request to the application, which has data and can act. "
        "It reads the conversation, and answers with the result.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True, slots=True)
class Delegation:
    """The delegation of a session: its target, and the tools of a text model in its API's format. ``target``
    is None if there is no delegation.
    """

    target: Target | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    instructions: str = ""


def read_delegation(values: Mapping[str, Any] | None, event_id: str | None = None) -> Delegation:
    """The delegation of a session, from the event with this id.

    Raises:
        FieldError: a tool is not a function, or a field cannot be used.
    """
    kind = None if values is None else values.get("type")
    if kind == Target.CLIENT:
        return Delegation(Target.CLIENT, (DELEGATE_TOOL,))
    if values is None or kind != Target.RESPONSES:
        return Delegation()
    own = Fields(values, "session.delegation", event_id).optional_object("responses")
    if own is None:
        return Delegation(Target.RESPONSES)
    limit = own.count("max_output_tokens", low=0, high=MAX_OUTPUT_TOKENS, default=0)
    return Delegation(
        Target.RESPONSES,
        read_tools(own),
        read_choice(own),
        own.flag("parallel_tool_calls") if own.values.get("parallel_tool_calls") is not None else None,
        limit or None,
        own.optional_text("instructions", max_chars=MAX_INSTRUCTIONS_CHARS) or "",
    )
