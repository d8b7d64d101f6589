"""Wyoming's events as in its public description, and invalid events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol import wyoming as wire
from antiphon.serve.transport.frames import FrameError
from antiphon.serve.transport.stream import StreamReader

FORM = {"rate": 16000, "width": 2, "channels": 1}


def event(
    kind: str, data: dict[str, Any] | None = None, payload: bytes = b"", *, inline: bool = False
) -> bytes:
    """An event as clients write it: with its data behind its line, or, of old ones, in it."""
    body = b"" if data is None or inline else json.dumps(data).encode()
    line: dict[str, Any] = {"type": kind, "version": "1.10.2"}
    if inline:
        line["data"] = data
    if body:
        line["data_length"] = len(body)
    if payload:
        line["payload_length"] = len(payload)
    return json.dumps(line).encode() + b"\n" + body + payload


EVENTS = [
    (event("describe"), wire.Describe()),
    (event("ping", {"text": "a"}), wire.Ping("a")),
    (event("ping", {"text": None}), wire.Ping()),
    (event("transcribe", {"name": "tiny-stt", "language": "en"}), wire.NameModel("tiny-stt")),
    (event("transcribe"), wire.NameModel()),
    (event("audio-start", FORM), wire.AudioStart(wire.AudioForm(16000))),
    (event("audio-chunk", FORM, b"\1\2"), wire.AudioChunk(wire.AudioForm(16000), b"\1\2")),
    (event("audio-stop", {"timestamp": 5}), wire.AudioStop()),
    (event("synthesize", {"text": "hi", "voice": {"name": "slt"}}), wire.Synthesize("hi", "slt")),
    (event("synthesize", {"text": "hi", "voice": {"language": "en"}}), wire.Synthesize("hi")),
    (event("synthesize-start", {"voice": {"name": "slt", "speaker": "x"}}), wire.SynthesizeStart("slt")),
    (event("synthesize-chunk", {"text": "h\u00e9"}), wire.SynthesizeChunk("h\u00e9")),
    (event("synthesize-stop"), wire.SynthesizeStop()),
    (event("transcript", {"text": "lights", "context": {"conversation_id": "1"}}), wire.UserText("lights")),
    (event("detect", {"names": ["a"]}), None),
]


@pytest.mark.parametrize(("message", "found"), EVENTS)
def test_events_are_read(message: bytes, found: wire.WyomingEvent | None) -> None:
    assert wire.decode(message) == found


@pytest.mark.parametrize("inline", [False, True])
def test_data_may_stand_in_the_line_or_behind_it(inline: bool) -> None:
    assert wire.decode(event("audio-chunk", FORM, b"ab", inline=inline)) == wire.AudioChunk(
        wire.AudioForm(16000), b"ab"
    )


def test_data_behind_the_line_stands_above_that_in_it() -> None:
    line = {"type": "synthesize", "data": {"text": "a", "voice": {"name": "v"}}, "data_length": 12}
    assert wire.decode(json.dumps(line).encode() + b'\n{"text":"b"}') == wire.Synthesize("b", "v")


@given(st.lists(st.sampled_from([message for message, _ in EVENTS]), max_size=6), st.data())
def test_events_are_told_apart_however_they_come(messages: list[bytes], data: st.DataObject) -> None:
    stream, reader, found = b"".join(messages), StreamReader(wire.size_of), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        while (message := reader.next()) is not None:
            found.append(message[1])
    assert found == messages
    assert reader.is_empty


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "begins with a line of JSON of at most 131072 bytes"),
        (b"{" * (wire.MAX_JSON_BYTES + 1), "begins with a line of JSON of at most 131072 bytes"),
        (b"{}\n", "2 bytes of JSON are no part of an event"),
        (b'{"type":"a","data_length":131073}\n', "131073 bytes of data, the limit is 131072"),
        (b'{"type":"a","payload_length":262145}\n', "262145 bytes of audio, the limit is 262144"),
        (b'{"type":"a","payload_length":-1}\n', "are no part of an event"),
        (b'{"type":"a","payload_length":"1"}\n', "are no part of an event"),
    ],
)
def test_what_begins_no_event_is_refused_before_it_is_kept(data: bytes, words: str) -> None:
    reader = StreamReader(wire.size_of)
    reader.feed(data)
    with pytest.raises(FrameError, match=words):
        reader.next()
    assert reader.is_empty


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (event("synthesize", {}), "the event synthesize lacks 'text'"),
        (event("synthesize", {"text": 1}), "no part of an event"),
        (event("synthesize-chunk", {"text": "x" * 65_537}), "a text of 65537 bytes, the limit is 65536"),
        (event("ping", {"text": "x" * 257}), "a ping with a text of 257 characters, the limit is 256"),
        (event("audio-start", {**FORM, "rate": 16001}), "rate 16001, width 2, channels 1; read are 8000,"),
        (event("audio-start", {**FORM, "width": 4}), "width 4"),
        (event("audio-start", {**FORM, "channels": 3}), "channels 3; read are .* and 1 to 2 channels"),
        (event("audio-chunk", {}, b"ab"), "rate null, width null"),
        (b'{"type":"ping","data_length":3}\n[1]', "3 bytes of JSON are no part of an event"),
    ],
)
def test_what_cannot_be_followed_is_named(message: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(message)
