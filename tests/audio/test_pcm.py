"""Samples keep their values through encoding, and invalid samples are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from antiphon.audio.pcm import (
    FloatArray,
    f32le_from_float,
    float_from_f32le,
    float_from_s16le,
    limited,
    s16le_from_float,
)
from antiphon.errors import AudioError

pcm = nps.arrays(np.float32, st.integers(0, 40), elements=st.floats(-3, 3, width=32))


@given(st.lists(st.integers(-32768, 32767)))
def test_s16_survives_being_float(samples: list[int]) -> None:
    data = np.array(samples, "<i2").tobytes()
    assert s16le_from_float(float_from_s16le(data)) == data


@given(pcm)
def test_s16_is_the_nearest_there_is(samples: FloatArray) -> None:
    back = float_from_s16le(s16le_from_float(samples))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, np.clip(samples, -1, 32767 / 32768), atol=0.5 / 32768)


@given(pcm)
def test_f32_is_exact_within_full_scale(samples: FloatArray) -> None:
    clipped = np.clip(samples, -1, 1)
    np.testing.assert_array_equal(float_from_f32le(f32le_from_float(samples)), clipped)
    np.testing.assert_array_equal(float_from_f32le(samples.astype("<f4").tobytes()), clipped)
    np.testing.assert_array_equal(limited(samples), clipped)


@given(st.binary())
def test_any_bytes_are_samples_or_an_audio_error(data: bytes) -> None:
    for read, size in ((float_from_s16le, 2), (float_from_f32le, 4)):
        try:
            samples = read(data)
        except AudioError:
            continue
        assert samples.size * size == len(data)
        assert np.abs(samples).max(initial=0) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("write", [s16le_from_float, f32le_from_float, limited])
def test_a_sample_that_is_not_finite_is_refused(bad: float, write: Callable[[FloatArray], object]) -> None:
    samples = np.array([0, 2, bad, 0.5], np.float32)
    with pytest.raises(AudioError, match=r"sample 2 of 4 is (nan|inf|-inf), it must be finite"):
        write(samples)
    with pytest.raises(AudioError, match="sample 2 of 4"):
        float_from_f32le(samples.tobytes())


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(AudioError, match="3 bytes are no whole number of s16le samples of 2 bytes"):
        float_from_s16le(bytes(3))
    with pytest.raises(AudioError, match="6 bytes are no whole number of f32le samples of 4 bytes"):
        float_from_f32le(bytes(6))


def test_samples_within_full_scale_are_not_copied() -> None:
    samples = np.array([-1, 0, 1], np.float32)
    assert limited(samples) is samples
