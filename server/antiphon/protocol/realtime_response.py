"""Makes the events of one response of OpenAI Realtime, in the API's order.

A response has at most one message, of audio or of text, and then tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.protocol.realtime_events import Event, Ids, event
from antiphon.protocol.realtime_items import Items, function_call, message
from antiphon.protocol.realtime_session import OutputFormat

IN_PROGRESS, COMPLETED, CANCELLED = "in_progress", "completed", "cancelled"
INCOMPLETE, FAILED = "incomplete", "failed"
TURN_DETECTED, CLIENT_CANCELLED, TOO_LONG = "turn_detected", "client_cancelled", "max_output_tokens"


class Response:
    """One response in the format ``output``; ``item`` is its message, None until it has one.

    ``is_apart``: the response's items are not part of the conversation.
    """

    def __init__(
        self,
        ids: Ids,
        items: Items,
        conversation: str,
        output: OutputFormat,
        metadata: Mapping[str, str] | None = None,
        *,
        is_apart: bool = False,
    ) -> None:
        """Start without output."""
        self.id, self.output = ids.new("resp"), output
        self.item: str | None = None
        self._ids, self._items, self._conversation = ids, items, None if is_apart else conversation
        self._metadata = metadata
        self._previous: str | None = None
        self._transcript: list[str] = []
        self._made: list[dict[str, Any]] = []
        self._has_ended = False

    @property
    def has_text(self) -> bool:
        """Whether the response's message has text."""
        return bool(self._transcript)

    def created(self) -> Event:
        """The event that starts the response."""
        return event("response.created", response=self._shown(IN_PROGRESS, None, None))

    def begin_message(self, item: str | None = None) -> list[Event]:
        """Start the response's message, with the id ``item`` or the next free id."""
        self.item = item or self._ids.new("item")
        made = message(self.item, "assistant", IN_PROGRESS, [])
        added = self._added(made)
        return [added, *self._listed(made), self.of_part("response.content_part.added", part=self._part(""))]

    def text(self, delta: str) -> Event:
        """Add text to the response's message."""
        self._transcript.append(delta)
        return self.of_part(f"{self._stem}.delta", delta=delta)

    def audio(self, delta: bytes) -> Event:
        """Add audio to the response's message."""
        return self.of_part("response.output_audio.delta", delta=delta)

    def end_message(self, *, is_whole: bool) -> list[Event]:
        """End the response's message, if it has one."""
        if self.item is None or self._has_ended:
            return []
        self._has_ended = True
        text, has_audio = "".join(self._transcript), self.output.has_audio
        name = "transcript" if has_audio else "text"
        content = {"type": "output_audio" if has_audio else "output_text", name: text}
        made = message(self.item, "assistant", COMPLETED if is_whole else INCOMPLETE, [content])
        closing = [
            self.of_part(f"{self._stem}.done", **{name: text}),
            self.of_part("response.content_part.done", part=self._part(text)),
        ]
        sound = [self.of_part("response.output_audio.done")] if has_audio else []
        return [*sound, *closing, *self._done(made)]

    def tool_call(self, item: str, call_id: str, name: str, pieces: Sequence[str]) -> list[Event]:
        """Add a tool call; ``pieces`` together are the arguments."""
        begun = function_call(item, call_id, name, "", IN_PROGRESS)
        made = function_call(item, call_id, name, "".join(pieces), COMPLETED)
        place = {"response_id": self.id, "item_id": item, "output_index": len(self._made), "call_id": call_id}
        kind = "response.function_call_arguments"
        return [
            self._added(begun),
            *self._listed(begun),
            *(event(f"{kind}.delta", **place, delta=piece) for piece in pieces if piece),
            event(f"{kind}.done", **place, name=name, arguments="".join(pieces)),
            *self._done(made),
        ]

    def done(
        self, status: str, details: Mapping[str, Any] | None = None, usage: Mapping[str, Any] | None = None
    ) -> Event:
        """The event that ends the response."""
        return event("response.done", response=self._shown(status, details, usage))

    def of_part(self, kind: str, **fields: Any) -> Event:
        """An event about the content of the response's message."""
        place = {"response_id": self.id, "item_id": self.item, "output_index": 0, "content_index": 0}
        return event(kind, **place, **fields)

    def _added(self, made: dict[str, Any]) -> Event:
        place = {"response_id": self.id, "output_index": len(self._made)}
        return event("response.output_item.added", **place, item=made)

    def _listed(self, made: dict[str, Any]) -> list[Event]:
        self._previous = self._items.last
        return [] if self._conversation is None else [self._items.added(made)]

    def _done(self, made: dict[str, Any]) -> list[Event]:
        place = {"response_id": self.id, "output_index": len(self._made)}
        self._made.append(made)
        listed = [] if self._conversation is None else [self._items.done(made, self._previous)]
        return [*listed, event("response.output_item.done", **place, item=made)]

    @property
    def _stem(self) -> str:
        return "response.output_audio_transcript" if self.output.has_audio else "response.output_text"

    def _part(self, text: str) -> dict[str, Any]:
        return (
            {"type": "audio", "transcript": text} if self.output.has_audio else {"type": "text", "text": text}
        )

    def _shown(
        self, status: str, details: Mapping[str, Any] | None, usage: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None if details is None else dict(details),
            "output": list(self._made),
            "conversation_id": self._conversation,
            "output_modalities": list(self.output.modalities),
            "audio": {"output": self.output.shown()},
            "max_output_tokens": "inf",
            "usage": None if usage is None else dict(usage),
            "metadata": None if self._metadata is None else dict(self._metadata),
        }
