"""Requests of ``/v1/audio/speech``."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import FieldError
from antiphon.protocol.speech_request import SpeechRequest, audio_delta, audio_done, parse_speech_request


def order(**fields: Any) -> SpeechRequest:
    return parse_speech_request(json.dumps({"input": "hello", **fields}).encode())


def test_an_input_is_enough() -> None:
    assert order() == SpeechRequest("hello")
    assert order(model=None, voice=None, speed=None, response_format=None) == SpeechRequest("hello")


def test_every_field_is_read() -> None:
    fields = {"model": "tiny-tts", "voice": {"id": "alto"}, "response_format": "opus", "speed": 2}
    found = order(**fields, stream_format="sse", instructions="Whisper.", user="anybody")
    assert found == SpeechRequest(
        "hello", "tiny-tts", "alto", "opus", 2.0, is_sse=True, ignored=("instructions",)
    )
    assert order(voice="alto").voice == "alto"


@pytest.mark.parametrize(
    ("data", "param", "code", "sentence"),
    [
        (b"{", None, "invalid_json", "the request is not JSON"),
        (b"[]", None, "invalid_json", "an object is needed"),
        (b"{}", "input", "missing_required_parameter", "input is missing"),
        (b'{"input": ""}', "input", "invalid_value", "input is empty"),
        (b'{"input": " \\n"}', "input", "invalid_value", "input has no words"),
        (b'{"input": 3}', "input", "invalid_type", "input is 3, a string is needed"),
        (b'{"input": "a", "speed": "2"}', "speed", "invalid_type", "speed is '2', a number is needed"),
        (b'{"input": "a", "speed": true}', "speed", "invalid_type", "true or false, a number is needed"),
        (b'{"input": "a", "speed": 4.1}', "speed", "invalid_value", r"speed is 4.1, 0\.25 to 4 are allowed"),
        (b'{"input": "a", "voice": 1}', "voice", "invalid_type", "voice is 1, a string is needed"),
        (b'{"input": "a", "voice": {}}', "voice.id", "missing_required_parameter", "voice.id is missing"),
        (b'{"input": "a", "stream_format": "ws"}', "stream_format", "invalid_value", "not one of audio, sse"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(
    data: bytes, param: str | None, code: str, sentence: str
) -> None:
    with pytest.raises(FieldError, match=sentence) as refused:
        parse_speech_request(data)
    assert (refused.value.param, refused.value.code) == (param, code)


@given(st.binary(max_size=200))
def test_events_are_lines_of_json(audio: bytes) -> None:
    event = audio_delta(audio)
    assert event.endswith(b"\n\n")
    found = json.loads(event.removeprefix(b"data: "))
    assert base64.b64decode(found["audio"]) == audio
    assert json.loads(audio_done(3, 0, 5).removeprefix(b"data: "))["usage"]["total_tokens"] == 8
