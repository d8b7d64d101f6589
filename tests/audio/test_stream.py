"""Recordings decoded piece by piece: the whole of them, and nothing that is none."""

from __future__ import annotations

import io
import re
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import MAX_RATE, MIN_RATE
from antiphon.audio.stream import KINDS, NAMES, Damage, container_of, decode_pieces, stated_seconds
from antiphon.audio.wav import encode_wav, streamed_header
from antiphon.errors import AudioError
from tests.audio.recordings import encoded


def decoded(data: bytes, rate: int = 24_000) -> FloatArray:
    return np.concatenate([np.zeros(0, np.float32), *decode_pieces(io.BytesIO(data), rate)])


def tone(rate: int, seconds: float = 1.0) -> FloatArray:
    time_s = np.arange(round(rate * seconds)) / rate
    return (0.4 * np.sin(2 * np.pi * 330 * time_s)).astype(np.float32)


@given(st.integers(0, 5000))
def test_a_wav_at_our_rate_is_what_it_holds(samples: int) -> None:
    pcm = np.random.default_rng(samples).uniform(-1, 1, samples).astype(np.float32)
    assert decoded(encode_wav(pcm, 24_000, is_float=True)).tolist() == pcm.tolist()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("container", "codec", "rate", "error"),
    [
        *(("wav", "pcm_s16le", 44_100, 0.01), ("flac", "flac", 48_000, 0.01)),
        *(("mp3", "libmp3lame", 44_100, 0.2), ("ogg", "libopus", 48_000, 0.2)),
    ],
)
def test_rates_and_channels_become_ours(
    container: str, codec: str, rate: int, error: float, channels: int
) -> None:
    heard = decoded(encoded(np.tile(tone(rate), (channels, 1)), rate, container, codec))
    assert heard.size == pytest.approx(24_000, abs=2500)  # lossy codecs pad
    middle = heard[6000:18_000]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.4 / np.sqrt(2), rel=error)
    spectrum = np.abs(np.fft.rfft(middle))
    assert int(spectrum.argmax()) * 24_000 / middle.size == pytest.approx(330, abs=3)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        *(("w64", "pcm_s16le", 24_000), ("aiff", "pcm_s16be", 24_000), ("caf", "pcm_s16be", 24_000)),
        *(("caf", "alac", 24_000), ("wav", "adpcm_ms", 22_050), ("wav", "adpcm_ima_wav", 22_050)),
        ("caf", "adpcm_ima_qt", 22_050),
    ],
)
def test_other_kinds_are_heard(container: str, codec: str, rate: int) -> None:
    heard = decoded(encoded(tone(24_000)[None], 24_000, container, codec, rate))
    assert heard.size == pytest.approx(24_000, abs=2500)
    assert np.sqrt(np.mean(heard[6000:18_000] ** 2)) == pytest.approx(0.4 / np.sqrt(2), rel=0.05)


def test_a_wav_of_more_than_four_gigabytes_by_its_header_is_read() -> None:
    wav = encode_wav(tone(24_000), 24_000)
    sizes = struct.pack("<QQQI", len(wav) - 8, len(wav) - 44, 24_000, 0)
    rf64 = b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<I", len(sizes)) + sizes
    rf64 += wav[12:40] + b"\xff\xff\xff\xff" + wav[44:]
    assert decoded(rf64).tolist() == decoded(wav).tolist()


@pytest.mark.parametrize(
    ("shares", "level"),
    [
        ([1.0, 1.0], 1.0),
        ([1.0, 0.0], 1.0),
        ([1.0, -1.0], 1.0),
        ([0, 0, 1.0, 0, 0, 0], 1.0),
        ([0.01, -0.01, 1.0, 0.01, 0.01, 0.01], 1.0),
    ],
    ids=["mono", "one side", "opposite phase", "centre of 5.1", "centre and surroundings"],
)
def test_speech_is_as_loud_in_any_channel(shares: list[float], level: float) -> None:
    said = tone(24_000)
    wav = wave_of(np.array(shares, np.float32)[:, None] * said[None])
    np.testing.assert_allclose(decoded(wav), level * said, atol=0.01)


