"""The Opus encoder and decoder, compared with each other and sphn, and with invalid input."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.libopus import error_text, find_libopus, load_libopus
from antiphon.audio.opus import (
    MAX_PACKET_BYTES,
    PACKET_MS,
    SAMPLE_RATE,
    Application,
    OpusDecoder,
    OpusEncoder,
)
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError
from tests.audio.signals import speech

SIZES = [SAMPLE_RATE * milliseconds // 1000 for milliseconds in PACKET_MS]


def through(pcm: FloatArray, samples: int) -> FloatArray:
    with OpusEncoder() as encoder, OpusDecoder() as decoder:
        parts = [
            decoder.decode(encoder.encode(part)) for part in np.split(pcm, range(samples, pcm.size, samples))
        ]
        return np.concatenate(parts)[encoder.lookahead_samples :]


@pytest.mark.parametrize("samples", SIZES)
def test_speech_comes_back_as_it_was_said(samples: int) -> None:
    said = speech(1.92)
    heard = through(said, samples)
    error = heard - said[: heard.size]
    assert heard.dtype == np.float32
    assert 10 * np.log10(np.square(said).mean() / np.square(error).mean()) > 8


@pytest.mark.parametrize("samples", SIZES)
def test_a_packet_says_its_own_length(samples: int) -> None:
    with OpusEncoder() as encoder, OpusDecoder() as decoder:
        for _ in range(3):
            packet = encoder.encode(np.zeros(samples, np.float32))
            assert len(packet) <= MAX_PACKET_BYTES
            assert decoder.decode(packet).shape == (samples,)


def test_decoded_audio_belongs_to_the_caller() -> None:
    with OpusEncoder() as encoder, OpusDecoder() as decoder:
        first = decoder.decode(encoder.encode(speech(0.08)))
        kept = first.copy()
        decoder.decode(encoder.encode(speech(0.08, seed=1)))
        np.testing.assert_array_equal(first, kept)


def test_same_input_same_packets() -> None:
    parts = np.split(speech(0.8), 10)
    with OpusEncoder() as one, OpusEncoder() as other:
        assert [one.encode(part) for part in parts] == [other.encode(part) for part in parts]


@pytest.mark.parametrize("samples", [0, 1, 479, 481, 1440, 2400])
def test_other_lengths_are_refused(samples: int) -> None:
    with (
        OpusEncoder() as encoder,
        pytest.raises(AudioError, match=f"{samples} samples make no packet, 480, 960, 1920 do"),
    ):
        encoder.encode(np.zeros(samples, np.float32))


def test_samples_are_clipped_and_must_be_finite() -> None:
    loud = 9 * speech(0.08)
    with OpusEncoder() as one, OpusEncoder() as other:
        assert one.encode(loud) == other.encode(np.clip(loud, -1, 1))
        loud[7] = np.nan
        with pytest.raises(AudioError, match="sample 7 of 1920 is nan"):
            one.encode(loud)
        assert one.encode(speech(0.08)) == other.encode(speech(0.08))


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_any_bytes_are_audio_or_an_audio_error_and_the_decoder_goes_on(packets: list[bytes]) -> None:
    with OpusEncoder() as encoder, OpusDecoder() as decoder:
        for packet in packets:
            try:
                pcm = decoder.decode(packet)
            except AudioError:
                continue
            assert 0 < pcm.size <= SAMPLE_RATE * 120 // 1000
            assert np.isfinite(pcm).all()
        for part in np.split(speech(0.32), 4):
            pcm = decoder.decode(encoder.encode(part))
        assert pcm.shape == (1920,)
        assert np.isfinite(pcm).all()


def test_a_malformed_packet_is_told_in_the_words_of_libopus() -> None:
    with OpusDecoder() as decoder:
        with pytest.raises(
            AudioError, match=r"decoding a packet of 2 bytes: corrupted stream \(libopus error -4\)"
        ):
            decoder.decode(b"\xff\xff")
        with pytest.raises(AudioError, match="an Opus packet of 0 bytes"):
            decoder.decode(b"")


def test_values_that_libopus_refuses_are_named() -> None:
    with pytest.raises(AudioError, match=r"an encoder at 44100 Hz: invalid argument \(libopus error -1\)"):
        OpusEncoder(44_100)
    with pytest.raises(AudioError, match=r"a decoder at 44100 Hz: invalid argument"):
        OpusDecoder(44_100)
    with pytest.raises(AudioError, match=r"a complexity of 11: invalid argument"):
        OpusEncoder(complexity=11)
    with pytest.raises(AudioError, match=r"a bitrate of -7: invalid argument"):
        OpusEncoder(bitrate=-7)


@pytest.mark.parametrize("application", Application)
def test_settings_take_effect(application: Application) -> None:
    parts = np.split(speech(1.6), 20)
    sizes = []
    for bitrate in (16_000, 64_000):
        with OpusEncoder(application=application, bitrate=bitrate) as encoder:
            sizes.append(sum(len(encoder.encode(part)) for part in parts))
            assert encoder.lookahead_samples == (60 if application is Application.LOW_DELAY else 156)
    assert sizes[0] < 1.5 * 16_000 / 8 * 1.6 < sizes[1] < 1.2 * 64_000 / 8 * 1.6


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The native objects that are destroyed, of those that are made from now on."""
    library, handles = load_libopus(), list[int]()

    def noted(destroy: Callable[[int], None], handle: int) -> None:
        handles.append(handle)
        destroy(handle)

    for name in ("opus_encoder_destroy", "opus_decoder_destroy"):
        monkeypatch.setattr(library, name, partial(noted, getattr(library, name)))
    return handles


