"""WAV input: the same samples for any fragmentation; invalid files are refused."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.codec import RESAMPLED_BYTES
from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import resample
from antiphon.audio.wav import encode_wav, streamed_header
from antiphon.audio.wav_input import MAX_HEAD_BYTES, RATES, WavDecoder
from antiphon.errors import AudioError

PCM = np.random.default_rng(1).uniform(-0.5, 0.5, 3000).astype(np.float32)


def read(decoder: WavDecoder, *portions: bytes) -> FloatArray:
    found: list[FloatArray] = []
    for portion in portions:
        decoder.put(portion)
        while (pcm := decoder.step()) is not None:
            found.append(pcm)
    return np.concatenate([np.zeros(0, np.float32), *found])


def header(form: int = 1, channels: int = 1, rate: int = 24_000, bits: int = 16) -> bytes:
    fields = struct.pack("<HHIIHH", form, channels, rate, 0, 0, bits)
    return b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(fields)) + fields


DATA = b"data\xff\xff\xff\xff"


@given(st.lists(st.integers(0, 6044), max_size=8))
def test_portions_change_nothing(cuts: list[int]) -> None:
    wav = encode_wav(PCM, 24_000)
    ends = [0, *sorted(cuts), len(wav)]
    heard = read(WavDecoder(24_000), *(wav[a:b] for a, b in pairwise(ends)))
    np.testing.assert_allclose(heard, PCM, atol=1 / 32768)


@pytest.mark.parametrize("rate", RATES)
def test_every_rate_becomes_that_of_the_model(rate: int) -> None:
    heard = read(WavDecoder(24_000), streamed_header(rate) + np.rint(PCM * 32767).astype("<i2").tobytes())
    whole = resample(PCM, rate, 24_000)
    np.testing.assert_allclose(heard, whole[: heard.size], atol=1e-3)
    assert whole.size - heard.size < 400  # what the filter waits for


def test_two_channels_are_mixed_and_other_chunks_passed_over() -> None:
    samples = np.array([[100, 300], [-5, -7]], "<i2").tobytes()
    wav = header(channels=2) + b"LIST\3\0\0\0abc\0" + DATA + samples + b"\1"
    assert (read(WavDecoder(24_000), wav) * 32768).tolist() == [200.0, -6.0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"OggS" + bytes(60), "not a WAV: it does not begin with RIFF"),
        (b"RIFF\0\0\0\0WAVE" + DATA, "a WAV whose samples come before their format"),
        (header(form=3) + DATA, "a WAV of format 3, 16 bits, 1 channels, 24000 Hz; read are 16-bit samples"),
        (header(bits=8) + DATA, "8 bits"),
        (header(channels=6) + DATA, "6 channels"),
        (header(rate=44_101) + DATA, "44101 Hz"),
        (header() + b"LIST\xff\xff\xff\x7f" + bytes(MAX_HEAD_BYTES), "in its first 65536 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_wav_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(AudioError, match=words):
        read(WavDecoder(24_000), data)


def test_a_long_message_is_decoded_in_steps_of_a_piece() -> None:
    decoder = WavDecoder(24_000)
    decoder.put(streamed_header(8_000) + bytes(131_072))
    samples = []
    while (pcm := decoder.step()) is not None:
        samples.append(pcm.size)
    assert max(samples) <= RESAMPLED_BYTES // 2 * 3
    assert sum(samples) == pytest.approx(65_536 * 3, abs=400)


@pytest.mark.parametrize(("size", "count"), [(2000, 1000), (0, 1006), (0xFFFFFFFF, 1006)])
def test_the_samples_end_at_the_size_of_the_header_unless_it_is_unknown(size: int, count: int) -> None:
    wav = header() + b"data" + struct.pack("<I", size) + bytes(2000) + b"LIST\4\0\0\0\xff\x7f\xff\x7f"
    for portions in ([wav], [wav[:1000], wav[1000:]], [bytes((byte,)) for byte in wav]):
        assert read(WavDecoder(24_000), *portions).size == count
