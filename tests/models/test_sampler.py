"""The row sampler: parameters by row, recent text, and state that moves with its row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon.errors import ConfigError
from antiphon.models.sampler import MAX_CONTEXT, RowSampler
from antiphon.models.sampling import SamplingParameters, sample
from antiphon.models.spec import LMSpec

TEXT_CARD, CARD = 8, 16
SPEC = LMSpec(8, 1, 1, 4, 2, 1, CARD, TEXT_CARD, (0, 0, 0))
GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)
LOUD = replace(GREEDY, repetition_penalty=1000.0)


def saying(*tokens: int) -> NDArray[np.float32]:
    """Logits under which each row would greedily say its token, and next best the ones after it."""
    order = (np.arange(TEXT_CARD)[None] - np.array(tokens)[:, None]) % TEXT_CARD
    logits: NDArray[np.float32] = (TEXT_CARD - order).astype(np.float32)
    return logits


def say(sampler: RowSampler, *tokens: int) -> list[int]:
    """Let row i say its token (or what the penalty leaves of it); return what was said."""
    everyone = np.ones(len(tokens), dtype=np.bool_)
    return list(sampler.text(saying(*tokens), np.zeros(len(tokens), dtype=np.int64), everyone))


def make(*parameters: SamplingParameters) -> RowSampler:
    sampler = RowSampler(SPEC, len(parameters))
    for row, given_parameters in enumerate(parameters):
        sampler.set_parameters(row, given_parameters)
    return sampler


def test_rows_use_their_own_parameters() -> None:
    rng = np.random.default_rng(1)
    text = rng.standard_normal((3, TEXT_CARD)).astype(np.float32)
    audio = rng.standard_normal((3, CARD)).astype(np.float32)
    rows = [
        SamplingParameters(text_seed=1, audio_seed=2, text_topk=4, audio_topk=5, pad_mult=1.0),
        GREEDY,
        SamplingParameters(text_seed=2**64 - 1, audio_seed=7, text_temperature=1.1, audio_temperature=0.3),
    ]
    sampler, step = make(*rows), np.array([0, 5, 2**33])
    everyone = np.ones(3, dtype=np.bool_)
    text_tokens, audio_tokens = sampler.text(text, step, everyone), sampler.audio(audio, 6, step, everyone)
    for row, asked in enumerate(rows):
        assert text_tokens[row] == sample(
            text[[row]], temperature=asked.text_temperature, topk=asked.text_topk, seed=asked.text_seed,
            step=step[row], stream=0, pad_id=3, pad_mult=asked.pad_mult,
        )[0]  # fmt: skip
        assert audio_tokens[row] == sample(
            audio[[row]], temperature=asked.audio_temperature, topk=asked.audio_topk, seed=asked.audio_seed,
            step=step[row], stream=7,
        )[0]  # fmt: skip


def test_what_was_said_is_penalised_until_it_leaves_the_context() -> None:
    sampler = make(replace(LOUD, repetition_penalty_context=2))
    assert [say(sampler, 5)[0] for _ in range(4)] == [5, 6, 7, 5]


@pytest.mark.parametrize("unsaid", [3, 0])
def test_padding_takes_no_place_in_the_context(unsaid: int) -> None:
    sampler = make(replace(LOUD, repetition_penalty_context=1))
    assert say(sampler, 5) == [5]
    assert [say(sampler, unsaid)[0] for _ in range(5)] == [unsaid] * 5
    assert say(sampler, 5) == [6]


def test_context_of_nothing_penalises_nothing() -> None:
    sampler = make(replace(LOUD, repetition_penalty_context=0))
    assert [say(sampler, 5)[0] for _ in range(3)] == [5, 5, 5]


def test_penalty_of_one_row_leaves_the_other_alone() -> None:
    sampler = make(LOUD, GREEDY)
    assert [say(sampler, 5, 5) for _ in range(2)] == [[5, 5], [6, 5]]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 500), context=st.integers(0, MAX_CONTEXT))
def test_context_is_the_last_tokens_that_were_no_padding(seed: int, steps: int, context: int) -> None:
    history = np.random.default_rng(seed).integers(0, TEXT_CARD, steps).tolist()
    sampler = make(replace(GREEDY, repetition_penalty_context=context))
    for token in history:
        say(sampler, token)
    said = [token for token in history if token not in (0, 3)]
    found = sampler._context(np.array([0]))[0]
    assert sorted(found[found >= 0].tolist()) == sorted(said[max(0, len(said) - context) :])


def test_reset_forgets_the_text_and_keeps_the_parameters() -> None:
    sampler = make(LOUD, LOUD)
    say(sampler, 5, 5)
    sampler.reset(np.array([True, False]))
    assert say(sampler, 5, 5) == [5, 6]
    assert say(sampler, 5, 5) == [6, 7]


def test_row_not_executed_remembers_nothing() -> None:
    sampler = make(LOUD, LOUD)
    only_first = np.array([True, False])
    assert sampler.text(saying(5, 5), np.zeros(2, dtype=np.int64), only_first).tolist() == [5, 0]
    audio = np.arange(2 * CARD, dtype=np.float32).reshape(2, CARD)
    assert sampler.audio(audio, 0, np.zeros(2, dtype=np.int64), only_first).tolist() == [CARD - 1, 0]
    assert say(sampler, 5, 5) == [6, 5]


def test_prefix_of_the_rows_is_enough() -> None:
    sampler = make(LOUD, LOUD, GREEDY)
    assert say(sampler, 5) == [5]
    assert say(sampler, 5, 5) == [6, 5]


def test_restored_row_remembers_and_keeps_its_own_parameters() -> None:
    sampler = make(LOUD, LOUD, GREEDY)
    say(sampler, 5, 4, 6)
    sampler.restore(1, sampler.snapshot(0))
    sampler.restore(2, sampler.snapshot(0))
    assert say(sampler, 5, 5, 5) == [6, 6, 5]


def test_moved_row_takes_its_parameters_along() -> None:
    sampler = make(LOUD, GREEDY)
    say(sampler, 5, 4)
    sampler.move(0, 1)
    assert say(sampler, 5, 5) == [6, 6]
    assert sampler.parameters[1] == LOUD


def test_context_beyond_the_ring_is_refused() -> None:
    with pytest.raises(ConfigError, match="repetition_penalty_context is 201, expected 0 to 200"):
        make(replace(GREEDY, repetition_penalty_context=201))


def test_state_bytes_counts_both_arrays() -> None:
    assert make(GREEDY, GREEDY).state_bytes == 2 * MAX_CONTEXT * 4 + 2 * 8
