from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.audio.loudness import loudness_lufs, normalise
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError

RATE = 24000


def sine(frequency_hz: float, seconds: float = 2.0, level: float = 1.0, rate: int = RATE) -> FloatArray:
    time_s = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)


@pytest.mark.parametrize("rate", [24000, 48000])
def test_the_standards_own_tone(rate: int) -> None:
    """BS.1770-4: a full-scale sine of 997 Hz in one channel reads -3.01."""
    assert loudness_lufs(sine(997, rate=rate), rate) == pytest.approx(-3.01, abs=0.06)


def test_low_tones_count_less_and_high_tones_more() -> None:
    low, middle, high = (loudness_lufs(sine(hz), RATE) for hz in (20, 1000, 8000))
    assert low < middle - 10
    assert high == pytest.approx(middle + 3.3, abs=0.3)


def test_silence_between_words_does_not_count() -> None:
    speech = sine(997, level=0.1)
    assert loudness_lufs(np.concatenate([speech, np.zeros(10 * RATE, np.float32)]), RATE) == pytest.approx(
        loudness_lufs(speech, RATE), abs=0.6
    )


@settings(max_examples=20)
@given(level=st.floats(0.001, 1.0), target_lufs=st.floats(-40, -10), seed=st.integers(0, 99))
def test_what_is_normalised_is_as_loud_as_wanted(level: float, target_lufs: float, seed: int) -> None:
    pcm = (level * np.random.default_rng(seed).uniform(-1, 1, RATE)).astype(np.float32)
    out = normalise(pcm, RATE, target_lufs)
    assert out.dtype == np.float32
    assert loudness_lufs(out, RATE) == pytest.approx(target_lufs, abs=0.01)


def test_silence_and_scraps_have_no_loudness() -> None:
    assert loudness_lufs(np.zeros(RATE, np.float32), RATE) == -math.inf
    with pytest.raises(AudioError, match=r"1\.00 s of silence cannot be made as loud as -24 LUFS"):
        normalise(np.zeros(RATE, np.float32), RATE, -24.0)
    with pytest.raises(AudioError, match="9599 samples are too short for a loudness: 9600 are needed"):
        loudness_lufs(np.zeros(9599, np.float32), RATE)