def wave_of(channels: FloatArray) -> bytes:
    """A WAV of 16 bits, float32 ``[C, N]``."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((len(channels), 2, 24_000, 0, "NONE", ""))
        out.writeframes((channels.T * 32767).astype("<i2").tobytes())
    return file.getvalue()


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        *(("flac", "flac", 24_000), ("ogg", "libopus", 48_000), ("mp4", "aac", 24_000)),
    ],
)
def test_decoding_goes_on_after_damage_at_the_time_of_the_recording(
    container: str, codec: str, rate: int
) -> None:
    rising = (tone(24_000, 4.0) * np.linspace(0.1, 1.0, 96_000)).astype(np.float32)
    data = encoded(rising[None], 24_000, container, codec, rate)
    whole = decoded(data)
    start, size = len(data) // 3, len(data) // 20
    noise = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8).tobytes()
    damage = Damage()
    pieces = decode_pieces(io.BytesIO(data[:start] + noise + data[start + size :]), 24_000, damage)
    heard = np.concatenate(list(pieces))
    assert damage.packets or damage.seconds
    assert heard.size == pytest.approx(whole.size, abs=2400)
    middle = slice(60_000, 84_000)
    assert np.corrcoef(np.abs(heard[middle]), np.abs(whole[middle]))[0, 1] > 0.9


def test_an_mp3_has_no_clock_and_goes_on_where_the_damage_ends() -> None:
    data = encoded(tone(24_000, 4.0)[None], 24_000, "mp3", "libmp3lame")
    start, size = len(data) // 3, len(data) // 20
    noise = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8).tobytes()
    heard = decoded(data[:start] + noise + data[start + size :])
    assert heard.size == pytest.approx(96_000, abs=96_000 // 12)


def test_what_is_damaged_throughout_is_refused() -> None:
    data = encoded(tone(24_000)[None], 24_000, "mp4", "aac")
    at = data.index(b"mdat") + 4
    size = int.from_bytes(data[at - 8 : at - 4], "big") - 8
    with pytest.raises(AudioError, match=r"none of its \d+ packets can be decoded"):
        decoded(data[:at] + b"\xff" * size + data[at + size :])


def test_samples_are_clipped_and_must_be_finite() -> None:
    loud = np.array([[0.5, 7.0, -7.0]], np.float32)
    assert decoded(encoded(loud, 24_000, "wav", "pcm_f32le")).tolist() == [0.5, 1.0, -1.0]
    data = bytearray(encode_wav(np.zeros(8, np.float32), 24_000, is_float=True))
    data[-4:] = np.float32("nan").tobytes()
    with pytest.raises(AudioError, match="samples that are not finite"):
        decoded(bytes(data))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        *((b"RIFF\0\0\0\0WAVE", "wav"), (b"fLaC", "flac"), (b"OggS", "ogg")),
        *((b"ID3\x04", "mp3"), (b"\xff\xfb\x90\x00", "mp3")),
        *((b"RF64\xff\xff\xff\xffWAVE", "wav"), (b"riff.\x91\xcf\x11", "w64"), (b"caff\0\1", "caf")),
        *((b"FORM\0\0\0\0AIFF", "aiff"), (b"FORM\0\0\0\0AIFC", "aiff")),
    ],
)
def test_a_container_is_told_by_its_first_bytes(head: bytes, kind: str) -> None:
    assert container_of(head) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    "head", [b"", b"RIFF\0\0\0\0AVI ", b"#EXTM3U\n", b"ffconcat", b"\xff\x00", b"\x00" * 12]
)
def test_nothing_else_is_opened(head: bytes) -> None:
    with pytest.raises(AudioError, match=re.escape(f"no recording that can be read: {NAMES}")):
        decoded(head)


@given(st.sampled_from([b"RIFF\xff\xff\xff\xffWAVE", b"fLaC", b"OggS", b"ID3\x04"]), st.binary(max_size=300))
def test_damage_is_audio_or_an_audio_error(head: bytes, rest: bytes) -> None:
    try:
        pcm = decoded(head + rest)
    except AudioError:
        return
    assert np.isfinite(pcm).all()


def test_pieces_are_small_however_long_the_recording() -> None:
    pieces = [
        piece.size
        for piece in decode_pieces(io.BytesIO(encode_wav(np.zeros(480_000, np.float32), 24_000)), 24_000)
    ]
    assert sum(pieces) == 480_000
    assert max(pieces) <= 48_000


def test_a_header_states_the_length_where_it_can() -> None:
    wav = encode_wav(np.zeros(24_000 * 3, np.float32), 24_000)
    assert stated_seconds(io.BytesIO(wav)) == pytest.approx(3.0)
    file = io.BytesIO(streamed_header(24_000) + wav[44:])
    assert stated_seconds(file) == pytest.approx(3.0, abs=0.01), "a streamed WAV states hours"
    assert sum(map(len, decode_pieces(file, 24_000))) == 24_000 * 3
    pcm = np.zeros((1, 72_000), np.float32)
    assert stated_seconds(io.BytesIO(encoded(pcm, 24_000, "flac", "flac"))) == pytest.approx(3.0)
    assert stated_seconds(io.BytesIO(encoded(pcm, 24_000, "mp3", "libmp3lame", 44_100))) is None


@given(st.integers(0, 2**32 - 1))
def test_only_rates_in_range_are_decoded(rate: int) -> None:
    wav = bytearray(encode_wav(np.zeros(2400, np.float32), 24_000))
    wav[24:28] = rate.to_bytes(4, "little")
    try:
        samples = sum(map(len, decode_pieces(io.BytesIO(bytes(wav)), 24_000)))
    except AudioError:
        return
    assert MIN_RATE <= rate <= MAX_RATE
    assert samples <= 2400 * 24_000 / MIN_RATE + 100
