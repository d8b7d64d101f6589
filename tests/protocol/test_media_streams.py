"""Telephone media in JSON: messages of both services, refusals and replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol.media_streams import (
    MAX_MESSAGE_BYTES,
    Media,
    Played,
    StreamEvent,
    StreamStart,
    StreamStop,
    decode,
    encode_clear,
    encode_mark,
    encode_media,
)

TWILIO: dict[str, Any] = {
    "event": "start",
    "sequenceNumber": "1",
    "start": {
        "accountSid": "AC1",
        "streamSid": "MZ1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"model": "tiny", "key": "secret"},
    },
    "streamSid": "MZ1",
}
TELNYX: dict[str, Any] = {
    "event": "start",
    "sequence_number": "1",
    "stream_id": "32DE0DEA",
    "start": {
        "user_id": "3E6F",
        "call_control_id": "v2:T02",
        "from": "+13122010094",
        "to": "+13122123456",
        "tags": ["TAG1"],
        "custom_parameters": {"voice": "anna"},
        "media_format": {"encoding": "PCMA", "sample_rate": 8000, "channels": 1},
    },
}


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"event": "connected", "protocol": "Call", "version": "1.0.0"}, None),
        (TWILIO, StreamStart("MZ1", "streamSid", "pcmu", {"model": "tiny", "key": "secret"})),
        (TELNYX, StreamStart("32DE0DEA", "stream_id", "pcma", {"voice": "anna"})),
        (
            {
                "event": "media",
                "sequenceNumber": "3",
                "media": {"track": "inbound", "chunk": "2", "timestamp": "20", "payload": "fwD/"},
                "streamSid": "MZ1",
            },
            Media(b"\x7f\x00\xff", 2),
        ),
        ({"event": "media", "media": {"payload": "fwD/"}}, Media(b"\x7f\x00\xff")),
        ({"event": "media", "media": {"track": "outbound", "chunk": "2", "payload": "fwD/"}}, None),
        (
            {"event": "mark", "streamSid": "MZ1", "mark": {"name": "said 1"}},
            Played("said 1"),
        ),
        ({"event": "dtmf", "streamSid": "MZ1", "dtmf": {"track": "inbound_track", "digit": "1"}}, None),
        (
            {"event": "stop", "streamSid": "MZ1", "stop": {"accountSid": "AC1", "callSid": "CA1"}},
            StreamStop(),
        ),
    ],
    ids=lambda it: it["event"] if isinstance(it, dict) else "",
)
def test_published_messages_are_read(message: dict[str, Any], event: StreamEvent | None) -> None:
    assert decode(json.dumps(message)) == event


def broken(start: dict[str, Any], **fields: Any) -> str:
    """A start whose inner fields are others."""
    return json.dumps({**start, "start": {**start["start"], **fields}})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x00\x01", "a binary message of 2 bytes, media streams are JSON text"),
        (" " * (MAX_MESSAGE_BYTES + 1), "a message of 65537 characters, the limit is 65536"),
        ("[]", "a message of 2 characters is none of a media stream: Expected `object`, got `array`"),
        ('{"event":"media"}', "event is media, and there is no media in the message"),
        ('{"event":"media","media":{"payload":"?"}}', "Invalid base64 encoded string"),
        ('{"event":"start"}', "event is start, and there is no start in the message"),
        ('{"event":"start","start":{}}', "there is no streamSid or stream_id in the message"),
        (
            broken(TELNYX, media_format={"encoding": "L16", "sample_rate": 16000, "channels": 1}),
            "the stream is 'L16' at 16000 Hz with 1 channels; audio/x-mulaw, audio/x-alaw, PCMU, PCMA at",
        ),
        (broken(TWILIO, customParameters={str(n): "" for n in range(33)}), "length <= 32"),
        (broken(TWILIO, customParameters={"key": "k" * 4097}), "length <= 4096"),
    ],
)
def test_what_is_no_message_is_refused_in_words(message: str | bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(message)
    assert words in str(refused.value)


@given(st.text() | st.binary() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_message_is_read_or_refused(message: str | bytes) -> None:
    try:
        decode(message)
    except ProtocolError:
        return


def test_what_goes_back_names_the_stream_as_its_service_does() -> None:
    twilio, telnyx = decode(json.dumps(TWILIO)), decode(json.dumps(TELNYX))
    assert isinstance(twilio, StreamStart)
    assert isinstance(telnyx, StreamStart)
    media = {"event": "media", "streamSid": "MZ1", "media": {"payload": "fwD/"}}
    assert json.loads(encode_media(twilio, b"\x7f\x00\xff")) == media
    assert json.loads(encode_mark(telnyx, "a")) == {
        "event": "mark",
        "stream_id": "32DE0DEA",
        "mark": {"name": "a"},
    }
    assert json.loads(encode_clear(twilio)) == {"event": "clear", "streamSid": "MZ1"}
