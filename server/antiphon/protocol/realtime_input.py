"""The input buffer of OpenAI Realtime: the start and end of speech, and its items.

The module has no I/O, like :mod:`antiphon.protocol.realtime_reply`. A turn ends when the caller is silent,
when the client commits it, or when its text reaches the limit. Its transcript, if any, may arrive later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from antiphon.errors import FieldError
from antiphon.protocol.realtime_events import Event, Ids, event
from antiphon.protocol.realtime_items import Items, user_audio

MAX_TURNS: Final = 256
"""Maximum number of turns without a complete transcript; a client without pauses between commits reaches it.
"""

MAX_TURN_CHARS: Final = 65_536
"""Maximum number of characters of one turn's words, more than an hour of speech."""


@dataclass(slots=True)
class CallerTurn:
    """One turn of the caller. It begins with its first word or its first sound."""

    item: str
    start_ms: int
    end_ms: int | None = None  # once it is committed
    words: list[str] = field(default_factory=list)
    chars: int = 0  # of the words


class InputTurns:
    """The turns of one caller. Times are milliseconds of the caller's audio."""

    def __init__(self, ids: Ids, items: Items, *, has_transcript: bool = False) -> None:
        """Start in silence."""
        self._ids, self._items = ids, items
        self._has_transcript = has_transcript
        self._turns: deque[CallerTurn] = deque()
        self._current: CallerTurn | None = None  # not committed
        self._has_audio = False
        self._failure: dict[str, str] | None = None  # the reason for missing transcripts
        self._committed_ms = 0

    def transcribe(self) -> None:
        """Expect transcripts from now on."""
        if not self._has_transcript and self._current is not None:
            self._turns.append(self._current)
        self._has_transcript, self._failure = True, None

    @property
    def is_full(self) -> bool:
        """Whether the limit of turns is reached."""
        return len(self._turns) >= MAX_TURNS

    def appended(self) -> None:
        """Record that the client has sent audio."""
        self._has_audio = True

    def started(self, start_ms: int, item: str | None = None) -> list[Event]:
        """The caller starts to speak; the turn gets the id ``item``, or the next free id."""
        turn = self._begin(item)
        turn.start_ms = max(start_ms, self._committed_ms)
        return [event("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item)]

    def stopped(self, end_ms: int) -> list[Event]:
        """The caller has stopped speaking. This commits the turn, unless the client has already
        committed it.
        """
        turn = self._current
        if turn is None:
            return []
        stopped = event("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=turn.item)
        return [stopped, *self._commit(turn, end_ms)]

    def commit(self, at_ms: int, event_id: str | None) -> list[Event]:
        """The client commits its turn.

        Raises:
            FieldError: there is no audio since the last turn, or too many turns wait for their transcript.
        """
        if not self._has_audio:
            raise FieldError(
                "the input audio buffer is empty: no audio came since the last commit",
                param=None,
                code="input_audio_buffer_commit_empty",
                event_id=event_id,
            )
        if self.is_full:
            raise FieldError(
                f"{MAX_TURNS} turns wait for their transcript, which is the limit",
                param="type",
                code="rate_limit_exceeded",
                event_id=event_id,
            )
        return self._commit(self._begin(), at_ms)

    def clear(self) -> list[Event]:
        """The client discards its uncommitted audio. The model has already processed it."""
        if self._current is not None:
            self._current.words.clear()
            self._current.chars = 0
        self._has_audio = False
        return [event("input_audio_buffer.cleared")]

    def word(self, text: str) -> list[Event]:
        """Add a word of the recogniser to the oldest turn without a complete transcript."""
        turn = next(iter(self._turns), None) or self._begin()
        shown = f" {text}" if turn.words else text
        turn.words.append(shown)
        turn.chars += len(shown)
        return [self._transcription(turn, "delta", delta=shown)]

    def cut(self, at_ms: int) -> list[Event]:
        """Commit a turn that has reached the limit of its text."""
        turn = self._current
        return [] if turn is None or turn.chars < MAX_TURN_CHARS else self._commit(turn, at_ms)

    def transcribed(self) -> list[Event]:
        """Complete the transcript of the oldest committed turn."""
        if not self._turns or self._turns[0].end_ms is None:
            return []
        turn = self._turns.popleft()
        assert turn.end_ms is not None
        usage = {"type": "duration", "seconds": max(0, turn.end_ms - turn.start_ms) / 1000}
        text = "".join(turn.words)
        self._items.replace(user_audio(turn.item, text))
        return [self._transcription(turn, "completed", transcript=text, usage=usage)]

    def failed(self, message: str) -> list[Event]:
        """End the transcripts of waiting and later turns, for this reason."""
        self._has_transcript = False
        waiting, self._turns = [turn for turn in self._turns if turn.end_ms is not None], deque()
        self._failure = {"type": "server_error", "code": "transcription_failed", "message": message}
        return [self._transcription(turn, "failed", error=self._failure) for turn in waiting]

    def _begin(self, item: str | None = None) -> CallerTurn:
        if self._current is None:
            self._current = CallerTurn(item or self._ids.new("item"), self._committed_ms)
            if self._has_transcript:
                self._turns.append(self._current)
        return self._current

    def _commit(self, turn: CallerTurn, end_ms: int) -> list[Event]:
        turn.end_ms = self._committed_ms = end_ms
        self._current, self._has_audio = None, False
        previous = self._items.last
        item = user_audio(turn.item)
        events = [
            event("input_audio_buffer.committed", previous_item_id=previous, item_id=turn.item),
            self._items.added(item),
            self._items.done(item, previous),
        ]
        if self._failure is not None:
            events.append(self._transcription(turn, "failed", error=self._failure))
        return events

    def _transcription(self, turn: CallerTurn, what: str, **fields: object) -> Event:
        kind = f"conversation.item.input_audio_transcription.{what}"
        return event(kind, item_id=turn.item, content_index=0, **fields)
