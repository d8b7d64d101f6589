"""The numpy reference of docs/sampling.md: its vectors, torch, and its properties."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon.models.philox import gumbel, philox4x32, random_words
from antiphon.models.sampling import SamplingParameters, largest, penalise, sample
from tests.support import make_sampling_vectors

VECTORS = Path(__file__).with_name("vectors") / "sampling.json"
CONTENT = json.loads(VECTORS.read_text())
PUBLISHED = {
    "00000000 00000000 00000000 00000000": "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff": "408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344": "d16cfe09 94fdcceb 5001e420 24126ea1",
}
"""Random123's known answers for Philox4x32-10, by counter."""

Sampler = Callable[..., NDArray[np.int32]]


def words(text: str) -> NDArray[np.uint32]:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)[:, None]


def torch_words(seed: int, step: int, stream: int, tokens: torch.Tensor) -> torch.Tensor:
    """The noise words of section 2 in int64 torch, as a device backend would compute them."""
    low = 0xFFFFFFFF
    c0, c1 = torch.full_like(tokens, step & low), torch.full_like(tokens, step >> 32)
    c2, c3 = torch.full_like(tokens, stream), tokens // 4
    k0, k1 = seed & low, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps: the shifted bits are right all the same
        c0, c1 = (p1 >> 32 & low) ^ c1 ^ k0, p1 & low
        c2, c3 = (p0 >> 32 & low) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return torch.stack([c0, c1, c2, c3]).gather(0, (tokens % 4)[None])[0]


def torch_sample(
    logits: NDArray[np.float32], *, temperature: float, topk: int, seed: int, step: int, stream: int
) -> int:
    """Section 3 in torch, for one row without text's extras."""
    t = torch.from_numpy(logits).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    if temperature == 0:
        return int(torch.nonzero(t == t.max())[0])
    t = t * (torch.tensor(1.0) / torch.tensor(temperature))
    order = torch.sort(t, descending=True, stable=True).indices[: topk or len(t)].sort().values
    noise_words = torch_words(seed, step, stream, order).double()
    noise = -torch.log(-torch.log((noise_words + 0.5) / 2**32))
    score = t[order] + noise.float()
    return int(order[torch.nonzero(score == score.max())[0]])


@pytest.mark.parametrize("vector", CONTENT["philox"], ids=lambda vector: vector["counter"][:8])
def test_generator_gives_the_published_answers(vector: dict[str, str]) -> None:
    assert vector["output"] == PUBLISHED[vector["counter"]]
    output = philox4x32(words(vector["counter"]), words(vector["key"]))
    np.testing.assert_array_equal(output, words(vector["output"]))


def test_noise_is_the_vectors() -> None:
    given_words = np.array([entry["word"] for entry in CONTENT["gumbel"]], dtype=np.uint32)
    expected = np.array([entry["noise"] for entry in CONTENT["gumbel"]], dtype=np.float32)
    np.testing.assert_array_equal(gumbel(given_words), expected)


@pytest.mark.parametrize("case", CONTENT["cases"], ids=lambda case: case["name"])
def test_tokens_are_the_vectors(case: dict[str, Any]) -> None:
    logits = np.array(make_sampling_vectors.logits_of(case["logits"]), dtype=np.float32)
    steps = np.array(case["steps"])
    batch = np.tile(logits, (len(steps), 1))
    if "recent" in case:
        recent = np.tile(np.array(case["recent"], dtype=np.int32), (len(steps), 1))
        batch = penalise(batch, recent, np.full(len(steps), case["penalty"], dtype=np.float32))
    tokens = sample(
        batch,
        temperature=case["temperature"],
        topk=case["topk"],
        seed=int(case["seed"], 16),
        step=steps,
        stream=case["stream"],
        pad_id=case.get("pad_id"),
        pad_mult=case.get("pad_mult", 0.0),
    )
    assert tokens.tolist() == case["tokens"]


def test_vectors_are_what_the_norm_says_one_number_at_a_time(tmp_path: Path) -> None:
    again = tmp_path / "sampling.json"
    assert make_sampling_vectors.main([str(again)]) == 0
    assert again.read_text() == VECTORS.read_text()


seeds = st.integers(0, 2**64 - 1)
steps = st.integers(0, 2**40)


@settings(max_examples=60)
@given(
    width=st.integers(1, 300),
    data=seeds,
    seed=seeds,
    step=steps,
    stream=st.integers(0, 32),
    temperature=st.sampled_from([0.0, 0.2, 0.7, 0.8, 1.2]),
    topk=st.integers(0, 320),
    coarse=st.booleans(),
)
def test_torch_chooses_the_same_tokens(
    width: int, data: int, seed: int, step: int, stream: int, temperature: float, topk: int, coarse: bool
) -> None:
    logits = np.random.default_rng(data).standard_normal(width).astype(np.float32) * np.float32(4)
    logits = np.round(logits) if coarse else logits  # rounded logits tie
    asked: dict[str, Any] = {
        "temperature": temperature,
        "topk": topk,
        "seed": seed,
        "step": step,
        "stream": stream,
    }
    assert sample(logits[None], **asked)[0] == torch_sample(logits, **asked)


