"""Client frames to messages, for any fragmentation, and refusals."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.serve.transport.frames import (
    BINARY,
    CLOSE,
    FRAGMENTS,
    MAX_FRAGMENTS,
    PING,
    SHORT_BYTES,
    TEXT,
    FrameError,
    FrameReader,
    read_close,
    unmasked,
)
from tests.serve.client_frames import MASK, MESSAGES, client_frame
from tests.serve.harness import serving
from tests.support.held import held_bytes


def received(data: bytes, cuts: list[int], max_bytes: int = 1 << 20) -> list[tuple[int, bytes | str]]:
    reader, found = FrameReader(max_bytes), []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
        while (message := reader.next()) is not None:
            if message[0] != FRAGMENTS:
                found.append(message)
    return found


@given(MESSAGES, st.lists(st.integers(0, 1 << 18), max_size=12), st.integers(1, 80))
def test_messages_arrive_whole_however_they_are_cut(
    messages: list[tuple[int, bytes | str]], cuts: list[int], fragment_bytes: int
) -> None:
    data = b""
    for opcode, content in messages:
        payload = content.encode() if isinstance(content, str) else content
        if opcode == PING or len(payload) > 1000:
            data += client_frame(opcode, payload)
            continue
        starts = range(0, len(payload) or 1, fragment_bytes)
        for start in starts:
            data += client_frame(
                0 if start else opcode, payload[start : start + fragment_bytes], is_final=start == starts[-1]
            )
            data += client_frame(PING, b"between")
    found = received(data, cuts)
    assert [message for message in found if message != (PING, b"between")] == messages


@given(st.integers(0, 3 * SHORT_BYTES), st.binary(min_size=4, max_size=4))
def test_a_mask_is_taken_off(size: int, mask: bytes) -> None:
    payload = bytes(index * 7 % 256 for index in range(size))
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    assert unmasked(masked, mask) == payload


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (client_frame(BINARY, b"a", is_masked=False), 1002, "a frame without a mask; a client masks every"),
        (client_frame(PING, b"", is_masked=False), 1002, "a frame without a mask"),
        (
            client_frame(0x40 | BINARY, b"a"),
            1002,
            "a frame with a reserved bit set; no extension was agreed on",
        ),
        (client_frame(0x3, b"a"), 1002, "a frame with the unknown opcode 0x3"),
        (client_frame(PING, bytes(126)), 1002, "a control frame in fragments, or of over 125 bytes"),
        (client_frame(PING, b"", is_final=False), 1002, "a control frame in fragments"),
        (client_frame(0, b"a"), 1002, "a message within another, or a continuation without a message"),
        (client_frame(TEXT, b"\xff"), 1007, "a text message that is not UTF-8"),
        (client_frame(BINARY, bytes(101)), 1009, "a message of 101 bytes, the limit is 100"),
    ],
)
def test_what_breaks_the_protocol_says_so(data: bytes, code: int, says: str) -> None:
    with pytest.raises(FrameError, match=says) as caught:
        received(data, [], 100)
    assert caught.value.code == code


@pytest.mark.parametrize("size", [1, 20, 90, 125])
def test_nothing_is_received_of_a_frame_without_a_mask(size: int) -> None:
    reader = FrameReader(1000)
    reader.feed(client_frame(BINARY, bytes(size), is_masked=False))
    with pytest.raises(FrameError, match="a frame without a mask"):
        reader.next()


def test_a_large_message_is_refused_before_it_is_here() -> None:
    head = struct.pack(">BBQ", 0x82, 0xFF, 1 << 40) + MASK
    with pytest.raises(FrameError, match=f"a message of {1 << 40} bytes, the limit is 100"):
        received(head, [], 100)
    halves = client_frame(BINARY, bytes(60), is_final=False) + client_frame(0, bytes(60))
    with pytest.raises(FrameError, match="a message of 120 bytes, the limit is 100"):
        received(halves, [], 100)


def test_a_large_read_is_not_kept_once_its_messages_are_taken() -> None:
    reader = FrameReader(1 << 20)
    reader.feed(client_frame(BINARY, bytes(1 << 16)))
    assert reader.next() == (BINARY, bytes(1 << 16))
    assert reader.next() is None
    assert held_bytes(reader) < 100


def test_a_message_inside_another_is_refused() -> None:
    with pytest.raises(FrameError, match="a message within another"):
        received(client_frame(TEXT, b"", is_final=False) + client_frame(TEXT, b""), [])


def test_fragments_are_read_in_steps() -> None:
    reader = FrameReader(1 << 20)
    parts = [client_frame(0 if part else BINARY, b"a", is_final=False) for part in range(3 * MAX_FRAGMENTS)]
    reader.feed(b"".join(parts) + client_frame(0, b"z"))
    for _ in range(3):
        assert reader.next() == (FRAGMENTS, b"")
    assert reader.next() == (BINARY, b"a" * 3 * MAX_FRAGMENTS + b"z")


def test_fragments_that_cannot_become_text_are_refused_before_the_last() -> None:
    with pytest.raises(FrameError, match="a text message that is not UTF-8") as caught:
        received(client_frame(TEXT, b"\xce", is_final=False) + client_frame(0, b"a", is_final=False), [])
    assert caught.value.code == 1007


@pytest.mark.parametrize("code", [1000, 1003, 1014, 3000, 4999])
def test_a_close_has_a_code(code: int) -> None:
    assert read_close(code.to_bytes(2, "big") + b"why") == code


@pytest.mark.parametrize("payload", [b"a", b"\x03\xed", b"\x03\xee", b"\x13\x88", b"\x03\xe8\xff"])
def test_a_close_that_no_client_sends_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="a close frame"):
        read_close(payload)


def test_a_close_without_a_code_has_none() -> None:
    assert received(client_frame(CLOSE, b""), []) == [(CLOSE, b"")]
    assert read_close(b"") is None


async def test_a_client_that_does_not_mask_is_closed_with_1002() -> None:
    async with serving() as server, server.caller() as client:
        client.transport.write(client_frame(BINARY, b"\x06", is_masked=False))
        closed = await client.closed()
        assert (closed.code, closed.reason) == (1002, "a frame without a mask; a client masks every frame")
        await server.is_empty()
