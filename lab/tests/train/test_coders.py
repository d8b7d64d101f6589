"""Real coders keep the length and timing of speech, and keep it recognisable."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.arrays import FloatArray
from lab.train import held_out
from lab.train.augment import LONGEST_DELAY_SAMPLES, SAMPLE_RATE, in_time
from lab.train.coders import NARROW, WIDE, Coder
from lab.train.surroundings import CALM_SHARE, LINES, Surroundings, box_response, by_telephone


def speechlike() -> FloatArray:
    """A second and a half of a buzz of 140 Hz in six bursts of noisy loudness, [36000]."""
    rng, at = np.random.default_rng(0), np.arange(36_000) / SAMPLE_RATE
    buzz = np.sum([np.sin(2 * np.pi * 140 * n * at) / n for n in range(1, 20)], axis=0)
    loudness = np.interp(at, np.arange(0, 1.6, 0.05), rng.uniform(0, 1, 32) * ([0, 1, 1, 1, 0] * 7)[:32])
    pcm: FloatArray = (0.1 * buzz * loudness).astype(np.float32)
    return pcm


def envelope(pcm: FloatArray) -> FloatArray:
    smooth: FloatArray = np.sqrt(np.convolve(pcm**2, np.ones(480) / 480, "same"))
    return smooth


@pytest.mark.parametrize("coder", NARROW + WIDE, ids=lambda coder: coder.name)
def test_a_coder_keeps_length_time_and_loudness_and_changes_the_sound(coder: Coder) -> None:
    pcm = speechlike()
    heard = coder.through(np.random.default_rng(1), pcm)
    assert heard.shape == pcm.shape
    assert heard.dtype == np.float32
    assert np.corrcoef(envelope(heard), envelope(pcm))[0, 1] > 0.9
    assert heard.std() / pcm.std() == pytest.approx(1, abs=0.3)
    assert np.abs(heard - pcm).max() > 0.001
    assert not [line for line in held_out.LINES if line in coder.name]


@pytest.mark.parametrize("coder", NARROW + WIDE, ids=lambda coder: coder.name)
def test_silence_stays_silence(coder: Coder) -> None:
    heard = coder.through(np.random.default_rng(1), np.zeros(9_600, np.float32))
    assert heard.shape == (9_600,)
    assert np.abs(heard).max() < 0.01


def test_fewer_bits_cost_more() -> None:
    pcm, rng = speechlike(), np.random.default_rng(1)
    lost = [
        float(np.square(Coder("libmp3lame", 24_000, "fltp", (bits,)).through(rng, pcm) - pcm).mean())
        for bits in (16_000, 64_000)
    ]
    assert lost[0] > 2 * lost[1]


@pytest.mark.parametrize("delay", [0, 777, LONGEST_DELAY_SAMPLES - 1])
def test_a_delay_is_taken_out(delay: int) -> None:
    pcm = speechlike()
    late = np.pad(pcm, (delay, 50)).astype(np.float32)
    assert np.array_equal(in_time(late, pcm), pcm)
    assert np.array_equal(in_time(late[: pcm.size], pcm)[: pcm.size - delay], pcm[: pcm.size - delay])


def test_a_telephone_is_no_later_than_what_it_is_told() -> None:
    pcm = speechlike()
    heard = by_telephone(np.random.default_rng(0), pcm)
    lags = range(-2400, 2400, 4)
    assert lags[int(np.argmax([float(np.roll(heard, -lag) @ pcm) for lag in lags]))] == 0


def test_a_room_is_heard_after_the_mouth_itself() -> None:
    rng = np.random.default_rng(0)
    for size_m in ((1.4, 1.5, 2.1), (2.5, 2.5, 10.0), (18.0, 12.0, 7.0)):
        response = box_response(size_m, 0.3, rng)
        assert response[0] >= 1
        assert np.count_nonzero(response[1:]) > 100
        energy = np.cumsum(response[::-1] ** 2)[::-1]
        assert energy[9600] < 0.01 * energy[0], "after 0.4 s it has died down"


def test_some_scenes_of_training_have_another_level_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    drawn = [Surroundings.drawn(rng) for _ in range(500)]
    calm = [one for one in drawn if not one.kinds and one.behind_db is None]
    assert len(calm) / 500 == pytest.approx(CALM_SHARE + 0.7 * 0.4 * 0.65**2 * 0.8, abs=0.07)


@pytest.mark.parametrize("seed", [1, 2])  # clipped, and bent
def test_what_is_too_loud_is_bent_or_clipped_and_what_is_faint_is_neither(seed: int) -> None:
    pcm = speechlike()
    loud, faint = (
        LINES["too loud"](np.random.default_rng(seed), pcm * np.float32(gain)) for gain in (2, 0.01)
    )
    top = float(np.abs(loud).max())
    assert 0.07 <= top <= 0.31
    assert (np.mean(np.abs(loud) == top) > 0.01) == (seed == 1), "clipped sound stays at its top"
    assert faint == pytest.approx(0.01 * pcm, abs=1e-4)
