"""Messages of the JSON speech dialect, as its clients write them, and invalid messages."""

from __future__ import annotations

import json

import pytest

from antiphon.errors import ProtocolError
from antiphon.protocol import json_speech as wire
from antiphon.protocol.kyutai_tts import Spoken

MESSAGES = [
    (
        '{"type":"setup","model_name":"default","input_format":"pcm_16000","json_config":{"language":"en"}}',
        wire.SpeechSetup("pcm_16000", "default"),
    ),
    (
        '{"type":"setup","output_format":"pcm","voice_id":"v","close_ws_on_eos":false,"client_req_id":"a"}',
        wire.SpeechSetup("pcm", None, "v", "a", keeps_open=True),
    ),
    ('{"type":"setup","voice":"slt","json_config":"{}"}', wire.SpeechSetup("wav", voice="slt")),
    ('{"type":"audio","audio":"AQI="}', wire.SpeechAudio(b"\1\2")),
    ('{"type":"text","text":"a","client_req_id":"b"}', wire.SpeechText("a", "b")),
    ('{"type":"flush","flush_id":3}', wire.SpeechFlush(3)),
    ('{"type":"flush","flush_id":"3"}', wire.SpeechFlush("3")),
    ('{"type":"end_of_stream"}', wire.SpeechEnd()),
    ('{"terminate_session":true}', None),
]


@pytest.mark.parametrize(("text", "message"), MESSAGES)
def test_messages_are_read(text: str, message: wire.SpeechMessage | None) -> None:
    assert wire.decode(text) == message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"ab", "a binary message of 2 bytes"),
        (" " * 262_145, "a message of 262145 characters, the limit is 262144"),
        ("[]", "a message of 2 characters is none here"),
        ('{"type":"audio"}', "type is audio, and there is no audio in the message"),
        ('{"type":"audio","audio":"?"}', "is none here"),
        ('{"type":"text"}', "type is text, and there is no text in the message"),
        (json.dumps({"type": "text", "text": "x" * 65_537}), "a text of 65537 bytes, the limit is 65536"),
    ],
)
def test_what_cannot_be_followed_is_named(message: bytes | str, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(message)


def test_answers_name_their_request() -> None:
    assert json.loads(wire.encode_audio(b"\1\2", "a")) == {
        "type": "audio", "audio": "AQI=", "client_req_id": "a",
    }  # fmt: skip
    assert json.loads(wire.encode_spoken(Spoken("a", 0.08, 0.16), None)) == {
        "type": "text", "text": "a", "start_s": 0.08, "stop_s": 0.16,
    }  # fmt: skip
    assert json.loads(wire.encode_step(3, (0.5, 0.25), 0.08)) == {
        "type": "step", "step_idx": 3, "step_duration_s": 0.08, "total_duration_s": 0.24,
        "vad": [
            {"horizon_s": 0.5, "inactivity_prob": 0.5}, {"horizon_s": 1.0, "inactivity_prob": 0.25},
        ],
    }  # fmt: skip
