"""STOI compared with its reference implementation, SI-SDR with its definition."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pystoi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_quantize.gate_sound import STOI_RATE, mel_distance_db, resample, si_sdr, stoi

Floats = NDArray[np.float64]


def babble(seconds: float, rate: int, seed: int = 0) -> Floats:
    """Noise shaped like speech: falling with frequency, in syllables, with pauses."""
    random = np.random.default_rng(seed)
    count = int(seconds * rate)
    spectrum = np.fft.rfft(random.standard_normal(count))
    spectrum *= 1 / (1 + np.fft.rfftfreq(count, 1 / rate) / 500)
    when = np.arange(count) / rate
    loudness = np.clip(np.sin(2 * math.pi * 2.3 * when), 0, 1) * (np.sin(2 * math.pi * 0.31 * when) > -0.5)
    noise: Floats = np.fft.irfft(spectrum, count) * loudness
    return noise


@pytest.mark.parametrize("rate", [10_000, 16_000, 24_000])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_stoi_is_that_of_the_reference(rate: int, noise: float) -> None:
    clean = babble(4, rate)
    other = clean + noise * np.random.default_rng(1).standard_normal(len(clean))
    assert stoi(clean, other, rate) == pytest.approx(pystoi.stoi(clean, other, rate), abs=1e-6)


def test_stoi_of_the_same_recording_is_one_at_any_loudness() -> None:
    clean = babble(3, 24_000)
    assert stoi(clean, clean, 24_000) == pytest.approx(1, abs=1e-9)
    assert stoi(clean, (clean * 0.01).astype(np.float32), 24_000) == pytest.approx(1, abs=1e-6)


def test_stoi_falls_with_noise_and_is_near_zero_for_another_speaker() -> None:
    clean, noise = babble(4, 16_000), np.random.default_rng(1).standard_normal(64_000)
    found = [stoi(clean, clean + level * noise, 16_000) for level in (0.003, 0.03, 0.3, 3)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.95
    assert found[-1] < 0.5


@settings(deadline=None, max_examples=30)
@given(st.floats(-40, 60), st.floats(0.01, 100), st.integers(0, 1000))
def test_si_sdr_is_the_ratio_it_was_made_with_whatever_the_scale(
    ratio_db: float, scale: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    clean, noise = random.standard_normal((2, 4000))
    noise -= clean * (noise @ clean) / (clean @ clean)
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) * 10 ** (-ratio_db / 20)
    assert si_sdr(clean, scale * (clean + noise)) == pytest.approx(ratio_db, abs=1e-6)


def test_si_sdr_at_the_ends() -> None:
    clean = babble(0.1, 16_000)
    assert si_sdr(clean, clean) == math.inf
    assert si_sdr(clean, np.zeros_like(clean)) == -math.inf


@pytest.mark.parametrize(("source", "target"), [(24_000, 10_000), (8_000, 10_000), (10_000, 10_000)])
def test_a_tone_survives_resampling(source: int, target: int) -> None:
    tone = np.sin(2 * math.pi * 440 * np.arange(source) / source)
    wanted = np.sin(2 * math.pi * 440 * np.arange(target) / target)
    found = resample(tone, source, target)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted)[500:-500].max() < 2e-3


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    clean = babble(3, STOI_RATE)
    with pytest.raises(ValueError, match=r"shapes \(30000,\) and \(29999,\)"):
        si_sdr(clean, clean[1:])
    with pytest.raises(ValueError, match=r"shapes \(2, 5\) and \(2, 5\)"):
        stoi(np.ones((2, 5)), np.ones((2, 5)), STOI_RATE)
    with pytest.raises(ValueError, match="the clean recording is silent"):
        si_sdr(np.zeros(10), np.ones(10))
    with pytest.raises(ValueError, match=r"frames that are not silent; 30 are needed"):
        stoi(clean[3000:5000], clean[3000:5000], STOI_RATE)
    with pytest.raises(ValueError, match="200 samples at 10000 Hz are less than a frame of 256"):
        stoi(clean[:200], clean[:200], STOI_RATE)


def test_mel_distance_is_the_gain_between_two_levels_and_none_to_oneself() -> None:
    clean = np.random.default_rng(0).standard_normal(24_000)
    assert mel_distance_db(clean, clean, 24_000) == 0
    assert mel_distance_db(clean, 2 * clean, 24_000) == pytest.approx(20 * math.log10(2))
    assert mel_distance_db(clean, clean + 0.1 * clean[::-1], 24_000) < 2


def test_what_is_far_below_the_loudest_counts_as_silence() -> None:
    clean = np.concatenate([np.random.default_rng(0).standard_normal(12_000), np.zeros(12_000)])
    faint = clean + np.concatenate([np.zeros(13_024), np.full(10_976, 1e-6)])
    assert mel_distance_db(clean, faint, 24_000) == 0
    with pytest.raises(ValueError, match="the clean recording is silent: there is no distance to it"):
        mel_distance_db(np.zeros(2000), np.ones(2000), 24_000)
    with pytest.raises(ValueError, match="1000 samples are less than a frame of 1024"):
        mel_distance_db(np.ones(1000), np.ones(1000), 24_000)
