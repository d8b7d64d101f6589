"""A word ends with its sound at any level, noise and block size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.arrays import FloatArray
from antiphon.audio.word_ends import BLOCK_S, LONGEST_S, WordEnds

RATE = 24_000


def recording(*parts: tuple[float, float], noise: float = 0.0) -> FloatArray:
    """Tones of so many seconds and amplitudes, one after the other, over noise."""
    levels = np.concatenate([np.full(round(seconds * RATE), level) for seconds, level in parts])
    tone = np.sin(2 * np.pi * 220 * np.arange(levels.size) / RATE)
    hiss = np.random.default_rng(0).uniform(-noise, noise, levels.size)
    pcm: FloatArray = (levels * tone + hiss).astype(np.float32)
    return pcm


def ends_of(pcm: FloatArray, piece: int = RATE) -> WordEnds:
    ends = WordEnds(RATE)
    for start in range(0, pcm.size, piece):
        ends.feed(pcm[start : start + piece])
    return ends


@settings(max_examples=30)
@given(
    st.floats(0.2, 1.5),
    st.floats(0.25, 3.0),
    st.floats(0.001, 0.9),
    st.floats(-0.1, 0.08),
    st.integers(1000, 50_000),
)
def test_a_word_before_a_pause_ends_with_its_sound(
    word_s: float, pause_s: float, level: float, early_s: float, piece: int
) -> None:
    pcm = recording((1.0, 0.0), (word_s, level), (pause_s, 0.0), (0.5, level), noise=level / 100)
    start_s, next_s = 1.0 + early_s, 1.0 + word_s + pause_s
    end_s = ends_of(pcm, piece).end_of(start_s, next_s)
    assert end_s == pytest.approx(1.0 + word_s, abs=2 * BLOCK_S)


def test_a_word_that_runs_into_the_next_ends_there() -> None:
    pcm = recording((0.5, 0.3), (0.1, 0.0), (0.5, 0.3))  # a stop is no end
    assert ends_of(pcm).end_of(0.0, 0.9) == 0.9


def test_the_end_of_the_word_before_is_no_end() -> None:
    pcm = recording((0.06, 0.5), (0.2, 0.0), (0.4, 0.3), (3.0, 0.0))
    assert ends_of(pcm).end_of(0.0, 3.8) == pytest.approx(0.66, abs=BLOCK_S)


@settings(max_examples=30)
@given(st.floats(0.2, 0.8), st.floats(0.25, 0.6), st.floats(0.01, 0.9), st.floats(0.0, 0.4))
def test_a_slam_behind_a_pause_moves_no_end(
    word_s: float, pause_s: float, level: float, early_s: float
) -> None:
    pcm = recording((1.0, 0.0), (word_s, level), (pause_s, 0.0), (0.1, 0.95), (1.0, 0.0))
    assert ends_of(pcm).end_of(1.0 - early_s, 4.0) == pytest.approx(1.0 + word_s, abs=2 * BLOCK_S)


def test_before_noise_without_a_pause_a_word_is_no_longer_than_words_are() -> None:
    noise = np.random.default_rng(1).uniform(-0.3, 0.3, 20 * RATE).astype(np.float32)
    assert ends_of(noise).end_of(1.0, 16.0) == 1.0 + LONGEST_S
    assert ends_of(np.zeros_like(noise)).end_of(1.0, 16.0) == 1.0 + LONGEST_S


@pytest.mark.parametrize(("start_s", "next_s"), [(5.0, 4.0), (0.0, 0.0), (100.0, 200.0), (0.95, 1.0)])
def test_a_word_ends_after_it_began(start_s: float, next_s: float) -> None:
    end_s = ends_of(recording((1.0, 0.5))).end_of(start_s, next_s)
    assert start_s <= end_s <= max(start_s, min(next_s, start_s + LONGEST_S))
