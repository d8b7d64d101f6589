"""Responses of OpenAI Realtime: events follow the API's order under any schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import FieldError
from antiphon.protocol.realtime_events import Event, Ids
from antiphon.protocol.realtime_input import MAX_TURNS, InputTurns
from antiphon.protocol.realtime_items import Items
from antiphon.protocol.realtime_reply import MAX_SAID_MS, ReplyRules, ResponseRequest, Responses
from antiphon.protocol.realtime_session import OutputFormat

pytestmark = pytest.mark.product  # thousands of schedules

FRAME_MS = 80
SCHEDULES = 2000


class Conversation:
    """Replies and turns of one conversation, and all events they made."""

    def __init__(self, *, is_hard: bool = False, silence_ms: int = 600) -> None:
        ids = Ids("s")
        self.items = Items(ids)
        rules = ReplyRules(silence_ms, is_hard)
        self.replies = Responses(ids, self.items, OutputFormat(), frame_ms=FRAME_MS, rules=rules)
        self.turns = InputTurns(ids, self.items, has_transcript=True)
        self.events: list[Event] = []
        self.now_ms = 0
        self.is_speech = False

    def do(self, events: Sequence[Event]) -> list[str]:
        self.events += events
        return [it.type for it in events]

    def frames(self, count: int, *, is_speaking: bool, text: str = "") -> list[str]:
        kinds: list[str] = []
        for index in range(count):
            self.now_ms += FRAME_MS
            sound = b"\1\0" if is_speaking else b"\0\0"
            said = text if not index else ""
            kinds += self.do(self.replies.frame(sound, is_speaking=is_speaking, text=said))
        return kinds

    def hear(self, *, is_speech: bool) -> list[str]:
        if is_speech == self.is_speech:
            return []
        self.is_speech = is_speech
        if not is_speech:
            return self.do(self.turns.stopped(self.now_ms))
        self.turns.appended()
        return self.do([*self.turns.started(self.now_ms), *self.replies.interrupted()])

    def tried(self, attempt: Callable[[], list[Event]]) -> str | None:
        try:
            self.do(attempt())
        except FieldError as error:
            return error.code
        return None

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [dict(it.fields) for it in self.events if it.type == kind]


BEFORE = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
AFTER = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]
DELTAS = {
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_text.delta",
}


@dataclass
class Order:
    """The grammar of a conversation's events, as the API documents it."""

    response: str | None = None
    step: str = "none"
    transcript: str = ""

    def check(self, event: Event) -> None:
        kind, fields = event.type, event.fields
        match kind:
            case "response.created":
                assert self.response is None, "one response at a time"
                assert fields["response"]["status"] == "in_progress"
                assert fields["response"]["output"] == []
                self.response, self.step, self.transcript = fields["response"]["id"], "created", ""
            case "response.output_item.added":
                self._go("created", "item", fields["response_id"])
            case "conversation.item.added" if fields["item"]["role"] == "assistant":
                self._go("item", "listed", self.response)
                assert fields["item"]["status"] == "in_progress"
            case "response.content_part.added":
                self._go("listed", "open", fields["response_id"])
            case _ if kind in DELTAS:
                self._go("open", "open", fields["response_id"])
                if kind != "response.output_audio.delta":
                    self.transcript += fields["delta"]
            case "response.output_audio.done":
                self._go("open", "silent", fields["response_id"])
            case "response.output_audio_transcript.done":
                self._go("silent", "written", fields["response_id"])
                assert fields["transcript"] == self.transcript
            case "response.output_text.done":
                self._go("open", "written", fields["response_id"])
                assert fields["text"] == self.transcript
            case "response.content_part.done":
                self._go("written", "part", fields["response_id"])
            case "conversation.item.done" if fields["item"]["role"] == "assistant":
                self._go("part", "listed done", self.response)
            case "response.output_item.done":
                self._go("listed done", "item done", fields["response_id"])
            case "response.done":
                response = fields["response"]
                assert response["id"] == self.response
                assert self.step in ("created", "item done")
                assert len(response["output"]) == (self.step == "item done")
                assert response["status"] in ("completed", "cancelled", "failed")
                assert (response["status_details"] is None) == (response["status"] == "completed")
                self.response, self.step = None, "none"

    def _go(self, before: str, after: str, response: str | None) -> None:
        assert (self.step, self.response) == (before, response)
        self.step = after


