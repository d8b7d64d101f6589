"""Kernels of tokens on a CPU compared with torch: embeddings, delays, noise, draws; see ``test_steps.py``."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.backends.torch.generation import DelayCache
from antiphon.backends.torch.kernels.rows import (
    embedded,
    embedded_streams,
)
from antiphon.backends.torch.kernels.token_kernels import gumbel_noise as noise_of
from antiphon.backends.torch.kernels.tokens import Draw, chosen_tokens
from antiphon.backends.torch.modules.layers import (
    StreamEmbeddings,
    TokenEmbedding,
)
from antiphon.backends.torch.sampling import Sampler, choose, gumbel_noise
from antiphon.backends.torch.state import NO_ROW, State
from antiphon.models.sampling import SamplingParameters
from tests.backends.torch.small import randomize
from tests.backends.torch.test_sampling import SPEC, expected, logits_of, parameters

pytestmark = pytest.mark.usefixtures("on_a_cpu")


@pytest.mark.parametrize(("low_rank", "demux"), [(None, False), (8, False), (None, True), (8, True)])
def test_tokens_are_embedded_as_by_the_module(low_rank: int | None, demux: bool) -> None:
    table = TokenEmbedding(7, 24, torch.float32, low_rank=low_rank, demux=demux)
    randomize(table, seed=5)
    tokens = torch.tensor([0, -1, 6, 3])
    assert torch.allclose(embedded(table, tokens), table(tokens), atol=1e-6)
    added = torch.randn(4, 50)[:, 3:27]
    assert torch.allclose(embedded(table, tokens, added), table(tokens) + added, atol=1e-6)


def test_the_tokens_of_all_streams_are_embedded_as_by_the_modules() -> None:
    audio, text = StreamEmbeddings(3, 7, 24, torch.float32), TokenEmbedding(9, 24, torch.float32)
    for module in (audio, text):
        randomize(module, seed=5)
    tokens = torch.tensor([[8, 0, 6, 3], [-1, -1, 2, -1], [-1, -1, -1, -1]])
    got = embedded_streams(audio, text, tokens)
    assert torch.allclose(got, audio(tokens[:, 1:]) + text(tokens[:, 0]), atol=1e-6)


@pytest.mark.parametrize(
    ("delays", "generated"), [((0, 0, 1, 1, 0, 1, 1), 4), ((0, 2, 4, 4), 4), ((2, 0, 0), 1)]
)
def test_delays_are_kept_as_by_torch(delays: tuple[int, ...], generated: int) -> None:
    """Over several turns of the ring, of rows that begin apart and miss ticks."""
    initial = tuple(range(90, 90 + len(delays)))
    caches = [DelayCache(delays, generated, initial, is_fused=is_fused) for is_fused in (False, True)]
    states = [State(cache.specs(), 3) for cache in caches]
    offsets, random = torch.tensor([0, 5, 2**33]), torch.Generator().manual_seed(len(delays))
    for tick in range(9):
        rows = [2, NO_ROW if tick % 3 == 1 else 0, 1]
        steps = [state.step(rows) for state in states]
        now, is_there = offsets[rows], steps[0].rows >= 0
        codes = torch.randint(50, (3, len(delays) - generated), generator=random)
        inputs = [cache.inputs(step, now, codes) for cache, step in zip(caches, steps, strict=True)]
        assert torch.equal(*inputs)
        said = torch.randint(50, (3, generated), generator=random)
        outputs = [cache.outputs(step, now, said) for cache, step in zip(caches, steps, strict=True)]
        assert torch.equal(*(tokens[is_there] for tokens in outputs))
        assert torch.equal(*(state.tensors["lm.tokens"][:3] for state in states))
        offsets[[row for row in rows if row != NO_ROW]] += 1


@triton.jit  # type: ignore[untyped-decorator]
def write_noise(seed_ptr, frame_ptr, out_ptr, stream, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    token = tl.arange(0, BLOCK)
    tl.store(out_ptr + token, noise_of(tl.load(seed_ptr), tl.load(frame_ptr), stream, token))


@settings(max_examples=10)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 33))
def test_noise_is_the_norms(seed: int, frame: int, stream: int) -> None:
    seeds, frames = torch.tensor([seed - 2**64 if seed >= 2**63 else seed]), torch.tensor([frame])
    got = torch.empty(1, 1, 1024)
    write_noise[(1,)](seeds, frames, got, stream, BLOCK=1024)
    assert torch.equal(got, gumbel_noise(seeds[:, None], frames, torch.tensor([stream]), 1024))


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 70), st.integers(0, 80), st.sampled_from([1.0, 4.0, 0.0]))
def test_a_token_is_chosen_as_by_torch(seed: int, vocabulary: int, topk: int, levels: float) -> None:
    """Of logits with few levels, so that many are equal at the edge of the top k, NaN and infinity too."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.round(torch.randn(3, vocabulary, generator=random) * levels)
    logits[1, ::5], logits[2, ::7] = torch.nan, torch.inf
    inverse, temperature = torch.tensor([0.7, 1.0, 1.3]), torch.tensor([0.8, 1.0, seed % 2])
    draw = Draw(
        temperature,
        torch.tensor([topk, 1, 5]),
        torch.tensor([seed, -seed, 2**62]),
        torch.tensor([3, 2**33, 0]),
    )
    noise = gumbel_noise(draw.seed[:, None], draw.frame, torch.tensor([9]), vocabulary)[:, 0]
    want = choose(logits * inverse[:, None], temperature, draw.topk, noise, width=vocabulary)
    assert torch.equal(chosen_tokens(logits, inverse, draw, 9), want)


