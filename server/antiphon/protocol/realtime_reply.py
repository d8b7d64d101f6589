"""The speech of a full-duplex model as responses of OpenAI Realtime.

The model listens and speaks all the time; a response is what it voices between two silences. It begins with
the first frame that is voiced, or where a client requests one, and ends when the model has been silent for
``silence_ms``; silence within it is passed on, silence after it is not. There is one response at a time, and
every event of one comes in the API's order: that is the whole purpose of this machine.

Pure: a frame of the model, a request of the client or the caller's voice goes in, events come out. Time is
the model's frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from antiphon.errors import FieldError
from antiphon.protocol.realtime_events import Event, Ids, event
from antiphon.protocol.realtime_items import Items, message
from antiphon.protocol.realtime_session import OutputFormat

COMPLETED, CANCELLED, INCOMPLETE, FAILED = "completed", "cancelled", "incomplete", "failed"
TURN_DETECTED, CLIENT_CANCELLED, TOO_LONG = "turn_detected", "client_cancelled", "max_output_tokens"

UNANSWERABLE, SILENT = "unsupported_value", "no_output"

WAIT_MS: Final = 5000
"""A requested response in which the model says nothing for this time has failed."""

MAX_SAID_MS: Final = 600_000
"""A response is no longer: its text is kept until it ends, and a model may talk all day."""

YIELD_MS: Final = 1500
"""A model that falls silent within this time of the caller's voice was interrupted by it."""


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """``silence_ms`` ends a response. ``is_hard``: the caller's voice cuts it, whatever the model does."""

    silence_ms: int = 600
    is_hard: bool = False


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What a ``response.create`` requests; ``output`` None is the session's.

    ``refusal`` is why the model cannot answer, "" where it may.
    """

    metadata: Mapping[str, str] | None = None
    output: OutputFormat | None = None
    refusal: str = ""


@dataclass(slots=True)
class _Response:
    """The response under way; ``item`` is None until the model has said something."""

    id: str
    output: OutputFormat
    metadata: Mapping[str, str] | None
    item: str | None = None
    previous: str | None = None
    transcript: list[str] = field(default_factory=list)
    waited_ms: int = 0
    said_ms: int = 0
    quiet_ms: int = 0
    held: list[bytes] = field(default_factory=list)  # silence that may be the end
    yield_by_ms: int | None = None


class Responses:
    """The responses of one conversation."""

    def __init__(
        self, ids: Ids, items: Items, output: OutputFormat, *, frame_ms: int, rules: ReplyRules | None = None
    ) -> None:
        """Begin without one. ``output`` is how responses are given, unless one is requested otherwise."""
        self.output = output
        self.conversation = ids.new("conv")
        self._ids, self._items = ids, items
        self._frame_ms = frame_ms
        self._rules = rules or ReplyRules()
        self._now_ms = 0
        self._response: _Response | None = None
        self._is_cut = False  # what the model says is not heard until it has been silent

    @property
    def is_active(self) -> bool:
        """Whether there is a response in progress."""
        return self._response is not None

    @property
    def has_spoken(self) -> bool:
        """Whether the response in progress has an item."""
        return self._response is not None and self._response.item is not None

    def frame(self, audio: bytes, *, is_speaking: bool, text: str) -> list[Event]:
        """The model's next frame: its sound, as the client is to hear it, and its text."""
        self._now_ms += self._frame_ms
        if self._is_cut:
            self._is_cut = is_speaking
            is_speaking = False
        if is_speaking:
            return self._say(audio, text)
        response = self._response
        if response is None:
            return []
        return self._wait(response) if response.item is None else self._hold(response, audio)

    def create(self, request: ResponseRequest) -> list[Event]:
        """A client requests a response: the one in progress is complete, what follows is the new one's.

        A request that the model cannot answer fails at once.
        """
        opened = [*self.finish(), *self._open(request)]
        return [*opened, *self._fail(UNANSWERABLE, request.refusal)] if request.refusal else opened

    def cancel(self, response_id: str | None, event_id: str | None) -> list[Event]:
        """A client wants no more of the response in progress.

        Raises:
            FieldError: no response is in progress, or another one.
        """
        if self._response is None or response_id not in (None, self._response.id):
            raise FieldError(
                "Cancellation failed: no active response found",
                param="response_id",
                code="response_cancel_not_active",
                event_id=event_id,
            )
        self._is_cut = self.has_spoken
        return self.finish(CANCELLED, CLIENT_CANCELLED)

    def interrupted(self) -> list[Event]:
        """The caller speaks, and wants to interrupt."""
        response = self._response
        if response is None or response.item is None or response.quiet_ms:
            return []
        if self._rules.is_hard:
            self._is_cut = True
            return self.finish(CANCELLED, TURN_DETECTED)
        response.yield_by_ms = self._now_ms + YIELD_MS
        return []

    def finish(self, status: str = COMPLETED, reason: str | None = None, **details: Any) -> list[Event]:
        """End the response in progress, if there is one; ``details`` are added to the reason."""
        response, self._response = self._response, None
        if response is None:
            return []
        events: list[Event] = []
        output: list[dict[str, Any]] = []
        if response.item is not None:
            item = self._item_of(response, "completed" if status == COMPLETED else "incomplete")
            events += self._closing(response, item)
            output.append(item)
        details_shown = None if status == COMPLETED else {"type": status, "reason": reason, **details}
        shown = self._shown(response, status, details_shown, output)
        return [*events, event("response.done", response=shown)]

    def _fail(self, code: str, message: str) -> list[Event]:
        error = {"type": "invalid_request_error", "code": code, "message": message}
        return self.finish(FAILED, error=error)

    def _say(self, audio: bytes, text: str) -> list[Event]:
        events: list[Event] = []
        if self._response is None:
            events += self._open(ResponseRequest())
        response = self._response
        assert response is not None
        if response.item is None:
            events += self._begin_item(response)
        text = text if response.transcript else text.lstrip()
        if text:
            response.transcript.append(text)
            events.append(self._of_part(response, f"{_stem(response)}.delta", delta=text))
        if response.output.has_audio:
            sound = b"".join((*response.held, audio))
            if sound:
                events.append(self._of_part(response, "response.output_audio.delta", delta=sound))
        response.held.clear()
        response.quiet_ms = 0
        response.said_ms += self._frame_ms
        return events if response.said_ms < MAX_SAID_MS else [*events, *self.finish(INCOMPLETE, TOO_LONG)]

    def _hold(self, response: _Response, audio: bytes) -> list[Event]:
        response.held.append(audio)
        response.quiet_ms += self._frame_ms
        if response.yield_by_ms is not None:
            if self._now_ms <= response.yield_by_ms:
                return self.finish(CANCELLED, TURN_DETECTED)
            response.yield_by_ms = None
        return self.finish() if response.quiet_ms >= self._rules.silence_ms else []

    def _wait(self, response: _Response) -> list[Event]:
        response.waited_ms += self._frame_ms
        if response.waited_ms < WAIT_MS:
            return []
        return self._fail(SILENT, f"the model has said nothing for {WAIT_MS / 1000:g} s")

    def _open(self, request: ResponseRequest) -> list[Event]:
        response = _Response(self._ids.new("resp"), request.output or self.output, request.metadata)
        self._response = response
        return [event("response.created", response=self._shown(response, "in_progress", None, []))]

    def _begin_item(self, response: _Response) -> list[Event]:
        response.item, response.previous = self._ids.new("item"), self._items.last
        item = message(response.item, "assistant", "in_progress", [])
        place = {"response_id": response.id, "output_index": 0}
        return [
            event("response.output_item.added", **place, item=item),
            self._items.added(item),
            self._of_part(response, "response.content_part.added", part=_part(response, "")),
        ]

    def _closing(self, response: _Response, item: dict[str, Any]) -> list[Event]:
        text = "".join(response.transcript)
        name = "transcript" if response.output.has_audio else "text"
        sound = [self._of_part(response, "response.output_audio.done")] if response.output.has_audio else []
        return [
            *sound,
            self._of_part(response, f"{_stem(response)}.done", **{name: text}),
            self._of_part(response, "response.content_part.done", part=_part(response, text)),
            self._items.done(item, response.previous),
            event("response.output_item.done", response_id=response.id, output_index=0, item=item),
        ]

    def _item_of(self, response: _Response, status: str) -> dict[str, Any]:
        text = "".join(response.transcript)
        if response.output.has_audio:
            content = {"type": "output_audio", "transcript": text}
        else:
            content = {"type": "output_text", "text": text}
        assert response.item is not None
        return message(response.item, "assistant", status, [content])

    def _of_part(self, response: _Response, kind: str, **fields: Any) -> Event:
        place = {"response_id": response.id, "item_id": response.item, "output_index": 0, "content_index": 0}
        return event(kind, **place, **fields)

    def _shown(
        self, response: _Response, status: str, details: dict[str, Any] | None, output: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": response.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": self.conversation,
            "output_modalities": list(response.output.modalities),
            "audio": {"output": response.output.shown()},
            "max_output_tokens": "inf",
            "usage": None,
            "metadata": None if response.metadata is None else dict(response.metadata),
        }


def _stem(response: _Response) -> str:
    return "response.output_audio_transcript" if response.output.has_audio else "response.output_text"


def _part(response: _Response, text: str) -> dict[str, Any]:
    if response.output.has_audio:
        return {"type": "audio", "transcript": text}
    return {"type": "text", "text": text}
