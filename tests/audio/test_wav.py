"""WAV files of every kind, ours and others'."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import sphn
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.wav import decode_wav, encode_wav, read_wav, write_wav
from antiphon.errors import AudioError
from tests.audio.signals import speech

PCM = speech(0.1)


@pytest.mark.parametrize("is_float", [False, True])
def test_what_is_written_is_read(tmp_path: Path, is_float: bool) -> None:
    write_wav(tmp_path / "a.wav", PCM, 24_000, is_float=is_float)
    pcm, rate = read_wav(tmp_path / "a.wav")
    assert rate == 24_000
    assert pcm.shape == (1, PCM.size)
    np.testing.assert_allclose(pcm[0], PCM, atol=0 if is_float else 0.5 / 32768)
    theirs, their_rate = sphn.read(str(tmp_path / "a.wav"))
    assert their_rate == rate
    np.testing.assert_allclose(theirs, pcm, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_integers_of_every_width_are_read(tmp_path: Path, width: int, channels: int) -> None:
    values = np.random.default_rng(width).integers(
        -(2 ** (8 * width - 1)), 2 ** (8 * width - 1), (50, channels)
    )
    shift = 128 if width == 1 else 0
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((channels, width, 8000, 0, "NONE", ""))
        raw = b"".join(
            int(value + shift).to_bytes(width, "little", signed=width > 1) for value in values.reshape(-1)
        )
        file.writeframes(raw)
    pcm, rate = read_wav(tmp_path / "a.wav")
    assert rate == 8000
    np.testing.assert_allclose(pcm, values.T / 2 ** (8 * width - 1), atol=1e-7)


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def wav(form: bytes, data: bytes, *, between: bytes = b"") -> bytes:
    return chunk(b"RIFF", b"WAVE" + chunk(b"fmt ", form) + between + chunk(b"data", data))


def test_doubles_extensible_headers_and_other_chunks_are_understood() -> None:
    samples = np.array([0.5, -0.25, 0.125, 0.0])
    form = struct.pack("<HHIIHH", 3, 2, 48_000, 0, 16, 64)
    pcm, rate = decode_wav(wav(form, samples.tobytes(), between=chunk(b"LIST", b"odd")))
    assert rate == 48_000
    assert pcm.tolist() == [[0.5, 0.125], [-0.25, 0.0]]
    extensible = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, 24_000, 0, 2, 16, 22, 16, 4, 1, bytes(14))
    assert decode_wav(wav(extensible, b"\x00\x40"))[0].tolist() == [[0.5]]


def test_a_cut_off_file_gives_what_is_there() -> None:
    whole = encode_wav(PCM, 24_000)
    assert decode_wav(whole[:-3])[0].shape == (1, PCM.size - 2)


@given(
    st.binary(max_size=60)
    | st.builds(lambda form, data: wav(form, data), st.binary(max_size=40), st.binary(max_size=40))
    | st.builds(
        lambda code, channels, bits, data: wav(
            struct.pack("<HHIIHH", code, channels, 8000, 0, 0, bits), data
        ),
        st.sampled_from([1, 3, 7, 0xFFFE]),
        st.integers(0, 3),
        st.sampled_from([0, 4, 8, 16, 24, 32, 64]),
        st.binary(max_size=40),
    )
)
def test_any_bytes_are_a_wav_file_or_an_audio_error(data: bytes) -> None:
    try:
        pcm, rate = decode_wav(data)
    except AudioError:
        return
    assert pcm.ndim == 2
    assert rate > 0
    assert np.isfinite(pcm).all()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"OggS and so on", "no WAV file: it begins with b'OggS and so '"),
        (chunk(b"RIFF", b"WAVE"), "without a format chunk"),
        (
            chunk(b"RIFF", b"WAVE" + chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 1, 0, 0, 8))),
            "without a data chunk",
        ),
        (wav(b"abc", b""), "a format chunk of 3 bytes, 16 are needed"),
        (
            wav(struct.pack("<HHIIHH", 7, 1, 8000, 0, 0, 8), b""),
            "samples of kind 7 with 8 bits, 1 channels at 8000 Hz are not known",
        ),
        (
            wav(struct.pack("<HHIIHH", 3, 1, 8000, 0, 0, 32), struct.pack("<f", np.nan)),
            "one of 1 samples is not finite",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(data)
    with pytest.raises(AudioError) as refused:
        read_wav(file)
    assert says in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"nothing\.wav cannot be read: No such file"):
        read_wav(tmp_path / "nothing.wav")
