"""The output gate: silence becomes zeros, speech is unchanged, edges do not click."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.gate import GateRules, OutputGate
from antiphon.audio.pcm import FloatArray

RATE, FRAME = 24_000, 1920
HISS: FloatArray = np.random.default_rng(0).normal(0, 10 ** (-70 / 20), FRAME).astype(np.float32)
VOICE: FloatArray = (0.1 * np.sin(2 * np.pi * 300 * np.arange(FRAME) / RATE)).astype(np.float32)
RAMP = RATE * 5 // 1000


def passed(gate: OutputGate, frames: list[FloatArray], texts: list[bool] | None = None) -> list[FloatArray]:
    says = texts or [False] * len(frames)
    return [gate.pass_frame(pcm, has_text=has_text) for pcm, has_text in zip(frames, says, strict=True)]


def test_faint_noise_is_exact_silence() -> None:
    heard = passed(OutputGate(RATE), [HISS] * 5)
    assert all(not frame.any() for frame in heard)
    assert all(frame.dtype == np.float32 and frame.shape == (FRAME,) for frame in heard)


def test_speech_opens_at_its_own_frame_and_is_what_it_was() -> None:
    first, second = passed(OutputGate(RATE), [VOICE, VOICE])
    np.testing.assert_array_equal(first[RAMP:], VOICE[RAMP:])
    np.testing.assert_array_equal(second, VOICE)
    assert np.abs(first[:RAMP]).max() <= np.abs(VOICE[:RAMP]).max()


def test_an_onset_in_the_last_block_of_a_frame_opens_it() -> None:
    onset = HISS.copy()
    onset[-240:] = 0.01
    (heard,) = passed(OutputGate(RATE), [onset])
    np.testing.assert_array_equal(heard[RAMP:], onset[RAMP:])


def test_text_opens_before_there_is_sound() -> None:
    first, second = passed(OutputGate(RATE), [HISS, HISS], [True, False])
    np.testing.assert_array_equal(first[RAMP:], HISS[RAMP:])
    np.testing.assert_array_equal(second, HISS)


def test_pauses_within_an_answer_are_held() -> None:
    pause = [HISS] * 5  # 400 ms
    heard = passed(OutputGate(RATE), [VOICE, *pause, VOICE])
    for got, sent in zip(heard[1:], [*pause, VOICE], strict=True):
        np.testing.assert_array_equal(got, sent)


def test_it_closes_after_the_hold_with_a_ramp_and_then_zeros() -> None:
    heard = passed(OutputGate(RATE), [VOICE, *[HISS] * 8])
    np.testing.assert_array_equal(heard[5], HISS)
    np.testing.assert_allclose(heard[6][:RAMP], HISS[:RAMP] * np.linspace(1, 0, RAMP), atol=1e-6)
    assert not heard[6][RAMP:].any()
    assert not heard[7].any()


def test_between_the_two_levels_it_stays_as_it_is() -> None:
    between = np.full(FRAME, 10 ** (-53 / 20), np.float32)
    gate = OutputGate(RATE)
    assert not passed(gate, [between])[0].any()
    assert all(frame.any() for frame in passed(gate, [VOICE, *[between] * 20]))


@pytest.mark.parametrize("samples", [0, 1, 100, 1920, 1921])
def test_frames_of_any_length_keep_it(samples: int) -> None:
    gate = OutputGate(RATE, GateRules())
    assert gate.pass_frame(np.ones(samples, np.float32), has_text=False).size == samples


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.0003, 0.002, 0.1]), st.booleans()), max_size=30))
def test_every_sample_is_its_own_or_fainter(frames: list[tuple[float, bool]]) -> None:
    gate = OutputGate(RATE)
    for level, has_text in frames:
        pcm = np.full(FRAME, level, np.float32)
        heard = gate.pass_frame(pcm, has_text=has_text)
        assert gate.is_open or not heard[RAMP:].any()
        assert (heard >= 0).all()
        assert (heard <= pcm).all()
        if has_text or level == 0.1:
            np.testing.assert_array_equal(heard[RAMP:], pcm[RAMP:])
