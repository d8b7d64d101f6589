"""Every event of OpenAI Realtime and of translations: parsing, refusals, display."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import FieldError, RetiredApiError, ServerFullError
from antiphon.protocol import realtime, realtime_events, translation
from antiphon.protocol.event_text import MAX_EVENT_CHARS, text_of
from antiphon.protocol.fields import Fields
from antiphon.protocol.live_session import Encoding, LiveFormat
from antiphon.protocol.realtime_session import (
    MAX_KEPT_CHARS,
    Detection,
    DetectionType,
    RealtimeSession,
    SessionType,
    change,
)
from antiphon.protocol.translation import TranslationSession

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TYPES = [*realtime.READERS, *translation.READERS]
NAMES = [
    *("session", "audio", "item", "item_id", "previous_item_id", "content_index", "audio_end_ms"),
    *("response", "response_id", "metadata", "event_id"),
]
SESSION_NAMES = [
    *("type", "model", "instructions", "output_modalities", "audio", "tools", "tool_choice", "include"),
    *("max_output_tokens", "truncation", "prompt", "tracing", "new"),
]
AUDIO = st.dictionaries(
    st.sampled_from(["input", "output"]),
    st.dictionaries(
        st.sampled_from(["format", "turn_detection", "transcription", "noise_reduction", "voice", "speed"]),
        st.one_of(
            JSON,
            st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "rate",
                        "threshold",
                        "silence_duration_ms",
                        "eagerness",
                        "model",
                    ]
                ),
                st.one_of(JSON, st.sampled_from(["server_vad", "semantic_vad", "audio/pcm", "audio/pcmu"])),
            ),
        ),
    ),
)


def decode(**values: Any) -> realtime.ClientEvent:
    return realtime.decode(json.dumps(values))


def changed(session: RealtimeSession | None = None, **values: Any) -> RealtimeSession:
    return change(session or RealtimeSession("tiny"), Fields(values, "session", "e1"))


def refused(**values: Any) -> tuple[str | None, str, str]:
    with pytest.raises(FieldError) as caught:
        changed(**values)
    assert caught.value.event_id == "e1"
    return caught.value.param, caught.value.code, str(caught.value)


@given(
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=dict.fromkeys(NAMES, JSON)),
    st.sampled_from([realtime.decode, translation.decode]),
)
def test_any_event_is_read_or_refused(values: dict[str, Any], read: Any) -> None:
    with contextlib.suppress(FieldError, RetiredApiError):
        read(json.dumps(values))


@given(st.text() | st.binary().map(lambda it: it.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (realtime.decode, translation.decode):
        with pytest.raises(FieldError):
            read(text)


@given(st.dictionaries(st.sampled_from(SESSION_NAMES), JSON), AUDIO, st.sampled_from(list(SessionType)))
def test_any_session_is_read_and_shown_or_refused(values: Any, audio: Any, kind: SessionType) -> None:
    for fields in (values, {**values, "audio": audio}):
        try:
            session = change(RealtimeSession("tiny", kind), Fields(fields, "session"))
        except FieldError:
            continue
        shown = session.shown(session_id="s", expires_at=1)
        json.dumps(shown)
        assert shown["type"] == kind
        # What is shown can be asked for again, and changes nothing.
        again = change(session, Fields(shown, "session"))
        assert again.shown(session_id="s", expires_at=1) == shown


@given(AUDIO)
def test_any_translation_is_read_and_shown_or_refused(audio: Any) -> None:
    try:
        session = translation.change(TranslationSession("t"), Fields({"audio": audio}, "session"))
    except FieldError:
        return
    json.dumps(session.shown(session_id="s", expires_at=1))


def test_events_of_a_client() -> None:
    audio = base64.b64encode(b"\1\2").decode()
    assert decode(type="input_audio_buffer.append", audio=audio) == realtime.AppendAudio(b"\1\2")
    assert decode(type="input_audio_buffer.commit", event_id="c") == realtime.Commit("c")
    assert decode(type="input_audio_buffer.clear") == realtime.Clear()
    item = {"id": "i", "type": "message", "role": "user", "content": []}
    assert decode(type="conversation.item.create", item=item, previous_item_id="root") == realtime.CreateItem(
        item, "root"
    )
    assert decode(type="conversation.item.retrieve", item_id="i") == realtime.RetrieveItem("i")
    assert decode(type="conversation.item.delete", item_id="i") == realtime.DeleteItem("i")
    truncate = {"item_id": "i", "content_index": 0, "audio_end_ms": 1500}
    assert decode(type="conversation.item.truncate", **truncate) == realtime.TruncateItem("i", 0, 1500)
    assert decode(type="response.create") == realtime.CreateResponse()
    asked = {"metadata": {"a": "b"}, "output_modalities": ["text"], "tools": [], "conversation": "auto"}
    assert decode(type="response.create", response=asked) == realtime.CreateResponse({"a": "b"}, ("text",))
    unread = {"instructions": "x", "input": [{"type": "message"}], "conversation": "none"}
    assert decode(type="response.create", response=unread) == realtime.CreateResponse(
        unread=("response.input", "response.instructions", "response.conversation")
    )
    assert decode(type="response.cancel", response_id="r") == realtime.CancelResponse("r")
    assert decode(type="output_audio_buffer.clear") == realtime.Unsupported("output_audio_buffer.clear")


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({}, "missing_required_parameter", "type is missing"),
        (
            {"type": "session.start"},
            "unknown_event",
            "type is 'session.start', which no client of this API sends",
        ),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio is missing"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "invalid_value", "audio is empty"),
        ({"type": "session.update"}, "missing_required_parameter", "session is missing"),
        (
            {"type": "conversation.item.create", "item": {}},
            "missing_required_parameter",
            "item.type is missing",
        ),
        (
            {"type": "response.create", "response": {"output_modalities": ["text", "audio"]}},
            "invalid_value",
            'response.output_modalities is neither ["audio"] nor ["text"]',
        ),
        (
            {"type": "response.create", "response": {"tools": [{}]}},
            "unsupported_value",
            "response.tools is not empty, and no model here calls tools",
        ),
        (
            {"type": "response.create", "response": {"metadata": {"a": 1}}},
            "invalid_type",
            "response.metadata.a is 1, a string is needed",
        ),
        (
            {"type": "response.create", "response": {"metadata": {str(i): "" for i in range(17)}}},
            "invalid_value",
            "response.metadata has 17 keys, the limit is 16",
        ),
    ],
)
def test_events_that_are_refused(values: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(event_id="e", **values)
    assert (caught.value.code, str(caught.value), caught.value.event_id) == (code, words, "e")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"type": "session.update", "session": {"input_audio_format": "pcm16"}},
            "session.input_audio_format is one of its fields",
        ),
        (
            {"type": "transcription_session.update", "session": {}},
            "transcription_session.update is one of its events",
        ),
    ],
)
def test_the_retired_beta_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RetiredApiError, match=f"^{realtime.RETIRED}; {words}$"):
        decode(**values)


def test_messages_that_are_no_events() -> None:
    with pytest.raises(FieldError, match="a binary message of 3 bytes, events are text"):
        text_of(b"abc")
    with pytest.raises(FieldError, match=f"an event of {MAX_EVENT_CHARS + 1} characters, the limit is"):
        realtime.decode(" " * (MAX_EVENT_CHARS + 1))


def test_a_change_names_only_what_changes() -> None:
    detection = {
        "type": "server_vad",
        "threshold": 0.8,
        "silence_duration_ms": 200,
        "interrupt_response": False,
    }
    heard = {"format": {"type": "audio/pcmu"}, "turn_detection": detection, "transcription": {"model": "m"}}
    said = {"format": {"type": "audio/pcma"}, "voice": {"id": "v"}, "speed": 1.2}
    first = changed(
        instructions="Be kind.", output_modalities=["text"], audio={"input": heard, "output": said}
    )
    assert first.input_format == LiveFormat(Encoding.PCMU, 8000)
    assert first.output.format == LiveFormat(Encoding.PCMA, 8000)
    assert (first.output.voice, first.output.has_audio, first.transcription_model) == ("v", False, "m")
    assert first.detection == Detection(
        DetectionType.SERVER_VAD, threshold=0.8, silence_ms=200, interrupt_response=False
    )
    assert first.detection.level_dbfs == pytest.approx(-36.0)
    second = changed(
        first, audio={"input": {"turn_detection": None, "transcription": None}}, tracing={"a": 1}, tools=[]
    )
    assert (second.detection, second.transcription) == (None, None)
    assert (second.instructions, second.input_format, second.output) == (
        first.instructions,
        first.input_format,
        first.output,
    )
    shown = second.shown(session_id="s", expires_at=5)
    assert shown["audio"]["output"]["speed"] == 1.2
    assert (shown["tools"], shown["tool_choice"], shown["tracing"]) == ([], "auto", {"a": 1})
    assert changed(second, tools=[], instructions="").instructions == ""


def test_a_transcription_session_is_shown_as_one() -> None:
    shown = RealtimeSession("stt", SessionType.TRANSCRIPTION).shown(session_id="s", expires_at=5)
    assert shown["object"] == "realtime.transcription_session"
    assert set(shown) == {"id", "type", "expires_at", "object", "audio", "include"}
    assert shown["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500


@pytest.mark.parametrize(
    ("eagerness", "silence_ms"), [("low", 1000), ("medium", 600), (None, 600), ("high", 300)]
)
def test_semantic_detection_is_a_length_of_silence(eagerness: str | None, silence_ms: int) -> None:
    found = changed(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": eagerness}}})
    assert found.detection is not None
    assert found.detection.silence_ms == silence_ms
    assert found.detection.shown()["eagerness"] == (eagerness or "auto")


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        (
            {"type": "transcription"},
            (
                "session.type",
                "invalid_value",
                "session.type is 'transcription', and this is a realtime session",
            ),
        ),
        (
            {"type": "x"},
            ("session.type", "invalid_value", "session.type is 'x', not one of realtime, transcription"),
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            (
                "session.audio.input.turn_detection.threshold",
                "invalid_value",
                "session.audio.input.turn_detection.threshold is 2, 0 to 1 are allowed",
            ),
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": True}}}},
            (
                "session.audio.input.turn_detection.threshold",
                "invalid_type",
                "session.audio.input.turn_detection.threshold is true or false, a number is needed",
            ),
        ),
        (
            {"tools": [{"type": "function", "name": "f"}]},
            (
                "session.tools",
                "unsupported_value",
                "session.tools is not empty, and no model here calls tools",
            ),
        ),
        (
            {"tool_choice": "required"},
            (
                "session.tool_choice",
                "unsupported_value",
                "session.tool_choice is 'required', and no model here calls tools: auto and none may be",
            ),
        ),
        (
            {"prompt": {"id": "x" * MAX_KEPT_CHARS}},
            (
                "session",
                "invalid_value",
                f"session has {MAX_KEPT_CHARS + 30} characters in fields without effect, "
                f"the limit is {MAX_KEPT_CHARS}",
            ),
        ),
    ],
)
def test_sessions_that_are_refused(values: dict[str, Any], refusal: tuple[str, str, str]) -> None:
    assert refused(**values) == refusal


def test_errors_repeat_the_id_of_what_they_are_about() -> None:
    reason = FieldError("no", param="type", code="unknown_event", event_id="e1")
    assert json.loads(realtime_events.encode(realtime_events.error_event(reason), "event_1")) == {
        "type": "error",
        "event_id": "event_1",
        "error": {
            "type": "invalid_request_error",
            "code": "unknown_event",
            "message": "no",
            "param": "type",
            "event_id": "e1",
        },
    }
    full = realtime_events.error_event(ServerFullError("full", retry_after_s=1)).fields["error"]
    assert (full["type"], full["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_sound_goes_as_base64() -> None:
    event = realtime_events.event("response.output_audio.delta", delta=b"\1\2\3")
    assert json.loads(realtime_events.encode(event, "e"))["delta"] == "AQID"