@settings(max_examples=40)
@given(
    data=seeds, rows=st.integers(2, 6), victim=st.integers(0, 5), loud=st.sampled_from([50.0, np.nan, np.inf])
)
def test_no_row_influences_another(data: int, rows: int, victim: int, loud: float) -> None:
    victim %= rows
    rng = np.random.default_rng(data)
    logits = rng.standard_normal((rows, 64)).astype(np.float32)
    asked: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.7, 1.0], rows),
        "topk": rng.integers(0, 70, rows),
        "seed": rng.integers(0, 2**63, rows),
        "step": rng.integers(0, 100, rows),
    }
    alone = sample(logits[[victim]], stream=1, **{key: value[[victim]] for key, value in asked.items()})
    noisy = logits * np.float32(loud)
    noisy[victim] = logits[victim]
    assert sample(noisy, stream=1, **asked)[victim] == alone[0]


@given(data=seeds, k=st.integers(1, 40))
def test_largest_are_the_first_k_of_a_stable_sort(data: int, k: int) -> None:
    values = np.random.default_rng(data).integers(-3, 4, (3, 40)).astype(np.float32)
    expected = np.sort(np.argsort(-values, axis=1, kind="stable")[:, :k], axis=1)
    np.testing.assert_array_equal(largest(values, k), expected)


def test_only_the_top_k_are_ever_chosen_and_all_of_them_are() -> None:
    logits = np.tile(np.array([0, 3, 1, 2, 2.5], dtype=np.float32), (2000, 1))
    tokens = sample(logits, temperature=1.0, topk=3, seed=5, step=np.arange(2000), stream=1)
    assert set(tokens.tolist()) == {1, 3, 4}


@pytest.mark.parametrize(("temperature", "topk"), [(1.0, 0), (0.5, 0), (1.0, 4)])
def test_frequencies_are_the_softmax(temperature: float, topk: int) -> None:
    logits = np.array([0.0, 2.0, 1.0, -1.0, 1.5, 0.5], dtype=np.float32)
    draws = 40_000
    tokens = sample(
        np.tile(logits, (draws, 1)),
        temperature=temperature,
        topk=topk,
        seed=1,
        step=np.arange(draws),
        stream=3,
    )
    weights = np.exp(logits.astype(np.float64) / temperature)
    if topk:
        weights[np.argsort(-logits)[topk:]] = 0
    found = np.bincount(tokens, minlength=6) / draws
    np.testing.assert_allclose(found, weights / weights.sum(), atol=0.012)  # 5 standard errors


@pytest.mark.parametrize("pad_mult", [-2.0, 1.0])
def test_pad_mult_multiplies_the_padding_tokens_odds(pad_mult: float) -> None:
    draws = 40_000
    tokens = sample(
        np.zeros((draws, 4), dtype=np.float32), temperature=0.7, topk=0, seed=1, step=np.arange(draws),
        stream=0, pad_id=3, pad_mult=pad_mult,
    )  # fmt: skip
    odds = np.exp(pad_mult) / 3
    assert np.mean(tokens == 3) == pytest.approx(odds / (1 + odds), abs=0.012)


@pytest.mark.parametrize("changed", ["seed", "step", "stream"])
def test_noise_differs_in_every_coordinate(changed: str) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "topk": 0, "seed": 1, "step": 1, "stream": 1}
    logits = np.zeros((1, 4096), dtype=np.float32)
    first = sample(logits, **asked)
    others = {int(sample(logits, **asked | {changed: value})[0]) for value in (0, 2, 3)}
    assert first[0] not in others
    assert len(others) == 3


@given(data=seeds, step=steps)
def test_a_token_keeps_its_noise_whoever_else_is_a_candidate(data: int, step: int) -> None:
    rng = np.random.default_rng(data)
    some = np.sort(rng.choice(500, 40, replace=False))
    seed = np.array([data], dtype=np.uint64)
    everyone = random_words(seed, np.array([step]), 1, np.arange(500)[None])
    np.testing.assert_array_equal(random_words(seed, np.array([step]), 1, some[None])[0], everyone[0, some])


def test_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    logits = np.array([[2.0, -2.0, 2.0, 0.0], [2.0, -2.0, 2.0, 0.0]], dtype=np.float32)
    recent = np.array([[0, 1, 0, -1], [3, -1, -1, 99]], dtype=np.int32)
    penalised = penalise(logits, recent, np.array([2.0, 4.0], dtype=np.float32))
    assert penalised.tolist() == [[1.0, -4.0, 2.0, 0.0], [2.0, -2.0, 2.0, 0.0]]
    assert logits[0, 0] == 2.0  # the caller's logits are left alone


def test_defaults_are_the_checkpoints_own() -> None:
    published = {"lm_gen_config": {"temp": 0.6, "temp_text": 0.5, "top_k": 100, "top_k_text": 50}}
    found = SamplingParameters.from_generation(published)
    assert (found.audio_temperature, found.text_temperature) == (0.6, 0.5)
    assert (found.audio_topk, found.text_topk) == (100, 50)
    assert SamplingParameters.from_generation({}) == SamplingParameters()
    assert SamplingParameters.from_generation({"lm_gen_config": {"text_temp": 0.4}}).text_temperature == 0.4


def test_checkpoint_that_does_not_sample_is_greedy() -> None:
    found = SamplingParameters.from_generation({"lm_gen_config": {"use_sampling": False, "temp": 0.6}})
    assert (found.audio_temperature, found.text_temperature) == (0.0, 0.0)
