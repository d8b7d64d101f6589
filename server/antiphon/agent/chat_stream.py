"""Parses the stream of a chat completion: server-sent events in, pieces of a reply out. It has limits and no
I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from antiphon.errors import TextModelError

MAX_LINE_BYTES: Final = 65_536
"""Maximum bytes of one event. An event contains one token or a few."""

MAX_REPLY_CHARS: Final = 32_768
"""Maximum number of characters of a reply: half an hour of speech; a longer one is cut."""

MAX_EVENTS: Final = 65_536
"""Maximum number of events of a reply, including the model's reasoning; a longer reply is an error."""

MAX_ARGUMENT_CHARS: Final = 65_536
MAX_TOOL_CALLS: Final = 16
MAX_NAME_CHARS: Final = 256
"""Limits of one reply's tool calls: the characters of all arguments, the number of calls, the characters of a
name or an id.
"""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A further piece of the reply's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the tool call with the number ``index``. The first piece has the call's ``name``;
    ``call_id`` may be empty.
    """

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TokensUsed:
    """The tokens of the request and the reply, counted by the text model."""

    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """The reply is complete, or ``is_cut`` at a limit of tokens or characters."""

    is_cut: bool = False


Piece: TypeAlias = TextPiece | CallPiece | TokensUsed | ReplyEnded


class ReasoningFilter:
    """Removes the reasoning from a model's text: the parts between ``<think>`` and ``</think>``."""

    MARKS: Final = ("<think>", "</think>")

    def __init__(self) -> None:
        """Start outside of reasoning."""
        self._rest = ""
        self._thinks = False

    def feed(self, text: str) -> str:
        """Add text; return the part that is neither reasoning nor the start of a mark."""
        text, said = self._rest + text, ""
        while True:
            mark = self.MARKS[self._thinks]
            before, found, after = text.partition(mark)
            if not found:
                break
            said += "" if self._thinks else before
            self._thinks, text = not self._thinks, after
        held = next(it for it in range(len(mark) - 1, -1, -1) if text.endswith(mark[:it]))
        sure, self._rest = text[: len(text) - held], text[len(text) - held :]
        return said if self._thinks else said + sure

    def finish(self) -> str:
        """End the text; return the text that was kept as the possible start of a mark."""
        rest, self._rest = self._rest, ""
        return "" if self._thinks else rest