def test_closing_frees_the_native_object_once_and_using_it_afterwards_is_an_error(freed: list[int]) -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    for count, native in enumerate((encoder, decoder), start=1):
        native.close()
        assert len(freed) == count
        native.close()
    assert len(freed) == 2
    with pytest.raises(AudioError, match="this OpusEncoder was closed"):
        encoder.encode(np.zeros(480, np.float32))
    with pytest.raises(AudioError, match="this OpusDecoder was closed"):
        decoder.decode(b"\xfc\x00")


def test_a_forgotten_object_frees_its_native_one(freed: list[int]) -> None:
    encoder = OpusEncoder()
    forgotten = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert forgotten() is None
    assert len(freed) == 1


def test_different_encoders_on_different_threads_do_not_disturb_each_other() -> None:
    def packets(seed: int) -> list[bytes]:
        with OpusEncoder() as encoder, OpusDecoder() as decoder:
            encoded = [encoder.encode(part) for part in np.split(speech(1.6, seed), 20)]
            return encoded + [decoder.decode(packet).tobytes() for packet in encoded]

    alone = [packets(seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(packets, range(6))) == alone


def test_the_interpreter_runs_on_while_libopus_encodes() -> None:
    """No thread is told to switch here, so another moves only where the encoder lets go of the lock."""
    parts = np.split(speech(1.6), 20)
    started, done = threading.Event(), threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            started.set()
            time.sleep(0)

    interval_s = sys.getswitchinterval()
    counter = threading.Thread(target=count)
    with OpusEncoder(application=Application.SPEECH, complexity=10) as encoder:
        sys.setswitchinterval(3600)
        try:
            counter.start()
            started.wait()
            before = turns
            for part in parts:
                encoder.encode(part)
            during = turns - before
        finally:
            done.set()
            counter.join()
            sys.setswitchinterval(interval_s)
    assert during > len(parts)


def test_libopus_is_found_beside_av_else_in_the_system(tmp_path: Path) -> None:
    av = tmp_path / "av"
    av.mkdir()
    with pytest.raises(AudioError, match="no libopus: the Python package 'av' contains it"):
        find_libopus(av, lambda name: None)
    with pytest.raises(AudioError, match="apt install libopus0, brew install opus"):
        find_libopus(None, lambda name: None)
    assert find_libopus(av, lambda name: f"lib{name}.so.0") == "libopus.so.0"
    for folder, name in (
        (av / ".dylibs", "libopus.0.dylib"),
        (tmp_path / "av.libs", "libopus-114e2b1a.so.0.11.1"),
    ):
        folder.mkdir()
        (folder / "libopusfile.so").touch()
        (folder / "libavcodec-5e6b81c2.so.62").touch()
        assert find_libopus(av, lambda name: "system") != str(folder / name)
        (folder / name).touch()
        assert find_libopus(av, lambda name: "system") == str(folder / name)


def test_the_library_of_the_av_wheel_is_the_one_in_use() -> None:
    library = load_libopus()
    assert load_libopus() is library
    assert isinstance(library, ctypes.CDLL)
    assert library.opus_get_version_string().startswith(b"libopus 1.")
    assert error_text(library, -4) == "corrupted stream (libopus error -4)"
