"""AudioSocket's messages: vectors of Asterisk, and invalid messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol import audiosocket as wire
from antiphon.serve.transport.stream import StreamReader

NAME = "45c51755-2e4e-419e-9278-a65bfc8a05ac"
UUID = bytes.fromhex("010010" + NAME.replace("-", ""))
SLIN = b"\x10\x01\x40" + bytes(320)
VECTORS = [
    (UUID, wire.CallNamed(NAME)),
    (SLIN, wire.CallerAudio(8000, bytes(320))),
    (b"\x11\x00\x02\x01\x02", wire.CallerAudio(12000, b"\1\2")),
    (b"\x12\x00\x02\x01\x02", wire.CallerAudio(16000, b"\1\2")),
    (b"\x13\x03\xc0" + bytes(960), wire.CallerAudio(24000, bytes(960))),
    (b"\x14\x00\x00", wire.CallerAudio(32000, b"")),
    (b"\x15\x00\x02\x01\x02", wire.CallerAudio(44100, b"\1\2")),
    (b"\x16\x07\x80" + bytes(1920), wire.CallerAudio(48000, bytes(1920))),
    (b"\x03\x00\x01#", wire.CallerDigit("#")),
    (b"\x00\x00\x00", wire.CallOver()),
    (b"\xff\x00\x01\x02", wire.CallOver()),
]


@pytest.mark.parametrize(("data", "message"), VECTORS)
def test_messages_are_read(data: bytes, message: wire.AudioSocketMessage) -> None:
    assert wire.size_of(bytearray(data)) == len(data)
    assert wire.decode(data) == message


@pytest.mark.parametrize("rate", wire.KINDS)
def test_audio_is_written_as_it_is_read(rate: int) -> None:
    assert wire.decode(wire.encode_audio(rate, b"\1\2\3\4")) == wire.CallerAudio(rate, b"\1\2\3\4")


@given(st.lists(st.sampled_from([data for data, _ in VECTORS]), max_size=6), st.integers(1, 50))
def test_messages_are_the_same_however_they_come(messages: list[bytes], step: int) -> None:
    stream, reader, found = b"".join(messages), StreamReader(wire.size_of), []
    for at in range(0, len(stream), step):
        reader.feed(stream[at : at + step])
        while (message := reader.next()) is not None:
            found.append(message[1])
    assert found == messages


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"POST / HTTP/1.1", "a message of the kind 0x50, AudioSocket has no such kind here"),
        (b"\x17\x00\x02ab", "a message of the kind 0x17"),
        (b"\x10\x40\x01", "a message of the kind 0x10 with 16385 bytes, the limit is 16384"),
        (b"\x01\x00\x11", "a message of the kind 0x01 with 17 bytes, the limit is 16"),
        (b"\x00\x00\x01", "a message of the kind 0x00 with 1 bytes, the limit is 0"),
    ],
)
def test_what_is_no_message_is_refused_by_its_head(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.size_of(bytearray(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x10\x00\x01a", "audio of 1 bytes, samples have 2"),
        (b"\x01\x00\x02ab", "a UUID of 2 bytes, it has 16"),
    ],
)
def test_a_payload_that_does_not_fit_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(data)
