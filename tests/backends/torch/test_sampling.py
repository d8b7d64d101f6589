"""Sampling on the device compared with the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import NO_ROW, State
from antiphon.errors import UnsupportedError
from antiphon.models import sampling as norm
from antiphon.models.sampling import RECENT_WORDS, SamplingParameters
from antiphon.models.spec import LMSpec

SPEC = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=8, n_q=4, dep_q=2, card=60, text_card=90, delays=(0,) * 5
)

parameters = st.builds(
    SamplingParameters,
    text_temperature=st.sampled_from([0.0, 0.2, 0.7, 1.2]),
    text_topk=st.sampled_from([0, 1, 10, 25, 90, 500, 600]),
    audio_temperature=st.sampled_from([0.0, 0.5, 0.8]),
    audio_topk=st.sampled_from([0, 10, 250, 2000]),
    pad_mult=st.sampled_from([-4.0, 0.0, 1.5]),
    repetition_penalty_context=st.sampled_from([0, 1, 3, 200]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 2.0]),
    text_seed=st.integers(0, 2**64 - 1),
    audio_seed=st.integers(0, 2**64 - 1),
)


def logits_of(seed: int, rows: int, vocabulary: int) -> Tensor:
    """Seeded logits, some of them equal, some of them not numbers."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (rows, vocabulary)).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)
    if seed % 3 == 0:
        logits[:, ::7] = random.choice(np.array([np.nan, -np.inf, np.inf], dtype=np.float32))
    return torch.from_numpy(logits)


def expected(p: SamplingParameters, logits: Tensor, step: int, stream: int, words: list[int]) -> int:
    array, is_text = logits.numpy()[None], stream == norm.TEXT_STREAM
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


@given(st.lists(parameters, min_size=3, max_size=3), st.integers(0, 10**6), st.integers(0, 2**40))
def test_every_row_draws_what_the_norm_says(rows: list[SamplingParameters], seed: int, start: int) -> None:
    sampler = Sampler(SPEC, 4, "cpu")
    state = State(sampler.specs(), 4)
    for row, given_parameters in enumerate(rows):
        sampler.set(row, given_parameters)
    words: list[list[int]] = [[], [], []]
    for step in range(4):
        frames = torch.tensor([step, start + step, 2 * start + step])
        text_logits = logits_of(seed + step, 3, SPEC.text_card)
        text = sampler.text(text_logits, state.step(range(3)), frames)
        for row, p in enumerate(rows):
            wanted = expected(p, text_logits[row], int(frames[row]), norm.TEXT_STREAM, words[row])
            assert int(text[row]) == wanted
            if wanted not in (SPEC.text_padding_id, SPEC.text_end_padding_id):
                words[row].append(wanted)
        for codebook in range(SPEC.dep_q):
            logits = logits_of(seed + 10 + codebook, 3, SPEC.card)
            audio = sampler.audio(codebook, logits, frames)
            for row, p in enumerate(rows):
                stream = norm.TEXT_STREAM + 1 + codebook
                assert int(audio[row]) == expected(p, logits[row], int(frames[row]), stream, [])


def test_rows_remember_their_own_words_and_no_others() -> None:
    sampler = Sampler(SPEC, 2, "cpu")
    state = State(sampler.specs(), 2)
    sampler.text(logits_of(1, 2, SPEC.text_card), state.step([NO_ROW, 1]), torch.tensor([0, 0]))
    assert (state.tensors["lm.recent"][0] == -1).all()
    assert (state.tensors["lm.recent"][1] >= 0).sum() == 1


def test_when_all_rows_are_greedy_no_noise_is_drawn() -> None:
    sampler = Sampler(SPEC, 2, "cpu")
    assert not sampler.is_greedy
    for row in range(2):
        sampler.set(row, SamplingParameters(text_temperature=0, audio_temperature=0))
    assert sampler.is_greedy
    logits = logits_of(2, 2, SPEC.text_card)
    tokens = sampler.text(logits, State(sampler.specs(), 2).step(), torch.tensor([0, 0]))
    assert torch.equal(tokens, logits.argmax(-1))


def test_no_parameters_a_caller_may_ask_for_change_what_a_gpu_has_captured() -> None:
    sampler, asked = Sampler(SPEC, 1, "meta"), []
    for temperature, topk in ((0.0, 10), (0.7, 500), (1.2, 0)):
        sampler.set(0, SamplingParameters(temperature, topk, temperature, topk))
        asked.append((sampler.is_greedy, sampler.width))
    assert len(set(asked)) == 1


def test_a_penalty_further_back_than_remembered_is_refused() -> None:
    too_far = SamplingParameters(repetition_penalty_context=RECENT_WORDS + 1)
    with pytest.raises(UnsupportedError, match="over 257 words, but only 256 are kept"):
        Sampler(SPEC, 1, "cpu").set(0, too_far)
