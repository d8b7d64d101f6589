from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.sampling import RowParameters, RowSampler, SamplingParameters, sample
from antiphon.models.spec import LMSpec

ROWS, VOCABULARY = 4, 32
SPEC = LMSpec(
    dim=8,
    num_layers=1,
    num_heads=1,
    context=8,
    n_q=2,
    dep_q=1,
    card=16,
    text_card=VOCABULARY,
    delays=(0, 0, 0),
)
ALL = np.arange(ROWS, dtype=np.int32)
STEPS = np.array([0, 5, 5, 2**40], dtype=np.int64)
GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)


@pytest.fixture
def logits() -> FloatArray:
    return np.random.default_rng(0).standard_normal((ROWS, VOCABULARY)).astype(np.float32)


def test_each_row_is_sampled_by_its_own_parameters(logits: FloatArray) -> None:
    sampler = RowSampler(SPEC, ROWS)
    asked = [
        SamplingParameters(
            text_temperature=2.0, text_topk=0, text_seed=1, audio_temperature=3.0, audio_seed=4
        ),
        SamplingParameters(text_temperature=0.5, text_topk=9, text_seed=2**64 - 1, audio_topk=3),
        GREEDY,
        SamplingParameters(pad_mult=3.0, text_seed=8, audio_temperature=1.5, audio_seed=2**63),
    ]
    for row, parameters in enumerate(asked):
        sampler.set_parameters(row, parameters)
    for row, p in enumerate(asked):
        alone, step = logits[row : row + 1], int(STEPS[row])
        text = sample(
            alone, temperature=p.text_temperature, topk=p.text_topk, seed=p.text_seed, step=step, stream=0,
            pad_id=3, pad_mult=p.pad_mult,
        )  # fmt: skip
        voice = sample(
            alone, temperature=p.audio_temperature, topk=p.audio_topk, seed=p.audio_seed, step=step, stream=6
        )
        assert sampler.text(ALL, logits, STEPS)[row] == text[0]
        assert sampler.voice(ALL, logits, STEPS, codebook=5)[row] == voice[0]


def test_the_noise_changes_with_the_step(logits: FloatArray) -> None:
    sampler = RowSampler(SPEC, ROWS)
    sampler.set_parameters(0, SamplingParameters(text_temperature=5.0, text_topk=0))
    tokens = {int(sampler.text(ALL, logits, STEPS + step)[0]) for step in range(20)}
    assert len(tokens) > 8


def test_rows_that_are_not_named_remember_nothing_and_order_is_the_callers(logits: FloatArray) -> None:
    sampler, other = RowSampler(SPEC, ROWS), RowSampler(SPEC, ROWS)
    rows = np.array([3, 1], np.int32)
    before = sampler.snapshot(0)["words"]
    tokens = sampler.text(rows, logits[rows], STEPS[rows])
    np.testing.assert_array_equal(tokens, other.text(ALL, logits, STEPS)[rows])
    np.testing.assert_array_equal(sampler.snapshot(0)["words"], before)
    assert sampler.snapshot(1)["words"][-1] == tokens[1]


def favour(*tokens: int) -> FloatArray:
    """Logits that make the given tokens the most likely, the first one most."""
    logits = np.full((ROWS, VOCABULARY), -1.0, dtype=np.float32)
    for place, token in enumerate(tokens):
        logits[:, token] = 10.0 - place
    return logits


def test_a_word_said_within_the_context_is_penalised() -> None:
    sampler = RowSampler(SPEC, ROWS)
    sampler.set_parameters(0, replace(GREEDY, repetition_penalty=1.5, repetition_penalty_context=2))
    sampler.set_parameters(1, replace(GREEDY, repetition_penalty=1.5, repetition_penalty_context=0))
    sampler.set_parameters(2, replace(GREEDY, repetition_penalty=1.0))
    said = [sampler.text(ALL, favour(7, 8, 9), STEPS).tolist() for _ in range(6)]
    assert [tokens[0] for tokens in said] == [7, 8, 9, 7, 8, 9]
    for row in (1, 2):
        assert [tokens[row] for tokens in said] == [7] * 6


def test_a_penalty_of_one_counts_no_words() -> None:
    """Else a GPU compares each token of the vocabulary with all remembered words, and changes nothing."""
    rows = RowParameters(2)
    rows.set(1, SamplingParameters(repetition_penalty=1.1, repetition_penalty_context=9))
    assert rows.integers[2, 0].tolist() == [0, 9]
    rows.set(1, SamplingParameters(repetition_penalty=1.0, repetition_penalty_context=9))
    assert rows.integers[2, 0].tolist() == [0, 0]


def test_padding_is_no_word() -> None:
    sampler = RowSampler(SPEC, ROWS)
    sampler.set_parameters(0, replace(GREEDY, repetition_penalty=1.5, repetition_penalty_context=1))
    a_word_and_paddings = [7, 3, 0, 3]
    said = [int(sampler.text(ALL, favour(token), STEPS)[0]) for token in a_word_and_paddings]
    assert said == a_word_and_paddings
    assert sampler.text(ALL, favour(7, 8), STEPS)[0] == 8


def test_a_reset_forgets_the_words_and_keeps_the_parameters() -> None:
    sampler = RowSampler(SPEC, ROWS)
    sampler.set_parameters(0, replace(GREEDY, repetition_penalty=1.5))
    assert sampler.text(ALL, favour(7, 8), STEPS)[0] == 7
    assert sampler.text(ALL, favour(7, 8), STEPS)[0] == 8
    sampler.reset([0])
    assert sampler.text(ALL, favour(7, 8), STEPS)[0] == 7
    assert sampler.text(ALL, favour(7, 8), STEPS)[0] == 8


def test_words_are_restored() -> None:
    sampler = RowSampler(SPEC, ROWS)
    for row in range(ROWS):
        sampler.set_parameters(row, replace(GREEDY, repetition_penalty=1.5))
    sampler.text(ALL[:1], favour(7, 8)[:1], STEPS[:1])
    sampler.restore(1, sampler.snapshot(0))
    assert sampler.text(ALL, favour(7, 8), STEPS).tolist() == [8, 8, 7, 7]


def test_a_longer_look_back_than_is_remembered_is_refused() -> None:
    sampler = RowSampler(SPEC, ROWS)
    with pytest.raises(UnsupportedError, match="penalty over 257 words, but only 256 are kept"):
        sampler.set_parameters(0, SamplingParameters(repetition_penalty_context=257))