class ChatStream:
    """The parser of one reply; ``events`` counts the events so far. After ``is_done`` the rest of the stream
    is ignored.
    """

    def __init__(self) -> None:
        """Start before the first byte."""
        self.is_done = False
        self.events = 0
        self._thoughts = ReasoningFilter()
        self._rest = b""
        self._has_ended = False
        self._chars = self._argument_chars = 0
        self._call_ids: list[str] = []
        self._places: dict[int, int] = {}  # of the latest call of each index, in the list of ids

    def feed(self, data: bytes) -> list[Piece]:
        """Add bytes; return the pieces that they complete.

        Raises:
            TextModelError: an invalid event, a line or arguments that are too long, too many events, or
                an error that the server sent.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        longest = max(map(len, (*lines, self._rest)))
        if longest > MAX_LINE_BYTES:
            raise TextModelError(
                f"the text model sent a line of {longest} bytes, the limit is {MAX_LINE_BYTES}"
            )
        pieces: list[Piece] = []
        for line in lines:
            if not self.is_done and line.startswith(b"data:"):  # else a comment, a name, or an end
                pieces += self._event(line[5:].strip())
        return pieces

    def finish(self) -> None:
        """End the stream.

        Raises:
            TextModelError: the reply was not complete.
        """
        if not (self.is_done or self._has_ended):
            raise TextModelError("the text model's stream ended within a reply")

    def _event(self, data: bytes) -> list[Piece]:
        if data == b"[DONE]":
            self.is_done = True
            return [] if self._has_ended else self._end()
        event = _parsed(data)
        self.events += 1
        if self.events > MAX_EVENTS:
            raise TextModelError(f"the text model sent more than {MAX_EVENTS} events in a reply")
        if "error" in event:
            raise TextModelError("the text model reports an error within its stream")
        choices = event.get("choices") or [{}]
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise TextModelError("the text model sent an event whose choices are no list of objects")
        delta, reason = choices[0].get("delta") or {}, choices[0].get("finish_reason")
        if not isinstance(delta, dict):
            raise TextModelError("the text model sent an event whose delta is no object")
        pieces = [*self._text(delta.get("content")), *self._tool_calls(delta.get("tool_calls"))]
        if reason is not None and not self._has_ended:
            pieces += self._end(is_cut=reason in ("length", "content_filter"))
        return pieces + _usage(event.get("usage"))

    def _end(self, *, is_cut: bool = False) -> list[Piece]:
        self._has_ended = True
        rest = self._thoughts.finish()
        return [*([TextPiece(rest)] if rest else []), ReplyEnded(is_cut)]

    def _text(self, content: Any) -> list[Piece]:
        if content is None or content == "" or self._has_ended:
            return []
        if not isinstance(content, str):
            raise TextModelError("the text model sent an event whose content is no text")
        left = MAX_REPLY_CHARS - self._chars
        self._chars += len(content)
        said = self._thoughts.feed(content[:left])
        pieces: list[Piece] = [TextPiece(said)] if said else []
        if self._chars <= MAX_REPLY_CHARS:
            return pieces
        self.is_done = True
        return pieces + self._end(is_cut=True)

    def _tool_calls(self, calls: Any) -> list[Piece]:
        if not calls:
            return []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise TextModelError("the text model sent tool calls that are no list of objects")
        return [piece for call in calls for piece in self._tool_call(call)]

    def _tool_call(self, call: Mapping[str, Any]) -> list[CallPiece]:
        """The piece of a tool call; none if it adds nothing."""
        function = call.get("function") or {}
        if not isinstance(function, dict):
            raise TextModelError("the text model sent a malformed tool call")
        index, call_id = call.get("index"), call.get("id") or ""
        name, arguments = function.get("name") or "", function.get("arguments")
        if not isinstance(arguments, str):  # some servers send the object itself
            arguments = "" if arguments is None else json.dumps(arguments)
        is_read = isinstance(index, int | None) and isinstance(call_id, str) and isinstance(name, str)
        if not is_read or len(call_id) > MAX_NAME_CHARS or len(name) > MAX_NAME_CHARS:
            raise TextModelError("the text model sent a malformed tool call")
        known = len(self._call_ids)
        place = self._place(index, call_id, name)
        self._argument_chars += len(arguments)
        if self._argument_chars > MAX_ARGUMENT_CHARS:
            raise TextModelError(
                f"the text model sent {self._argument_chars} characters of arguments, the limit is "
                f"{MAX_ARGUMENT_CHARS}"
            )
        is_new = arguments or place == known
        return [CallPiece(place, self._call_ids[place], name, arguments)] if is_new else []

    def _place(self, index: int | None, call_id: str, name: str) -> int:
        """The call that a piece belongs to: a new id with a name begins the next call, for any index."""
        place = len(self._call_ids) - 1 if index is None else self._places.get(index, -1)
        if place >= 0:
            is_same = call_id == self._call_ids[place] if call_id else index is not None
            if is_same or not name:
                return place
        if not name or len(self._call_ids) >= MAX_TOOL_CALLS:
            what = f"more than {MAX_TOOL_CALLS} tool calls" if name else "a tool call without a name"
            raise TextModelError(f"the text model sent {what}")
        self._call_ids.append(call_id)
        if index is not None:
            self._places[index] = len(self._call_ids) - 1
        return len(self._call_ids) - 1


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise TextModelError(f"the text model sent an event of {len(data)} bytes that is no JSON object")
    return event


def _usage(usage: Any) -> list[Piece]:
    if not isinstance(usage, dict):
        return []
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    tokens = [count if isinstance(count, int) and 0 <= count < 2**53 else 0 for count in counts]
    return [TokensUsed(*tokens)]
