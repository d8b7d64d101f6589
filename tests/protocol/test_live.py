"""Every event of OpenAI Live: parsing, refusals and their messages, encoding."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import (
    FieldError,
)
from antiphon.protocol import live
from antiphon.protocol.live_delegation import DELEGATE_TOOL, Delegation, Target, read_delegation
from antiphon.protocol.live_session import Encoding, InputMessage, LiveFormat, SessionChange, SessionConfig
from antiphon.protocol.realtime_tools import WrittenItem
from antiphon.protocol.resume import Claim

START = {"type": "session.start", "session": {"model": "tiny"}}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TYPES = [
    *sorted(live.UNSUPPORTED),
    "session.start",
    "session.resume",
    "session.acknowledge",
    "session.update",
    "session.input_audio.append",
    "session.input_audio.mute",
    "session.input_audio.unmute",
    "session.close",
]
NAMES = ["model", "instructions", "input", "audio", "delegation", "triggers", "store", "client", "new"]
SESSIONS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)


def decode(**values: Any) -> live.ClientEvent:
    return live.decode(json.dumps(values))


def session_of(**values: Any) -> SessionConfig:
    event = decode(type="session.start", session={"model": "tiny", **values})
    assert isinstance(event, live.Start)
    return event.session


def refused(**values: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        decode(**values)
    return caught.value


def refused_session(**values: Any) -> tuple[str | None, str, str]:
    error = refused(type="session.start", event_id="e1", session={"model": "tiny", **values})
    assert error.event_id == "e1"
    return error.param, error.code, str(error)


def test_the_least_that_starts_a_session() -> None:
    assert live.decode(json.dumps(START)) == live.Start(SessionConfig("tiny"))


def test_all_that_a_session_can_be() -> None:
    content = [{"type": "input_text", "text": "Hello "}, {"text": "there"}]
    session = session_of(
        instructions="Be kind.",
        input=[{"type": "message", "role": "user", "content": content, "status": "completed"}],
        audio={"format": {"type": "audio/pcmu", "rate": 8000}, "output": {"voice": {"id": "v1"}}},
        delegation={"type": "client", "acknowledgement_delay_ms": 5},
        triggers=[{"type": "decisions"}],
        store=True,
        safety_identifier="someone",
        of_next_year={"a": 1},
    )
    assert session == SessionConfig(
        "tiny",
        "Be kind.",
        (InputMessage("user", "Hello there"),),
        LiveFormat(Encoding.PCMU, 8000),
        "v1",
        {"type": "client", "acknowledgement_delay_ms": 5},
        ({"type": "decisions"},),
        True,
    )
    assert session.shown(session_id="live_1", expires_at=7) == {
        "id": "live_1",
        "model": "tiny",
        "status": "active",
        "expires_at": 7,
        "audio": {"format": {"type": "audio/pcmu", "rate": 8000}, "output": {"voice": "v1"}},
        "delegation": {"type": "client", "acknowledgement_delay_ms": 5},
        "instructions": "Be kind.",
        "triggers": [{"type": "decisions"}],
    }


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, LiveFormat()),
        ({"type": "audio/pcm"}, LiveFormat(Encoding.PCM, 24_000)),
        ({"type": "audio/pcm", "rate": 16000}, LiveFormat(Encoding.PCM, 16_000)),
        ({"type": "audio/pcmu"}, LiveFormat(Encoding.PCMU, 8_000)),
        ({"type": "audio/pcma", "rate": 8000}, LiveFormat(Encoding.PCMA, 8_000)),
    ],
)
def test_formats(wanted: dict[str, Any] | None, found: LiveFormat) -> None:
    assert session_of(audio={"format": wanted}).format == found


@pytest.mark.parametrize(
    ("session", "param", "code", "words"),
    [
        ({"model": None}, "session.model", "missing_required_parameter", "is missing"),
        ({"model": ""}, "session.model", "invalid_value", "is empty, 1 to 200 characters are needed"),
        ({"model": 7}, "session.model", "invalid_type", "is 7, a string is needed"),
        ({"model": "m" * 201}, "session.model", "invalid_value", "has 201 characters, the limit is 200"),
        ({"store": "yes"}, "session.store", "invalid_type", "is 'yes', true or false is needed"),
        ({"input": {}}, "session.input", "invalid_type", "is an object, a list is needed"),
        ({"input": [{}] * 129}, "session.input", "invalid_value", "has 129 entries, the limit is 128"),
        ({"input": [3]}, "session.input[0]", "invalid_type", "is 3, an object is needed"),
        (
            {"input": [{"role": "tool"}]},
            "session.input[0].role",
            "invalid_value",
            "is 'tool', not one of developer, user, assistant",
        ),
        (
            {"audio": {"format": {"type": "audio/opus"}}},
            "session.audio.format.type",
            "invalid_value",
            "is 'audio/opus', not one of audio/pcm, audio/pcmu, audio/pcma",
        ),
        (
            {"audio": {"format": {"type": "audio/pcm", "rate": 44100}}},
            "session.audio.format.rate",
            "invalid_value",
            "is 44100, not one of 24000, 16000",
        ),
        (
            {"audio": {"format": {"type": "audio/pcm", "rate": True}}},
            "session.audio.format.rate",
            "invalid_type",
            "is true or false, a whole number is needed",
        ),
        (
            {"audio": {"output": {"voice": 3}}},
            "session.audio.output.voice",
            "invalid_type",
            "is 3, a string is needed",
        ),
        (
            {"audio": {"output": {"voice": {}}}},
            "session.audio.output.voice.id",
            "missing_required_parameter",
            "is missing",
        ),
        (
            {"delegation": {"type": "none"}},
            "session.delegation.type",
            "invalid_value",
            "is 'none', not one of client, responses, decisions",
        ),
        ({"client": {}}, "session.client", "invalid_value", "is for WebRTC only, and this is a WebSocket"),
    ],
)
def test_what_a_session_cannot_be(session: dict[str, Any], param: str, code: str, words: str) -> None:
    assert refused_session(**session) == (param, code, f"{param} {words}")


def test_a_value_is_repeated_in_part() -> None:
    _, _, words = refused_session(delegation={"type": "x" * 900})
    assert words.startswith(f"session.delegation.type is '{'x' * 39}..., not one of")


def test_events_without_a_payload() -> None:
    assert decode(type="session.input_audio.mute", event_id="a") == live.Mute("a")
    assert decode(type="session.input_audio.unmute") == live.Unmute()
    assert decode(type="session.close", event_id="z") == live.Close("z")


@pytest.mark.parametrize("kind", sorted(live.UNSUPPORTED))
def test_events_that_no_model_here_can_follow(kind: str) -> None:
    assert decode(type=kind, event_id="e", content=[1]) == live.Unsupported(kind, "e")


@given(st.binary(min_size=1, max_size=500))
def test_audio_is_what_was_sent(audio: bytes) -> None:
    text = base64.b64encode(audio).decode()
    assert decode(type="session.input_audio.append", audio=text) == live.AppendAudio(audio)


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({}, "missing_required_parameter", "audio is missing"),
        ({"audio": ""}, "invalid_value", "audio is empty"),
        ({"audio": [1]}, "invalid_type", "audio is a list, a string is needed"),
        ({"audio": "AAA"}, "invalid_value", "audio is not base64: Incorrect padding"),
        (
            {"audio": "é"},
            "invalid_value",
            "audio is not base64: string argument should contain only ASCII characters",
        ),
    ],
)
def test_audio_that_is_none(values: dict[str, Any], code: str, words: str) -> None:
    error = refused(type="session.input_audio.append", **values)
    assert (error.param, error.code, str(error)) == ("audio", code, words)


def test_a_change_keeps_what_it_does_not_name() -> None:
    assert decode(type="session.update", session={}) == live.Update(SessionChange())
    assert decode(type="session.update", session={"triggers": []}) == live.Update(SessionChange(None, ()))
    delegation = {"type": "responses", "responses": {"tools": []}}
    assert decode(type="session.update", session={"delegation": delegation}) == live.Update(
        SessionChange(delegation)
    )


@pytest.mark.parametrize("name", ["model", "instructions", "input", "audio", "store", "client"])
def test_what_cannot_change(name: str) -> None:
    error = refused(type="session.update", event_id="u", session={name: "x"})
    assert (error.code, error.event_id) == ("immutable_field", "u")
    assert str(error) == f"session.{name} cannot change once the session has started"


@pytest.mark.parametrize(
    ("text", "param", "code", "words"),
    [
        ("{", None, "invalid_json", "an event is not JSON: "),
        ("[]", None, "invalid_json", "an event is a JSON list, an object is needed"),
        ('{"type":"session.close","event_id":NaN}', None, "invalid_json", "an event is not JSON: "),
        ("[" * 2_000, None, "invalid_json", "an event is not JSON: "),
        ("{}", "type", "missing_required_parameter", "type is missing"),
        ('{"type":3}', "type", "invalid_type", "type is 3, a string is needed"),
        ('{"type":"x"}', "type", "unknown_event", "type is 'x', which no client of this API sends"),
        ('{"type":"x","event_id":1}', "event_id", "invalid_type", "event_id is 1, a string is needed"),
        (
            " " * 1_048_577,
            None,
            "event_too_large",
            "an event of 1048577 characters, the limit is 1048576",
        ),
    ],
)
def test_what_is_no_event(text: str, param: str | None, code: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        live.decode(text)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert str(caught.value).startswith(words)


def read(text: str, *, has_text: bool = False) -> live.ClientEvent | FieldError:
    """The event, or the one error there may be."""
    try:
        return live.decode(text, has_text=has_text)
    except FieldError as error:
        return error


@given(st.text(max_size=200))
@example('{"type":"session.close","event_id":"\\ud800"}')
@example("1" * 5000)
def test_any_text_is_an_event_or_an_error_with_a_code(text: str) -> None:
    found = read(text)
    assert not isinstance(found, FieldError) or found.code


@given(st.sampled_from(TYPES), SESSIONS, JSON, JSON, st.booleans())
def test_any_object_is_an_event_or_an_error_that_names_a_field(
    kind: str, session: dict[str, Any], audio: Any, event_id: Any, has_text: bool
) -> None:
    named = dict.fromkeys(("audio", "item", "content", "delegation_id"), audio)
    text = json.dumps({"type": kind, "session": session, "event_id": event_id, **named})
    found = read(text, has_text=has_text)
    if isinstance(found, FieldError):
        assert found.param is not None
        assert str(found).startswith(found.param)
        assert found.event_id in (None, event_id)
    else:
        assert found.event_id == event_id


@given(SESSIONS, st.sampled_from(["format", "output"]), JSON)
def test_any_audio_object_is_read_or_refused(session: dict[str, Any], name: str, value: Any) -> None:
    asked = {**session, "model": "tiny", "audio": {name: value}}
    found = read(json.dumps({"type": "session.start", "session": asked}))
    if isinstance(found, live.Start):
        assert json.dumps(found.session.shown(session_id="live_1", expires_at=1))
    else:
        assert isinstance(found, FieldError)
        assert found.param is not None
        assert found.param.startswith("session.")


def test_what_a_session_that_resumes_shows() -> None:
    claim = {"token": "A" * 22, "seq": 4, "frame": 9, "input_frame": 7, "session": {"model": "tiny"}}
    event = decode(type="session.resume", muted=True, **claim)
    assert isinstance(event, live.ResumeSession)
    assert event.claim == Claim(bytes(16), 4, 9, 7)
    assert (event.session.model, event.is_muted) == ("tiny", True)
    event = decode(type="session.resume", token="A" * 22, session={"model": "tiny"})
    assert isinstance(event, live.ResumeSession)
    assert event.claim == Claim(bytes(16), -1, -1, 0)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"token": "AAAA"}, "token is a token of 3 bytes, it has 16"),
        ({"seq": 1.5}, "seq is 1.5, a whole number is needed"),
        ({"frame": -2}, "frame is -2, -1 to 4294967294 are allowed"),
        ({"session": None}, "session is missing"),
    ]
    for wrong, words in wrongs:
        assert str(refused(type="session.resume", **{**claim, **wrong})) == words


def with_text(**values: Any) -> live.ClientEvent:
    return live.decode(json.dumps(values), has_text=True)


def test_events_with_text_are_for_models_that_take_text() -> None:
    told = {"content": "It rains.", "delegation_id": None, "event_id": "e"}
    for kind in ("instructions", "thinking", "commentary"):
        appended = live.AppendText(kind, "It rains.", None, "e")
        assert with_text(type=f"session.{kind}.append", **told) == appended
        assert decode(type=f"session.{kind}.append", **told) == live.Unsupported(
            f"session.{kind}.append", "e"
        )
    result = with_text(type="session.commentary.append", content="9", delegation_id="d")
    assert result == live.AppendText("commentary", "9", "d")
    output = {"type": "function_call_output", "call_id": "c", "output": "9"}
    item = with_text(type="response.item.create", item=output)
    assert item == live.AddItem(WrittenItem("output", "9", "c"))
    assert with_text(type="response.create", event_id="e") == live.ContinueResponse("e")
    with pytest.raises(FieldError, match=r"content has 4001 characters, the limit is 4000"):
        with_text(type="session.thinking.append", content="a" * 4001)
    with pytest.raises(FieldError, match=r"item\.type is 'mcp_call'"):
        with_text(type="response.item.create", item={"type": "mcp_call"})


def test_what_a_delegation_gives_a_text_model() -> None:
    assert read_delegation(None) == read_delegation({"type": "decisions"}) == Delegation()
    assert read_delegation({"type": "client"}) == Delegation(Target.CLIENT, (DELEGATE_TOOL,))
    assert read_delegation({"type": "responses"}) == Delegation(Target.RESPONSES)
    tool = {"type": "function", "name": "time", "strict": True}
    own = {
        "tools": [tool],
        "tool_choice": {"type": "function", "name": "time"},
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "instructions": "Be quick.",
    }
    asked = {"type": "function", "function": {"name": "time"}}
    assert read_delegation({"type": "responses", "responses": own}) == Delegation(
        Target.RESPONSES, [asked], asked, parallel_tool_calls=False, max_tokens=9, instructions="Be quick."
    )
    with pytest.raises(FieldError, match=r"session\.delegation\.responses\.tools\[0\]\.type is 'web_search'"):
        read_delegation({"type": "responses", "responses": {"tools": [{"type": "web_search"}]}})
