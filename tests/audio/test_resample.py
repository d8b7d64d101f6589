"""Tones keep frequency and time; frequencies above the new limit are removed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import Resampler, resample
from antiphon.errors import AudioError

RATES = [
    (44_100, 24_000),
    (48_000, 24_000),
    (24_000, 48_000),
    (16_000, 24_000),
    (8_000, 24_000),
    (24_000, 16_000),
    (24_000, 8_000),
    (24_000, 44_100),
]
EDGE = 600  # samples at either end where the tone begins and stops


def tone(hertz: float, rate: int, samples: int) -> FloatArray:
    return np.sin(2 * np.pi * hertz * np.arange(samples) / rate).astype(np.float32)


@pytest.mark.parametrize(("source", "target"), RATES)
@pytest.mark.parametrize("part", [0.05, 0.5, 0.88])
def test_a_tone_keeps_its_pitch_its_place_and_its_strength(source: int, target: int, part: float) -> None:
    hertz = part * min(source, target) / 2
    got = resample(tone(hertz, source, source // 2), source, target)
    np.testing.assert_allclose(got[EDGE:-EDGE], tone(hertz, target, got.size)[EDGE:-EDGE], atol=1e-4)


@pytest.mark.parametrize("hertz", [12_600, 16_000, 23_000])
def test_what_the_new_rate_cannot_hold_is_gone(hertz: int) -> None:
    got = resample(tone(hertz, 48_000, 24_000), 48_000, 24_000)
    assert np.abs(got[EDGE:-EDGE]).max() < 1e-4


@pytest.mark.parametrize("target", [8_000, 16_000])
def test_nothing_above_the_band_of_a_telephone_is_folded_into_it(target: int) -> None:
    for hertz in np.linspace(target / 2, 11_900, 25):
        got = resample(tone(hertz, 24_000, 12_000), 24_000, target)[EDGE:-EDGE]
        assert np.sqrt(2 * np.mean(got**2)) < 10 ** (-90 / 20), hertz


@pytest.mark.parametrize("source", [8_000, 16_000])
def test_the_band_of_a_telephone_has_no_image_above_it(source: int) -> None:
    samples, band = 3 * source // 10, source / 2
    for hertz in (0.5 * band, 0.88 * band, 0.95 * band):
        got = resample(tone(hertz, source, samples), source, 24_000)[EDGE:-EDGE]
        window = np.hanning(got.size)
        spectrum = np.abs(np.fft.rfft(got * window)) * 2 / window.sum()
        image = np.fft.rfftfreq(got.size, 1 / 24_000) > 2 * band - hertz - 0.02 * band
        assert spectrum[image].max() < 10 ** (-90 / 20), hertz


@pytest.mark.parametrize(("source", "target"), [(24_000, 8_000), (8_000, 24_000), (24_000, 16_000)])
def test_frames_join_without_a_click(source: int, target: int) -> None:
    hertz, frame = 700.0, source * 80 // 1000
    resampler = Resampler(source, target)
    frames = np.split(tone(hertz, source, 20 * frame), 20)
    got = np.concatenate([resampler.feed(part) for part in frames])[EDGE:]
    n = np.arange(EDGE, EDGE + got.size)
    np.testing.assert_allclose(got, np.sin(2 * np.pi * hertz * n / target), atol=1e-4)


@pytest.mark.parametrize(
    ("source", "target", "delay_ms"),
    [(24_000, 16_000, 3.21), (16_000, 24_000, 3.19), (24_000, 8_000, 6.38), (8_000, 24_000, 6.38)],
)
def test_the_delay_is_stated(source: int, target: int, delay_ms: float) -> None:
    resampler = Resampler(source, target)
    assert round(resampler.delay_s * 1000, 2) == delay_ms
    produced = resampler.feed(np.zeros(source, np.float32)).size
    assert abs(produced / target - (1.0 - resampler.delay_s)) <= 1 / target


@given(
    st.sampled_from([*RATES, (24_000, 24_000), (11_025, 24_000)]),
    st.integers(0, 700),
    st.lists(st.integers(0, 700)),
)
def test_portions_do_not_matter(rates: tuple[int, int], samples: int, cuts: list[int]) -> None:
    pcm = np.random.default_rng(samples).uniform(-1, 1, samples).astype(np.float32)
    whole = resample(pcm, *rates)
    resampler = Resampler(*rates)
    parts = [resampler.feed(part) for part in np.split(pcm, sorted(min(cut, samples) for cut in cuts))]
    got = np.concatenate((*parts, resampler.finish()))
    assert got.dtype == whole.dtype == np.float32
    assert whole.size == math.ceil(samples * rates[1] / rates[0])
    np.testing.assert_allclose(got, whole, atol=1e-6)


def test_output_follows_input_within_a_few_milliseconds() -> None:
    resampler = Resampler(48_000, 24_000)
    produced = 0
    for second in range(1, 20):
        produced += resampler.feed(np.zeros(960, np.float32)).size
        assert 0 <= second * 480 - produced <= 60


def test_a_constant_stays_itself() -> None:
    got = resample(np.full(4000, 0.5, np.float32), 44_100, 24_000)
    np.testing.assert_allclose(got[EDGE:-EDGE], 0.5, atol=1e-6)


def test_the_same_rate_changes_nothing() -> None:
    pcm = tone(1000, 24_000, 500)
    np.testing.assert_array_equal(resample(pcm, 24_000, 24_000), pcm)


@pytest.mark.parametrize("rates", [(3_999, 24_000), (24_000, 0), (384_001, 24_000)])
def test_rates_out_of_range_are_refused(rates: tuple[int, int]) -> None:
    with pytest.raises(AudioError, match=r"a rate of \d+ Hz is out of range: 4000 to 384000"):
        Resampler(*rates)