@settings(max_examples=5)
@given(st.lists(parameters, min_size=3, max_size=3), st.integers(0, 10**6), st.integers(0, 2**40))
def test_every_row_draws_what_the_norm_says(given: list[SamplingParameters], seed: int, start: int) -> None:
    sampler = Sampler(SPEC, 4, "cpu", is_fused=True)
    state = State(sampler.specs(), 4)
    for row, p in enumerate(given):
        sampler.set(row, p)
    for step in range(2):
        frames = torch.tensor([step, start + step, 2 * start + step])
        sampler.text(logits_of(seed + step, 3, SPEC.text_card), state.step(range(3)), frames)
        for codebook in range(SPEC.dep_q):
            logits = logits_of(seed + 7 * step + codebook, 3, SPEC.card)
            chosen = sampler.audio(codebook, logits, frames)
            for row, p in enumerate(given):
                wanted = expected(p, logits[row], int(frames[row]), codebook + 1, [])
                assert int(chosen[row]) == wanted


@settings(max_examples=3)
@given(st.lists(parameters, min_size=2, max_size=2), st.integers(0, 10**6))
def test_text_is_drawn_and_remembered_as_by_torch(given: list[SamplingParameters], seed: int) -> None:
    """With penalties over recent words, a bonus for padding, and a place without a row."""
    samplers = [Sampler(SPEC, 3, "cpu", is_fused=is_fused) for is_fused in (False, True)]
    states = [State(sampler.specs(), 3) for sampler in samplers]
    for sampler in samplers:
        for row, p in enumerate(given):
            sampler.set(row, p)
        sampler.set(2, SamplingParameters(repetition_penalty=1.7, repetition_penalty_context=4, pad_mult=0.5))
    for tick in range(6):
        logits = logits_of(seed + tick, 4, SPEC.text_card)
        logits[2, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        rows = [2, NO_ROW, 0, 1]
        drawn = [
            sampler.text(logits, state.step(rows), torch.tensor([tick, 0, 2**33 + tick, 7]))
            for sampler, state in zip(samplers, states, strict=True)
        ]
        assert torch.equal(*(tokens[[0, 2, 3]] for tokens in drawn))
        assert torch.equal(*(state.tensors["lm.recent"][:3] for state in states))
