"""Recordings decoded piece by piece: complete, and invalid ones are refused."""

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
from antiphon.audio.stream import NAMES, Damage, container_of, decode_pieces, stated_seconds
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


def gsm_wav(pcm: FloatArray) -> bytes:
    """Samples at 8 kHz as GSM 06.10 in a WAV, as telephones' mailboxes write it: without filters, every third
    sample alone is kept, in three bits."""
    bits: list[int] = []

    def put(value: int, count: int) -> None:
        bits.extend(value >> bit & 1 for bit in range(count))

    for frame in pcm[: pcm.size // 160 * 160].reshape(-1, 4, 40):
        for value, count in zip((32, 32, 20, 11, 8, 4, 3, 2), (6, 6, 5, 5, 4, 4, 3, 3), strict=True):
            put(value, count)  # no resonances
        for part in frame:
            for value, count in ((40, 7), (0, 2), (0, 2), (60, 6)):
                put(value, count)  # no echo of before; the first of three grids, and the loudest pulse
            for sample in part[:39:3]:
                put(min(7, max(0, round(sample * 7 / 2 + 3.5))), 3)
    data = np.packbits(bits, bitorder="little").tobytes()
    form = struct.pack("<HHIIHHHH", 0x31, 1, 8000, 1625, 65, 0, 2, 320)
    fact = struct.pack("<4sII", b"fact", 4, len(data) // 65 * 320)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + fact + struct.pack("<4sI", b"data", len(data))
    return b"RIFF" + struct.pack("<I", len(body) + len(data)) + body + data


def test_a_mailbox_of_gsm_is_heard() -> None:
    heard = decoded(gsm_wav(tone(8000, 2.0)))
    assert heard.size == pytest.approx(48_000, abs=10)
    middle = heard[12_000:36_000]
    spectrum = np.abs(np.fft.rfft(middle))[:1200]  # beyond 1.2 kHz are the images of a third of the samples
    assert int(spectrum.argmax()) == pytest.approx(330, abs=2)
    assert spectrum[330] > 10 * np.median(spectrum)
    assert stated_seconds(io.BytesIO(gsm_wav(tone(8000, 2.0)))) == pytest.approx(2.0, abs=0.05)


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
    data = encoded(rising()[None], 24_000, container, codec, rate)
    whole, damage = decoded(data), Damage()
    heard = np.concatenate(list(decode_pieces(io.BytesIO(damaged(data, 1)), 24_000, damage)))
    assert damage.packets or damage.seconds
    assert heard.size == pytest.approx(whole.size, abs=2400)
    middle = slice(60_000, 84_000)
    assert np.corrcoef(np.abs(heard[middle]), np.abs(whole[middle]))[0, 1] > 0.9


def rising(seconds: float = 4.0) -> FloatArray:
    """A tone that gets louder: its level tells the time."""
    ramp = np.linspace(0.1, 1.0, round(24_000 * seconds))
    return (tone(24_000, seconds) * ramp).astype(np.float32)


def damaged(data: bytes, seed: int) -> bytes:
    """A twentieth of a file, behind its first third, is noise."""
    start, size = len(data) // 3, len(data) // 20
    noise = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()
    return data[:start] + noise + data[start + size :]


@pytest.mark.parametrize(
    ("container", "codec", "rate", "options"),
    [
        *(("mp3", "libmp3lame", 24_000, {}), ("mp3", "libmp3lame", 44_100, {"write_xing": "0"})),
        ("webm", "libopus", 48_000, {"cluster_time_limit": "500"}),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_clock_of_a_recording_goes_on_behind_damage(
    container: str, codec: str, rate: int, options: dict[str, str], seed: int
) -> None:
    """Words behind it have the times of the recording: bytes or clusters tell how much is missing."""
    data = encoded(rising()[None], 24_000, container, codec, rate, options)
    whole, damage = decoded(data), Damage()
    heard = np.concatenate(list(decode_pieces(io.BytesIO(damaged(data, seed)), 24_000, damage)))
    assert 0.1 < damage.seconds < 1.2
    assert damage.rest_s == 0.0
    assert heard.size == pytest.approx(whole.size, abs=1200)
    there, wanted = (np.mean(pcm[60_000:84_000].reshape(20, -1) ** 2, axis=1) for pcm in (heard, whole))
    np.testing.assert_allclose(there, wanted, rtol=0.06)  # 50 ms are 2 % of the level there


@pytest.mark.parametrize(("options", "late_s"), [({}, 0.0), ({"write_xing": "0"}, 0.047)])
def test_the_time_of_an_mp3_is_without_the_delay_that_its_header_states(
    options: dict[str, str], late_s: float
) -> None:
    click = np.zeros(48_000, np.float32)
    click[24_000:24_240] = tone(24_000, 0.01)
    heard = decoded(encoded(click[None], 24_000, "mp3", "libmp3lame", None, options))
    assert float(np.abs(heard).argmax() / 24_000 - 1.0) == pytest.approx(late_s, abs=0.011)


def test_the_end_of_a_webm_that_cannot_be_reached_is_counted() -> None:
    data = encoded(rising()[None], 24_000, "webm", "libopus", 48_000)
    for piece, rest_s in ((data, 0.0), (damaged(data, 1), 2.5)):
        damage = Damage()
        for _ in decode_pieces(io.BytesIO(piece), 24_000, damage):
            pass
        assert damage.rest_s == pytest.approx(rest_s, abs=0.5)
        assert bool(damage) == bool(rest_s)


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
