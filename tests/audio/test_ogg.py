"""Ogg pages in any fragments and with any damage, compared with sphn in both directions."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
import sphn
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.ogg import (
    MAX_DAMAGED_PAGES,
    MAX_PACKET_BYTES,
    MAX_SKIPPED_BYTES,
    OggOpusReader,
    OggOpusWriter,
    OpusHead,
)
from antiphon.audio.opus import OpusDecoder, OpusEncoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError
from tests.audio.signals import speech
from tests.support.held import held_bytes

packets = st.binary(min_size=1, max_size=600).filter(
    lambda packet: not packet.startswith((b"OpusHead", b"OpusTags"))
)
pages = st.lists(st.lists(packets, min_size=1, max_size=4), max_size=6)
cuts = st.lists(st.integers(0, 8000), max_size=12)


def portions(data: bytes, at: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise([0, *sorted(at), len(data)])]


def stream(groups: list[list[bytes]], serial: int = 1) -> list[bytes]:
    writer = OggOpusWriter(serial)
    return [writer.headers(), *(writer.page(group, 960) for group in groups), writer.finish()]


def crc(data: bytes) -> int:
    """Ogg's checksum, bit by bit as RFC 3533 has it."""
    register = 0
    for byte in data:
        register ^= byte << 24
        for _ in range(8):
            register = (register << 1) ^ (0x104C11DB7 if register & 0x8000_0000 else 0)
    return register


def raw_page(lacing: list[int], body: bytes, flags: int = 0, sequence: int = 2, serial: int = 1) -> bytes:
    """A page made by hand, also of kinds that our writer never makes."""
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, flags, 0, serial, sequence, 0, len(lacing))
    page = head + bytes(lacing) + body
    return page[:22] + crc(page).to_bytes(4, "little") + page[26:]


@given(pages, cuts)
def test_packets_come_back_whatever_the_portions(groups: list[list[bytes]], at: list[int]) -> None:
    reader = OggOpusReader()
    got = [packet for portion in portions(b"".join(stream(groups)), at) for packet in reader.feed(portion)]
    assert got == [packet for group in groups for packet in group]
    assert reader.head == OpusHead()
    assert (reader.gaps, reader.damaged_pages, reader.skipped_bytes, reader.streams) == (0, 0, 0, 1)


def test_one_byte_at_a_time() -> None:
    groups = [[b"\xfc" * 700], [b"\xfc\x01", b"\xfc\x02"]]
    reader = OggOpusReader()
    got = [packet for byte in b"".join(stream(groups)) for packet in reader.feed(bytes((byte,)))]
    assert got == [packet for group in groups for packet in group]


@given(st.lists(packets, min_size=1, max_size=3))
def test_the_checksum_is_the_one_of_the_standard(group: list[bytes]) -> None:
    page = OggOpusWriter(3).page(group, 960)
    assert int.from_bytes(page[22:26], "little") == crc(page[:22] + bytes(4) + page[26:])


@given(pages, st.data())
def test_one_damaged_byte_costs_its_page_and_nothing_else(
    groups: list[list[bytes]], data: st.DataObject
) -> None:
    """Except in the lengths a page states, which may hide the pages after it until they turn out wrong."""
    headers, *parts = stream(groups)
    parts = [headers[:47], headers[47:], *parts]
    which = data.draw(st.integers(0, len(parts) - 1))
    segments = parts[which][26]
    place = data.draw(st.sampled_from([*range(26), *range(27 + segments, len(parts[which]))]))
    damaged = bytearray(parts[which])
    damaged[place] ^= data.draw(st.integers(1, 255))
    reader = OggOpusReader()
    got = reader.feed(b"".join((*parts[:which], damaged, *parts[which + 1 :])))
    assert got == [packet for number, group in enumerate(groups, 2) if number != which for packet in group]
    assert (reader.head is None) == (which == 0)
    assert reader.gaps == (0 < which < len(parts) - 1)


@given(st.binary(max_size=400), st.sampled_from([b"", b"OggS", b"OggS\0", b"OggS\0\0" + b"\xff" * 60]))
def test_after_any_garbage_the_reader_is_back_within_a_page(garbage: bytes, capture: bytes) -> None:
    """A false capture pattern can hold the stream back for the length of the longest page, no longer."""
    reader = OggOpusReader()
    reader.feed(garbage + capture)
    writer = OggOpusWriter(1)
    writer.headers()
    got = [packet for _ in range(60) for packet in reader.feed(writer.page([b"\xfc" * 1200], 960))]
    assert len(got) == 60
    assert reader.feed(writer.page([b"\xfc\x01"], 960)) == [b"\xfc\x01"]