STEPS = st.one_of(
    st.tuples(st.just("voice"), st.integers(1, 12)),
    st.tuples(st.just("silence"), st.integers(1, 12)),
    st.tuples(st.just("long silence"), st.just(70)),
    st.tuples(st.just("speech"), st.booleans()),
    st.tuples(st.just("cancel"), st.booleans()),
    st.tuples(st.sampled_from(["create", "unread"]), st.booleans()),
    st.tuples(st.just("commit"), st.booleans()),
    st.tuples(st.just("item"), st.sampled_from(["", "mine", "yours"])),
    st.tuples(st.just("word"), st.just(0)),
)


@settings(max_examples=SCHEDULES)
@given(st.lists(STEPS, max_size=30), st.booleans())
def test_the_order_of_events_holds_on_every_schedule(steps: list[tuple[str, Any]], is_hard: bool) -> None:
    it, order = Conversation(is_hard=is_hard), Order()
    for step, value in steps:
        match step:
            case "voice":
                it.frames(value, is_speaking=True, text=" word")
            case "silence" | "long silence":
                it.frames(value, is_speaking=False)
            case "speech":
                it.hear(is_speech=value)
            case "cancel":
                is_active = it.replies.is_active
                refused = it.tried(lambda: it.replies.cancel(None, "e"))
                assert refused == (None if is_active else "response_cancel_not_active")
            case "create" | "unread":
                wish = ResponseRequest({"a": "b"}, OutputFormat(("text",)) if value else None)
                wish = replace(wish, refusal="it reads no text" if step == "unread" else "")
                assert it.tried(partial(it.replies.create, wish)) is None
            case "commit":
                it.tried(lambda: it.turns.commit(it.now_ms, None))
            case "item":
                item = {"id": value, "type": "message", "role": "user", "content": []}
                it.tried(partial(it.items.create, item, None, None))
            case "word":
                it.do([*it.turns.word("w"), *it.turns.transcribed()])
    it.frames(70, is_speaking=False)
    for event in it.events:
        order.check(event)
    assert not it.replies.is_active  # nothing goes on for ever
    check_turns(it.events)
    check_items(it.events)


def check_turns(events: Sequence[Event]) -> None:
    """Each turn is stopped after it started, committed once, and added and done at once."""
    started: set[str] = set()
    committed: set[str] = set()
    for place, event in enumerate(events):
        kinds = [it.type for it in events[place : place + 3]]
        if event.type == "input_audio_buffer.speech_started":
            assert event.fields["item_id"] not in committed
            started.add(event.fields["item_id"])
        elif event.type == "input_audio_buffer.speech_stopped":
            assert event.fields["item_id"] in started
            assert events[place + 1].type == "input_audio_buffer.committed"
        elif event.type == "input_audio_buffer.committed":
            assert event.fields["item_id"] not in committed
            committed.add(event.fields["item_id"])
            assert kinds[1:] == ["conversation.item.added", "conversation.item.done"]
        elif event.type == "conversation.item.input_audio_transcription.completed":
            assert event.fields["item_id"] in committed
            assert event.fields["usage"]["seconds"] >= 0


def check_items(events: Sequence[Event]) -> None:
    """Items are added once, each after the one before, and done after they were added."""
    last: str | None = None
    added: list[str] = []
    for event in events:
        if event.type == "conversation.item.added":
            assert event.fields["previous_item_id"] == last
            last = event.fields["item"]["id"]
            assert last not in added
            added.append(last)
        elif event.type == "conversation.item.done":
            assert event.fields["item"]["id"] in added


def test_a_spoken_reply() -> None:
    it = Conversation()
    assert it.frames(3, is_speaking=False) == []
    kinds = it.frames(1, is_speaking=True, text=" hello")
    audio = "response.output_audio.delta"
    assert kinds == [*BEFORE, "response.output_audio_transcript.delta", audio]
    assert it.frames(3, is_speaking=True) == [audio] * 3
    assert it.frames(7, is_speaking=False) == []  # 560 ms
    assert it.frames(1, is_speaking=False) == AFTER
    (done,) = it.of("response.done")
    assert done["response"]["status"] == "completed"
    assert done["response"]["usage"] is None
    assert done["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": "hello"}]


def test_a_transcript_begins_with_its_first_letter() -> None:
    it = Conversation()
    for text in (" ", " hello", " there"):
        it.frames(1, is_speaking=True, text=text)
    it.do(it.replies.finish())
    deltas = [each["delta"] for each in it.of("response.output_audio_transcript.delta")]
    assert deltas == ["hello", " there"]
    (written,) = it.of("response.output_audio_transcript.done")
    assert written["transcript"] == "hello there"


