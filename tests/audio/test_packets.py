"""Splitting and joining of Opus packets keeps the audio bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.audio.opus import (
    Application,
    OpusDecoder,
    OpusEncoder,
    join_packets,
    packet_ms,
    split_packet,
)
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError
from tests.audio.signals import speech

PACKET = 480


def together(decoder: Decoder, packets: list[bytes]) -> FloatArray:
    """What is decoded of messages that waited for each other."""
    for packet in packets:
        decoder.put(packet)
    pcm = decoder.step()
    assert pcm is not None
    return pcm


def packets_of(application: Application, bitrate: int, sizes: tuple[int, ...]) -> list[bytes]:
    """Packets of the given numbers of 20 ms, over and over."""
    encoder = OpusEncoder(application=application, bitrate=bitrate)
    pcm = speech(3.0)
    made: list[bytes] = []
    start = 0
    while start + PACKET * max(sizes) <= pcm.size:
        samples = PACKET * sizes[len(made) % len(sizes)]
        made.append(encoder.encode(pcm[start : start + samples]))
        start += samples
    return made


SETTINGS = [
    (application, bitrate)
    for application in Application
    for bitrate in (8_000, 16_000, 24_000, 48_000, 128_000)
]


@pytest.mark.parametrize(("application", "bitrate"), SETTINGS)
@pytest.mark.parametrize("sizes", [(1,), (1, 1, 2), (4, 1)])
def test_joined_packets_sound_the_same(
    application: Application, bitrate: int, sizes: tuple[int, ...]
) -> None:
    packets = packets_of(application, bitrate, sizes)
    alone, together = OpusDecoder(), OpusDecoder()
    for start in range(0, len(packets), 4):
        group = packets[start : start + 4]
        joined = join_packets(group)
        assert sum(map(packet_ms, joined)) == sum(map(packet_ms, group))
        heard = np.concatenate([together.decode(packet) for packet in joined])
        np.testing.assert_array_equal(heard, np.concatenate([alone.decode(packet) for packet in group]))


@pytest.mark.parametrize("bitrate", [16_000, 48_000, 128_000])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_packet_cut_into_its_frames_sounds_the_same(bitrate: int, size: int) -> None:
    whole, cut = OpusDecoder(), OpusDecoder()
    for packet in packets_of(Application.LOW_DELAY, bitrate, (size,)):
        parts = split_packet(packet)
        assert [packet_ms(part) for part in parts] == [20.0] * size
        heard = np.concatenate([cut.decode(part) for part in parts])
        np.testing.assert_array_equal(heard, whole.decode(packet))


@given(
    st.lists(
        st.builds(
            lambda head, body: bytes((head,)) + body,
            st.sampled_from([0x00, 0x08, 0x48, 0x60, 0x80, 0x98, 0xB8, 0xBC, 0xB9, 0xBB]),
            st.binary(max_size=300) | st.binary(min_size=1270, max_size=1280),
        )
        | st.binary(max_size=3),
        max_size=8,
    )
)
def test_whatever_comes_joined_it_is_heard_or_refused_as_alone(packets: list[bytes]) -> None:
    def hear(messages: list[list[bytes]]) -> bytes | None:
        decoder = make_decoder("opus")
        try:
            return b"".join(together(decoder, group).tobytes() for group in messages)
        except AudioError:
            return None
        finally:
            decoder.close()

    if packets:
        assert hear([packets]) == hear([[packet] for packet in packets])


@given(st.lists(st.binary(min_size=1, max_size=300).map(lambda body: b"\xb8" + body), min_size=2, max_size=6))
@example([b"\xb8" + bytes(size) for size in (251, 252, 253)])
def test_joining_and_cutting_are_inverse(packets: list[bytes]) -> None:
    (joined,) = join_packets(packets)
    assert split_packet(joined) == packets


def test_a_packet_is_never_longer_than_opus_allows() -> None:
    assert [packet_ms(packet) for packet in join_packets([b"\xb8ab"] * 6)] == [120.0]
    assert join_packets([b"\xb8ab"] * 7) == [b"\xb8ab"] * 7


@given(st.binary(min_size=1, max_size=40))
def test_a_packet_that_lies_about_its_frames_is_refused(packet: bytes) -> None:
    try:
        parts = split_packet(packet)
    except AudioError:
        return
    assert sum(map(packet_ms, parts)) == packet_ms(packet)


@pytest.mark.parametrize(
    "packet",
    [
        b"\xb9abc",
        b"\xba\x09abc",
        b"\xba",
        b"\xbb",
        b"\xbb\x42\x00ab\x00",
        b"\xbb\x00",
        b"\xbb\x80",
        b"\xbb\x02abc",
        b"\xbb\x82\x09ab",
        b"\xbb\x82\xff",
        b"",
    ],
)
def test_what_cannot_be_cut(packet: bytes) -> None:
    sentence = f"cutting a packet of {len(packet)} bytes: .* [(]libopus error -[14][)]"
    with pytest.raises(AudioError, match=f"^{sentence}$"):
        split_packet(packet)


def test_an_encoder_makes_packets_of_20_ms_from_any_number_of_them() -> None:
    encoder, decoder = make_encoder("opus"), make_decoder("opus")
    for count in (1, 2, 3, 4, 5, 7, 9):
        packets = encoder.encode(speech(count * 0.02))
        assert [packet_ms(packet) for packet in packets] == [20.0] * count
        assert together(decoder, packets).size == count * PACKET
