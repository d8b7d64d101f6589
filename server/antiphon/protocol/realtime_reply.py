"""Divides the speech of a full-duplex model into responses of OpenAI Realtime.

The model listens and speaks all the time; a response is its speech between two silences. It begins with the
first voiced frame, or on a client's request, and ends when the model has been silent for ``silence_ms``;
silence within a response is sent to the client, silence after it is not. There is one response at a time,
with its events in the API's order.

No I/O: the inputs are the model's frames, the client's requests and the caller's voice; the outputs are
events. Time is counted in frames of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from antiphon.errors import FieldError
from antiphon.protocol.realtime_events import Event, Ids
from antiphon.protocol.realtime_items import Items
from antiphon.protocol.realtime_response import (
    CANCELLED,
    CLIENT_CANCELLED,
    COMPLETED,
    FAILED,
    INCOMPLETE,
    TOO_LONG,
    TURN_DETECTED,
    Response,
)
from antiphon.protocol.realtime_session import OutputFormat

UNANSWERABLE, SILENT = "unsupported_value", "no_output"

WAIT_MS: Final = 5000
"""Milliseconds of silence after which a requested response has failed."""

MAX_SAID_MS: Final = 600_000
"""Longest response in ms. Its length is limited because its text is stored until it ends."""

YIELD_MS: Final = 1500
"""Longest time in ms from the caller's voice to the model's silence that counts as an interruption."""


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """The rules for responses. ``silence_ms`` of silence end a response. With ``is_hard`` the caller's voice
    interrupts the response at once.
    """

    silence_ms: int = 600
    is_hard: bool = False


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """The parsed ``response.create``. If ``output`` is None, the session's output applies.

    ``refusal`` is the reason why the model cannot answer, "" if it can.
    """

    metadata: Mapping[str, str] | None = None
    output: OutputFormat | None = None
    refusal: str = ""


@dataclass(slots=True)
class _Progress:
    """The state of the current response."""

    waited_ms: int = 0
    said_ms: int = 0
    quiet_ms: int = 0
    held: list[bytes] = field(default_factory=list)  # silence, possibly the end
    yield_by_ms: int | None = None


class Responses:
    """The responses of one conversation."""

    def __init__(
        self, ids: Ids, items: Items, output: OutputFormat, *, frame_ms: int, rules: ReplyRules | None = None
    ) -> None:
        """Start without a response.

        ``output`` is the format of responses, unless a request names another.
        """
        self.output = output
        self.conversation = ids.new("conv")
        self._ids, self._items = ids, items
        self._frame_ms = frame_ms
        self._rules = rules or ReplyRules()
        self._now_ms = 0
        self._response: Response | None = None
        self._progress = _Progress()
        self._is_cut = False  # the model's speech is discarded until its next silence

    @property
    def is_active(self) -> bool:
        """Whether a response is in progress."""
        return self._response is not None

    @property
    def has_spoken(self) -> bool:
        """Whether the response in progress has an item."""
        return self._response is not None and self._response.item is not None

    def frame(self, audio: bytes, *, is_speaking: bool, text: str) -> list[Event]:
        """Add the model's next frame: its sound, as it is sent to the client, and its text."""
        self._now_ms += self._frame_ms
        if self._is_cut:
            self._is_cut = is_speaking
            is_speaking = False
        if is_speaking:
            return self._say(audio, text)
        response = self._response
        if response is None:
            return []
        return self._wait() if response.item is None else self._hold(audio)

    def create(self, request: ResponseRequest) -> list[Event]:
        """Start a response at the client's request; a response in progress is completed first.

        A request that the model cannot answer fails at once.
        """
        opened = [*self.finish(), *self._open(request)]
        return [*opened, *self._fail(UNANSWERABLE, request.refusal)] if request.refusal else opened

    def cancel(self, response_id: str | None, event_id: str | None) -> list[Event]:
        """Cancel the response in progress, at the client's request.

        Raises:
            FieldError: no response is in progress, or it has another id.
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
        """The caller's voice interrupts the response: at once with ``is_hard``, otherwise if the model is
        silent within ``YIELD_MS``.
        """
        response = self._response
        if response is None or response.item is None or self._progress.quiet_ms:
            return []
        if self._rules.is_hard:
            self._is_cut = True
            return self.finish(CANCELLED, TURN_DETECTED)
        self._progress.yield_by_ms = self._now_ms + YIELD_MS
        return []

    def finish(self, status: str = COMPLETED, reason: str | None = None, **details: Any) -> list[Event]:
        """End the response in progress, if there is one; ``details`` are added to the reason in its
        status.
        """
        response, self._response = self._response, None
        if response is None:
            return []
        details_shown = None if status == COMPLETED else {"type": status, "reason": reason, **details}
        return [*response.end_message(is_whole=status == COMPLETED), response.done(status, details_shown)]

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
            events += response.begin_message()
        progress = self._progress
        text = text if response.has_text else text.lstrip()
        if text:
            events.append(response.text(text))
        if response.output.has_audio:
            sound = b"".join((*progress.held, audio))
            if sound:
                events.append(response.audio(sound))
        progress.held.clear()
        progress.quiet_ms = 0
        progress.said_ms += self._frame_ms
        return events if progress.said_ms < MAX_SAID_MS else [*events, *self.finish(INCOMPLETE, TOO_LONG)]

    def _hold(self, audio: bytes) -> list[Event]:
        progress = self._progress
        progress.held.append(audio)
        progress.quiet_ms += self._frame_ms
        if progress.yield_by_ms is not None:
            if self._now_ms <= progress.yield_by_ms:
                return self.finish(CANCELLED, TURN_DETECTED)
            progress.yield_by_ms = None
        return self.finish() if progress.quiet_ms >= self._rules.silence_ms else []

    def _wait(self) -> list[Event]:
        self._progress.waited_ms += self._frame_ms
        if self._progress.waited_ms < WAIT_MS:
            return []
        return self._fail(SILENT, f"the model has not spoken for {WAIT_MS / 1000:g} s")

    def _open(self, request: ResponseRequest) -> list[Event]:
        output = request.output or self.output
        response = Response(self._ids, self._items, self.conversation, output, request.metadata)
        self._response, self._progress = response, _Progress()
        return [response.created()]
