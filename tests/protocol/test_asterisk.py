"""Messages of Asterisk's WebSocket channel: vectors of Asterisk, and invalid messages."""

from __future__ import annotations

import json

import pytest

from antiphon.errors import ProtocolError
from antiphon.protocol import asterisk as wire

START = (
    "MEDIA_START connection_id:antiphon channel:WebSocket/antiphon/0x7fc79800c760 channel_id:1795682607.5 "
    "format:slin24 optimal_frame_size:960 ptime:20"
)
JSON_START = json.dumps(
    {
        "event": "MEDIA_START",
        "connection_id": "antiphon",
        "channel": "WebSocket/antiphon/0x1",
        "channel_id": "1795682607.5",
        "format": "ulaw",
        "optimal_frame_size": 160,
        "ptime": 20,
        "channel_variables": {},
    }
)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (START, wire.MediaStart("WebSocket/antiphon/0x7fc79800c760", "pcm_s16le", 24000, 960)),
        (JSON_START, wire.MediaStart("WebSocket/antiphon/0x1", "pcmu", 8000, 160, is_json=True)),
        ("MEDIA_MARK_PROCESSED said 1", wire.MediaPlayed("said 1")),
        ('{"event":"MEDIA_MARK_PROCESSED","correlation_id":"1 80"}', wire.MediaPlayed("1 80")),
        ("DTMF_END digit:1 channel_id:1.2", None),
        ("MEDIA_XOFF", None),
        ('{"event":"QUEUE_DRAINED","channel_id":"1.2"}', None),
        ("", None),
    ],
)  # fmt: skip
def test_messages_are_read(message: str, event: wire.AsteriskEvent | None) -> None:
    assert wire.decode(message) == event


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"ab", "a binary message of 2 bytes before MEDIA_START"),
        ("x" * 16_385, "a message of 16385 characters, the limit is 16384"),
        ("{", "a message of 1 characters is none of this channel"),
        ('{"event":1}', "a message of 11 characters is none of this channel"),
        (START.replace("slin24", "opus"), "the format is 'opus', not one of slin, slin12"),
        ("MEDIA_START", "the format is '', not one of"),
        (START.replace(":960", ":0"), "optimal_frame_size is '0', 1 to 8192 are allowed"),
        (START.replace(":960", ":9000"), "optimal_frame_size is '9000'"),
        (START.replace(":960", ":\u0662"), "optimal_frame_size is"),
    ],
)
def test_what_cannot_be_followed_is_named(message: bytes | str, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(message)


def test_commands_have_the_form_of_the_first_message() -> None:
    plain, form = wire.decode(START), wire.decode(JSON_START)
    assert isinstance(plain, wire.MediaStart)
    assert isinstance(form, wire.MediaStart)
    assert [wire.encode(plain, "ANSWER"), wire.encode(plain, "MARK_MEDIA", "a 1")] == [
        "ANSWER",
        "MARK_MEDIA a 1",
    ]
    assert json.loads(wire.encode(form, "FLUSH_MEDIA")) == {"command": "FLUSH_MEDIA"}
    assert json.loads(wire.encode(form, "MARK_MEDIA", "a 1")) == {
        "command": "MARK_MEDIA",
        "correlation_id": "a 1",
    }
    assert len(wire.encode(form, "MARK_MEDIA", "1000 600000")) < 128  # Asterisk reads no more
