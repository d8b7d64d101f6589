"""Sampling on mlx compared with the numpy reference."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon.backends.mlx.sampling import Sampler
from antiphon.backends.mlx.state import Packing, State, Step
from antiphon.errors import UnsupportedError
from antiphon.models import sampling as norm
from antiphon.models.sampling import RECENT_WORDS, SamplingParameters
from antiphon.models.spec import LMSpec

SPEC = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=8, n_q=4, dep_q=2, card=60, text_card=90, delays=(0,) * 5
)
ROWS = 3
EVERY = Packing(np.arange(ROWS, dtype=np.int32), ROWS + 1, is_fixed=False)


def step_of(state: State, packing: Packing) -> Step:
    return Step(state, packing, np.ones(packing.size, np.int64))


parameters = st.builds(
    SamplingParameters,
    text_temperature=st.sampled_from([0.0, 0.2, 0.7, 1.2]),
    text_topk=st.sampled_from([0, 1, 10, 25, 90, 500]),
    audio_temperature=st.sampled_from([0.0, 0.5, 0.8]),
    audio_topk=st.sampled_from([0, 10, 250]),
    pad_mult=st.sampled_from([-4.0, 0.0, 1.5]),
    repetition_penalty_context=st.sampled_from([0, 1, 3, 200]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 2.0]),
    text_seed=st.integers(0, 2**64 - 1),
    audio_seed=st.integers(0, 2**64 - 1),
)


def logits_of(seed: int, vocabulary: int) -> NDArray[np.float32]:
    """Seeded logits, some of them equal, some of them not numbers."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (ROWS, vocabulary)).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)
    if seed % 3 == 0:
        logits[:, ::7] = random.choice(np.array([np.nan, -np.inf, np.inf], dtype=np.float32))
    return logits


def expected(
    p: SamplingParameters, logits: NDArray[np.float32], step: int, stream: int, words: list[int]
) -> int:
    array, is_text = logits[None], stream == norm.TEXT_STREAM
    if is_text:
        counted = words[-p.repetition_penalty_context :] if p.repetition_penalty_context else []
        recent = np.array([[-1, *counted]], dtype=np.int32)
        array = norm.penalise(array, recent, np.array([p.repetition_penalty], dtype=np.float32))
    token = norm.sample(
        array,
        temperature=p.text_temperature if is_text else p.audio_temperature,
        topk=p.text_topk if is_text else p.audio_topk,
        seed=p.text_seed if is_text else p.audio_seed,
        step=step,
        stream=stream,
        pad_id=SPEC.text_padding_id if is_text else None,
        pad_mult=p.pad_mult,
    )
    return int(token[0])


@settings(max_examples=40)
@given(st.lists(parameters, min_size=ROWS, max_size=ROWS), st.integers(0, 10**6), st.integers(0, 2**40))
def test_every_row_draws_what_the_norm_says(rows: list[SamplingParameters], seed: int, start: int) -> None:
    sampler = Sampler(SPEC, ROWS + 1)
    state = State(sampler.specs(), ROWS + 1)
    for row, given_parameters in enumerate(rows):
        sampler.set(row, given_parameters)
    words: list[list[int]] = [[], [], []]
    for tick in range(3):
        frames = np.array([tick, start + tick, 2 * start + tick])
        draw = sampler.draw(EVERY, frames)
        text_logits, step = logits_of(seed + tick, SPEC.text_card), step_of(state, EVERY)
        text = np.array(sampler.text(mx.array(text_logits), step, draw))
        step.commit()
        for row, p in enumerate(rows):
            wanted = expected(p, text_logits[row], int(frames[row]), norm.TEXT_STREAM, words[row])
            assert text[row] == wanted
            if wanted not in (SPEC.text_padding_id, SPEC.text_end_padding_id):
                words[row].append(wanted)
        for codebook in range(SPEC.dep_q):
            logits = logits_of(seed + 10 + codebook, SPEC.card)
            audio = np.array(sampler.audio(codebook, mx.array(logits), draw))
            for row, p in enumerate(rows):
                stream = norm.TEXT_STREAM + 1 + codebook
                assert audio[row] == expected(p, logits[row], int(frames[row]), stream, [])


def test_rows_that_pause_remember_what_they_said() -> None:
    sampler = Sampler(SPEC, 2)
    state = State(sampler.specs(), 2)
    packing = Packing(np.array([0], np.int32), 2, is_fixed=True)
    step = step_of(state, packing)
    logits = np.full((2, SPEC.text_card), -5.0, dtype=np.float32)
    logits[:, 17] = 50.0
    sampler.text(mx.array(logits), step, sampler.draw(packing, np.array([0])))
    step.commit()
    assert np.array(state.tensors["lm.recent"])[:, -1].tolist() == [17, -1]


@pytest.mark.parametrize("is_fixed", [False, True])
def test_nothing_is_drawn_for_the_greedy_and_those_that_are_not_named(is_fixed: bool) -> None:
    sampler = Sampler(SPEC, 2)
    sampler.set(1, SamplingParameters(text_temperature=0.0, audio_temperature=0.0))
    draw = sampler.draw(Packing(np.array([1], np.int32), 2, is_fixed=is_fixed), np.array([5]))
    assert draw.text_noise is None
    assert draw.audio_noise is None
    assert float(np.array(draw.columns["temperature"][0, -1])) == 0


def test_a_penalty_that_looks_back_too_far_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=f"over {RECENT_WORDS + 1} words, but only {RECENT_WORDS}"):
        Sampler(SPEC, 1).set(0, SamplingParameters(repetition_penalty_context=RECENT_WORDS + 1))