def test_a_pause_within_a_reply_is_passed_on_when_it_is_over() -> None:
    it = Conversation()
    it.frames(1, is_speaking=True)
    assert it.frames(5, is_speaking=False) == []
    assert it.frames(1, is_speaking=True) == ["response.output_audio.delta"]
    assert it.of("response.output_audio.delta")[-1]["delta"] == 5 * b"\0\0" + b"\1\0"


def test_a_response_that_is_asked_for_is_the_next_voice() -> None:
    it = Conversation()
    assert it.do(it.replies.create(ResponseRequest({"client_event_id": "x"}))) == ["response.created"]
    assert it.frames(20, is_speaking=False) == []
    assert it.frames(1, is_speaking=True)[0] == "response.output_item.added"
    it.frames(8, is_speaking=False)
    (done,) = it.of("response.done")
    assert done["response"]["metadata"] == {"client_event_id": "x"}


def test_a_response_in_which_the_model_says_nothing_has_failed() -> None:
    it = Conversation()
    it.do(it.replies.create(ResponseRequest()))
    assert it.frames(62, is_speaking=False) == []
    assert it.frames(1, is_speaking=False) == ["response.done"]  # 5.04 s
    (done,) = it.of("response.done")
    assert (done["response"]["status"], done["response"]["output"]) == ("failed", [])
    message = "the model has not spoken for 5 s"
    assert error_of(done) == {"type": "invalid_request_error", "code": "no_output", "message": message}


def test_a_response_that_the_model_cannot_give_has_failed_at_once() -> None:
    it = Conversation()
    wish = ResponseRequest({"a": "b"}, refusal="it reads no text")
    assert it.do(it.replies.create(wish)) == ["response.created", "response.done"]
    (done,) = it.of("response.done")
    assert (done["response"]["status"], done["response"]["metadata"]) == ("failed", {"a": "b"})
    error = {"type": "invalid_request_error", "code": "unsupported_value", "message": "it reads no text"}
    assert error_of(done) == error
    assert it.frames(1, is_speaking=True)[0] == "response.created"  # what the model says is heard


def error_of(done: dict[str, Any]) -> Any:
    """The error of a ``response.done`` that failed."""
    details = done["response"]["status_details"]
    assert details["type"] == "failed"
    return details["error"]


def test_a_response_asked_for_during_another_takes_over() -> None:
    it = Conversation()
    it.frames(2, is_speaking=True)
    assert it.do(it.replies.create(ResponseRequest())) == [*AFTER, "response.created"]
    assert it.frames(1, is_speaking=True)[:2] == BEFORE[1:3]


@pytest.mark.parametrize(
    ("frames", "status"), [(5, "cancelled"), (17, "cancelled"), (18, "completed"), (40, "completed")]
)
def test_a_model_that_falls_silent_soon_was_interrupted(frames: int, status: str) -> None:
    it = Conversation()
    it.frames(2, is_speaking=True)
    assert it.hear(is_speech=True) == ["input_audio_buffer.speech_started"]  # nothing is cut
    it.frames(frames, is_speaking=True)
    it.frames(8, is_speaking=False)
    (done,) = it.of("response.done")
    assert done["response"]["status"] == status
    if status == "cancelled":
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}


def test_a_reply_that_was_over_is_not_interrupted() -> None:
    it = Conversation()
    it.frames(2, is_speaking=True)
    it.frames(3, is_speaking=False)
    it.hear(is_speech=True)
    it.frames(8, is_speaking=False)
    (done,) = it.of("response.done")
    assert done["response"]["status"] == "completed"


def test_a_hard_interruption_cuts_at_once() -> None:
    it = Conversation(is_hard=True)
    it.frames(2, is_speaking=True)
    assert it.hear(is_speech=True) == ["input_audio_buffer.speech_started", *AFTER]
    assert it.frames(10, is_speaking=True) == []  # until the model has been silent
    assert it.frames(1, is_speaking=False) == []
    assert it.frames(1, is_speaking=True)[0] == "response.created"


