"""Recordings of common formats decode to the original sound."""

from __future__ import annotations

import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from antiphon.audio.codecs import make_encoder
from antiphon.audio.files import read_audio
from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.audio.wav import write_wav
from antiphon.errors import AudioError
from tests.audio.signals import speech

SAID = speech(1.6)


def write_with_av(path: Path, codec: str, pcm: FloatArray, rate: int, channels: int) -> None:
    layout = "mono" if channels == 1 else "stereo"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.tile(pcm, (channels, 1)), format="fltp", layout=layout)
        frame.sample_rate = rate
        frame.time_base = Fraction(1, rate)
        frame.pts = 0
        for part in av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate).resample(
            frame
        ):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


def assert_is_said(pcm: FloatArray, *, lag: int = 0) -> None:
    """Aligned to the sample, and as close as a lossy codec comes."""
    assert pcm.dtype == np.float32
    common = min(pcm.size - lag, SAID.size)
    assert common > 0.95 * SAID.size
    assert np.corrcoef(pcm[lag : lag + common], SAID[:common])[0, 1] > 0.95


def test_wav_at_24_khz_is_exact(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", SAID, 24_000, is_float=True)
    np.testing.assert_array_equal(read_audio(tmp_path / "a.wav"), SAID)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_any_rate_comes_out_at_24_khz_with_its_time_kept(tmp_path: Path, rate: int) -> None:
    time_s = np.arange(rate) / rate
    write_wav(
        tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 440 * time_s).astype(np.float32), rate, is_float=True
    )
    pcm = read_audio(tmp_path / "a.wav")
    assert pcm.size == 24_000
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    np.testing.assert_allclose(pcm[600:-600], expected[600:-600], atol=1e-4)


def test_another_rate_can_be_asked_for(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", SAID, 24_000)
    assert read_audio(tmp_path / "a.wav", 16_000).size == SAID.size * 2 // 3


@pytest.mark.parametrize("channels", [1, 2])
def test_flac(tmp_path: Path, channels: int) -> None:
    write_with_av(tmp_path / "a.flac", "flac", SAID, 24_000, channels)
    np.testing.assert_allclose(read_audio(tmp_path / "a.flac"), SAID, atol=1e-4)


@pytest.mark.parametrize("other", [np.zeros_like(SAID), SAID], ids=["silent", "equal"])
def test_a_silent_channel_takes_nothing_and_an_equal_one_adds_nothing(
    tmp_path: Path, other: FloatArray
) -> None:
    stereo = np.stack((SAID, other), axis=1)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((2, 2, 24_000, 0, "NONE", ""))
        file.writeframes(s16le_from_float(stereo.reshape(-1)))
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), SAID, atol=1 / 32768)


def test_mp3(tmp_path: Path) -> None:
    write_with_av(tmp_path / "a.mp3", "libmp3lame", SAID, 24_000, 1)
    pcm = read_audio(tmp_path / "a.mp3")
    lags = np.correlate(pcm[:12_000], SAID[:6_000], "valid")
    assert_is_said(pcm, lag=int(np.argmax(lags)))


def test_opus_in_ogg_starts_after_its_pre_skip(tmp_path: Path) -> None:
    encoder = make_encoder("ogg")
    messages = [payload for frame in np.split(SAID, 20) for payload in encoder.encode(frame)]
    (tmp_path / "a.ogg").write_bytes(b"".join(messages + encoder.finish()))
    assert_is_said(read_audio(tmp_path / "a.ogg"))


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.wav", b""), ("a.wav", b"RIFF1234WAVEfmt junkjunk" * 10), ("a.ogg", b"OggS" + bytes(60))],
)
def test_what_is_no_audio_is_refused_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AudioError, match=f"{name} is not audio that can be read"):
        read_audio(tmp_path / name)


def test_opus_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.opus").write_bytes(b"OggS" + bytes(24) + b"OpusHead" + bytes(11))
    with pytest.raises(AudioError, match=r"a\.opus is not audio that can be read"):
        read_audio(tmp_path / "a.opus")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"nothing\.wav cannot be read: No such file"):
        read_audio(tmp_path / "nothing.wav")
    with pytest.raises(AudioError, match="cannot be read: Is a directory"):
        read_audio(tmp_path)


def test_samples_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", SAID, 24_000, is_float=True)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[-4:] = np.array([np.nan], "<f4").tobytes()
    (tmp_path / "a.wav").write_bytes(bytes(data))
    with pytest.raises(AudioError, match=r"a\.wav is not audio .* samples that are not finite"):
        read_audio(tmp_path / "a.wav")
