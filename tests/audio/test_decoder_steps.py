"""Decoding: a frame needs only its own samples, and each step is short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.audio.ogg import OggOpusWriter
from antiphon.audio.opus import OpusEncoder, packet_ms
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError
from tests.serve.harness import FRAME_SAMPLES, speech

PACKETS = {ms: OpusEncoder().encode(speech(1)[: 24 * ms]) for ms in (20, 40, 80)}
PACKETS[5] = b"\xa8" + bytes(20)  # CELT of 5 ms: any bytes are some sound
PACKETS[0] = b"\xbb\x00"  # says that it holds nothing, and cannot be decoded
MAX_PACKET_SAMPLES = 120 * 24
MAX_STEP_SAMPLES = 12_000 + MAX_PACKET_SAMPLES
"""Half a second and a packet: some 0.6 ms of libopus."""


def steps(decoder: Decoder, *, gather_samples: int = 0) -> list[FloatArray]:
    """All that can be done now, or nothing while less than ``gather_samples`` waits."""
    found = []
    while decoder.waiting_samples >= gather_samples and (pcm := decoder.step()) is not None:
        found.append(pcm)
    return found


@given(st.lists(st.sampled_from([5, 20, 20, 20, 40, 80]), max_size=40))
def test_a_frame_is_heard_with_its_last_packet(lengths_ms: list[int]) -> None:
    ear, decoder = make_decoder("opus"), make_decoder("opus")
    sent = 0
    heard: list[FloatArray] = [np.zeros(0, np.float32)]
    for length_ms in lengths_ms:
        ear.put(PACKETS[length_ms])
        sent += 24 * length_ms
        heard += steps(ear, gather_samples=FRAME_SAMPLES - sum(pcm.size for pcm in heard) % FRAME_SAMPLES)
        assert sum(pcm.size for pcm in heard) // FRAME_SAMPLES == sent // FRAME_SAMPLES
    together = np.concatenate(heard)
    alone = np.concatenate([np.zeros(0, np.float32), *(decoder.feed(PACKETS[ms]) for ms in lengths_ms)])
    np.testing.assert_array_equal(together, alone[: together.size])


def test_four_packets_are_one_step() -> None:
    ear = make_decoder("opus")
    for _ in range(3):
        ear.put(PACKETS[20])
        assert steps(ear, gather_samples=FRAME_SAMPLES) == []
    ear.put(PACKETS[20])
    assert [pcm.size for pcm in steps(ear, gather_samples=FRAME_SAMPLES)] == [FRAME_SAMPLES]


def test_what_is_gathered_comes_at_once_where_it_is_asked_for() -> None:
    ear = make_decoder("opus")
    ear.put(PACKETS[20])
    assert steps(ear, gather_samples=FRAME_SAMPLES) == []
    assert [pcm.size for pcm in steps(ear)] == [480]
    assert steps(ear) == []


def test_what_cannot_be_decoded_is_found_at_once() -> None:
    ear = make_decoder("opus")
    assert packet_ms(PACKETS[0]) == 0
    ear.put(PACKETS[0])
    with pytest.raises(AudioError):
        steps(ear, gather_samples=FRAME_SAMPLES)


def test_a_long_message_of_ogg_is_taken_in_bounded_steps_and_none_of_it_is_lost() -> None:
    pcm = speech(100)
    encoder, decoder = make_encoder("ogg"), make_decoder("ogg")
    frames = [pcm[start : start + FRAME_SAMPLES] for start in range(0, pcm.size, FRAME_SAMPLES)]
    data = b"".join(page for frame in frames for page in encoder.encode(frame))
    assert len(data) > 20_000
    ear = make_decoder("ogg")
    ear.put(data)
    heard = steps(ear)
    assert max(piece.size for piece in heard) <= MAX_STEP_SAMPLES
    np.testing.assert_array_equal(np.concatenate(heard), decoder.feed(data))


@pytest.mark.parametrize("name", ["pcm_s16le", "pcm_f32le"])
@pytest.mark.parametrize("rate", [8_000, 24_000])
def test_a_long_message_of_samples_is_taken_in_bounded_steps(name: str, rate: int) -> None:
    pcm = speech(100)
    data = b"".join(make_encoder(WireFormat(name, rate), rate).encode(pcm))
    ear, decoder = make_decoder(WireFormat(name, rate)), make_decoder(WireFormat(name, rate))
    ear.put(data)
    heard = steps(ear)
    assert max(piece.size for piece in heard) <= 16_384
    np.testing.assert_allclose(np.concatenate(heard), decoder.feed(data))


def test_a_page_of_tiny_packets_is_many_steps() -> None:
    """A page has room for 255 packets, of two bytes and 120 ms each: half a minute of audio."""
    ear = make_decoder("ogg")
    writer = OggOpusWriter(1)
    tiny = b"\x0b\x02"  # SILK frames of 60 ms, two of them, without content
    ear.put(writer.headers() + writer.page([tiny] * 255, 255 * MAX_PACKET_SAMPLES))
    heard = steps(ear)
    assert sum(piece.size for piece in heard) == 255 * round(packet_ms(tiny) * 24)
    assert max(piece.size for piece in heard) <= MAX_STEP_SAMPLES