@given(
    st.lists(st.binary(max_size=80) | st.sampled_from(stream([[b"\xfc\x01"], [b"\xfc" * 300]])), max_size=12)
)
def test_any_bytes_are_packets_or_an_audio_error(portions: list[bytes]) -> None:
    reader = OggOpusReader()
    for portion in portions:
        try:
            reader.feed(portion)
        except AudioError:
            continue
    assert held_bytes(reader) <= 27 + 255 + 255 * 255 + MAX_PACKET_BYTES


@given(st.binary(max_size=100), st.integers(0, 255), st.integers(0, 7))
def test_any_whole_page_is_packets_or_an_audio_error(body: bytes, last: int, flags: int) -> None:
    """With a checksum that is right, so that what lies behind it is reached."""
    lacing = [255] * (len(body) // 255) + [last]
    reader = OggOpusReader()
    for page in (raw_page(lacing, body.ljust(sum(lacing), b"\0"), flags), stream([[b"\xfc\x01"]])[0]):
        try:
            reader.feed(page)
        except AudioError:
            continue


def test_garbage_without_a_page_is_given_up_after_64_kib() -> None:
    reader = OggOpusReader()
    for _ in range(MAX_SKIPPED_BYTES // 1024):
        assert reader.feed(b"\0" * 1024) == []
    with pytest.raises(AudioError, match=r"66\d\d\d bytes without an Ogg page, the limit is 65536"):
        reader.feed(b"\0" * 1024)
    assert reader.feed(b"".join(stream([[b"\xfc\x07"]]))) == [b"\xfc\x07"]


def test_garbage_between_pages_is_counted_from_the_last_page() -> None:
    reader = OggOpusReader()
    parts = stream([[b"\xfc\x01"], [b"\xfc\x02"], [b"\xfc\x03"]])
    half = b"\0" * (MAX_SKIPPED_BYTES - 8)
    got = [packet for part in parts for packet in reader.feed(part + half)]
    assert got == [b"\xfc\x01", b"\xfc\x02", b"\xfc\x03"]
    assert reader.skipped_bytes > 3 * MAX_SKIPPED_BYTES


def test_damage_in_a_row_is_given_up() -> None:
    reader = OggOpusReader()
    page = bytearray(stream([[b"\xfc\x01"]])[1])
    page[22] ^= 1
    reader.feed(bytes(page) * MAX_DAMAGED_PAGES)
    with pytest.raises(AudioError, match="17 Ogg pages in a row with a wrong checksum"):
        reader.feed(bytes(page))


def test_a_packet_may_have_61440_bytes_over_pages_and_no_more() -> None:
    def spread(size: int) -> list[bytes]:
        body = b"\xfc" * size
        lacing = [255] * (size // 255) + [size % 255]
        return [
            raw_page(part, body[255 * start :][: sum(part)], flags=1 if start else 0, sequence=number)
            for number, start in enumerate(range(0, len(lacing), 100))
            for part in [lacing[start : start + 100]]
        ]

    reader = OggOpusReader()
    reader.feed(stream([])[0])
    got = [packet for page in spread(MAX_PACKET_BYTES) for packet in reader.feed(page)]
    assert [len(packet) for packet in got] == [MAX_PACKET_BYTES]
    with pytest.raises(AudioError, match=r"a packet of 61441 bytes or more, the limit is 61440"):
        [reader.feed(page) for page in spread(MAX_PACKET_BYTES + 1)]


def test_a_packet_that_never_ends_is_not_kept_for_ever() -> None:
    reader = OggOpusReader()
    reader.feed(stream([])[0])
    reader.feed(raw_page([255] * 200, bytes(51_000)))
    with pytest.raises(AudioError, match=r"a packet of 102000 bytes or more"):
        reader.feed(raw_page([255] * 200, bytes(51_000), flags=1, sequence=3))
    assert held_bytes(reader) < 51_000


def test_the_next_stream_may_have_the_same_serial() -> None:
    reader = OggOpusReader()
    for serial in (5, 5, 6):
        assert reader.feed(b"".join(stream([[b"\xfc\x01"]], serial))) == [b"\xfc\x01"]
    assert (reader.streams, reader.gaps) == (3, 0)


def test_pages_of_another_stream_are_passed_over() -> None:
    head, first, second, _ = stream([[b"\xfc\x01"], [b"\xfc\x02"]], 5)
    other = stream([[b"\xfc\x09"]], 6)[1]
    reader = OggOpusReader()
    assert reader.feed(head + first + other + second) == [b"\xfc\x01", b"\xfc\x02"]
    assert (reader.streams, reader.gaps) == (1, 0)


def test_granules_count_48_khz() -> None:
    writer = OggOpusWriter(1, pre_skip=60)
    head = OpusHead.from_bytes(writer.headers()[28:47])
    assert (head.pre_skip, head.sample_rate, head.channels) == (120, 24_000, 1)
    for samples, granule in ((1920, 3840), (480, 4800), (960, 6720)):
        assert struct.unpack_from("<q", writer.page([b"\xfc\x00"], samples), 6) == (granule,)
    assert struct.unpack_from("<q", writer.finish(), 6) == (6720,)


@given(st.integers(1, 2), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(-32768, 32767))
def test_the_head_survives(channels: int, pre_skip: int, sample_rate: int, gain: int) -> None:
    head = OpusHead(channels, pre_skip, sample_rate, gain)
    assert OpusHead.from_bytes(head.to_bytes()) == head


def test_too_much_for_a_page_is_refused() -> None:
    with pytest.raises(AudioError, match="2 packets take 257 segments, a page has room for 255"):
        OggOpusWriter(1).page([bytes(255 * 255), b"\xfc"], 960)


def frames(pcm: FloatArray) -> list[FloatArray]:
    return np.split(pcm, range(1920, pcm.size, 1920))


def decode(portions: list[bytes]) -> FloatArray:
    reader = OggOpusReader()
    with OpusDecoder() as decoder:
        return np.concatenate([decoder.decode(packet) for part in portions for packet in reader.feed(part)])


def sphn_decode(portions: list[bytes]) -> FloatArray:
    reader = sphn.OpusStreamReader(24_000)
    return np.concatenate([reader.append_bytes(part) for part in portions])


@pytest.mark.parametrize("samples", [480, 960, 1920])
def test_sphn_reads_what_we_write(samples: int) -> None:
    said = speech(2.4)
    writer = OggOpusWriter(1)
    with OpusEncoder() as encoder:
        pages = [
            writer.page([encoder.encode(part) for part in np.split(frame, 1920 // samples)], 1920)
            for frame in frames(said)
        ]
    messages = [writer.headers() + pages[0], *pages[1:], writer.finish()]
    ours, theirs = decode(messages), sphn_decode(messages)
    assert ours.shape == theirs.shape == said.shape  # nobody cuts off the pre-skip
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("portion", [37, 300, 4000])
def test_we_read_what_sphn_writes_and_hear_what_it_hears(portion: int) -> None:
    writer = sphn.OpusStreamWriter(24_000)
    written = b"".join(writer.append_pcm(frame) for frame in frames(speech(2.4)))
    portions = [written[start : start + portion] for start in range(0, len(written), portion)]
    ours, theirs = decode(portions), sphn_decode(portions)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("serial", [1, 2])
@pytest.mark.parametrize("gain", [0, 1536])
def test_gain_and_new_streams_are_taken_as_sphn_takes_them(serial: int, gain: int) -> None:
    """No gain is applied, and a second stream goes on with the state of the first."""
    messages: list[bytes] = []
    with OpusEncoder() as first, OpusEncoder() as second:
        for number, encoder in ((1, first), (serial, second)):
            head = raw_page([19], OpusHead(output_gain=gain).to_bytes(), flags=2, sequence=0, serial=number)
            writer = OggOpusWriter(number)
            tags = writer.headers()[47:]
            pages = [writer.page([encoder.encode(frame)], 1920) for frame in frames(speech(0.8))]
            messages += [head + tags + pages[0], *pages[1:]]
    np.testing.assert_allclose(decode(messages), sphn_decode(messages), atol=1e-6)


def test_zlib_and_ogg_agree_on_the_polynomial() -> None:
    """What the trick in ``_checksum`` rests on: mirrored, the two are one."""
    mirrored = bytes(int(f"{byte:08b}"[::-1], 2) for byte in b"antiphon")
    reflected = zlib.crc32(mirrored, 0xFFFF_FFFF) ^ 0xFFFF_FFFF
    assert int(f"{reflected:032b}"[::-1], 2) == crc(b"antiphon")