def test_a_response_is_bounded_however_long_the_model_talks() -> None:
    it = Conversation()
    it.frames(MAX_SAID_MS // FRAME_MS, is_speaking=True, text=" on and on")
    (done,) = it.of("response.done")
    assert done["response"]["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert it.frames(1, is_speaking=True)[0] == "response.created"


def test_a_cancelled_reply_is_not_heard_to_its_end() -> None:
    it = Conversation()
    it.frames(2, is_speaking=True)
    assert it.do(it.replies.cancel(None, None)) == AFTER
    assert it.frames(10, is_speaking=True) == []
    it.frames(1, is_speaking=False)
    assert it.frames(1, is_speaking=True)[0] == "response.created"
    details = it.of("response.done")[0]["response"]["status_details"]
    assert details == {"type": "cancelled", "reason": "client_cancelled"}
    assert it.of("response.done")[0]["response"]["output"][0]["status"] == "incomplete"


def test_cancelling_nothing_is_refused_in_words_that_clients_know() -> None:
    it = Conversation()
    with pytest.raises(FieldError, match="Cancellation failed: no active response found"):
        it.replies.cancel(None, "e1")
    it.frames(1, is_speaking=True)
    with pytest.raises(FieldError):
        it.replies.cancel("resp_other", None)


def test_a_reply_in_text_has_no_sound() -> None:
    it = Conversation()
    it.do(it.replies.create(ResponseRequest(output=OutputFormat(("text",)))))
    it.frames(1, is_speaking=True, text=" hi")
    it.frames(8, is_speaking=False)
    kinds = [event.type for event in it.events]
    assert "response.output_text.delta" in kinds
    assert not [kind for kind in kinds if "audio" in kind]
    assert it.of("response.done")[0]["response"]["output"][0]["content"] == [
        {"type": "output_text", "text": "hi"}
    ]


def test_turns_without_audio_cannot_be_committed() -> None:
    it = Conversation()
    with pytest.raises(FieldError, match="no audio came since the last commit") as caught:
        it.turns.commit(0, "e")
    assert (caught.value.code, caught.value.event_id) == ("input_audio_buffer_commit_empty", "e")


def test_turns_that_wait_for_their_transcript_are_bounded() -> None:
    ids = Ids("a")
    turns = InputTurns(ids, Items(ids), has_transcript=True)
    for number in range(MAX_TURNS + 1):
        turns.appended()
        if number == MAX_TURNS:
            with pytest.raises(FieldError, match=f"{MAX_TURNS} turns wait for their transcript"):
                turns.commit(number, None)
        else:
            assert turns.commit(number, None)


def test_words_belong_to_the_oldest_turn_that_is_not_complete() -> None:
    it = Conversation()
    it.now_ms = 1000
    it.hear(is_speech=True)
    it.now_ms = 2500
    it.hear(is_speech=False)
    it.hear(is_speech=True)
    it.do([*it.turns.word("one"), *it.turns.word("two"), *it.turns.transcribed(), *it.turns.word("three")])
    first, second = (fields["item_id"] for fields in it.of("input_audio_buffer.speech_started"))
    words = it.of("conversation.item.input_audio_transcription.delta")
    assert [(word["item_id"], word["delta"]) for word in words] == [
        (first, "one"),
        (first, " two"),
        (second, "three"),
    ]
    (completed,) = it.of("conversation.item.input_audio_transcription.completed")
    assert completed["transcript"] == "one two"
    (retrieved,) = it.items.retrieve(first, None)
    assert retrieved.fields["item"]["content"] == [{"type": "input_audio", "transcript": "one two"}]
    assert completed["usage"] == {"type": "duration", "seconds": 1.5}


def test_items_are_bounded() -> None:
    items = Items(Ids("s"))
    for index in range(2000):
        items.create({"id": f"i{index}", "type": "message"}, None, None)
    assert "i999" not in items
    assert "i1999" in items
    items.create({"id": "long", "type": "message", "text": "x" * 200_000}, None, None)
    items.create({"id": "longer", "type": "message", "text": "x" * 200_000}, None, None)
    assert "long" not in items


def test_items_are_found_and_forgotten() -> None:
    items = Items(Ids("s"))
    items.create({"id": "a", "type": "message"}, None, None)
    assert items.retrieve("a", None)[0].fields["item"]["status"] == "completed"
    assert items.delete("a", None)[0].fields == {"item_id": "a"}
    for what in ("retrieve", "delete"):
        with pytest.raises(FieldError, match="item_id is 'a', and there is no such item") as caught:
            getattr(items, what)("a", "e")
        assert caught.value.code == f"item_{what}_invalid_item_id"
    items.create({"id": "b", "type": "message"}, None, None)
    with pytest.raises(FieldError) as caught:
        items.create({"id": "b", "type": "message"}, None, None)
    assert caught.value.code == "item_create_duplicate_item_id"
