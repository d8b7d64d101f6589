"""The Gumbel-max race in the depformer's graph compared with the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from antiphon.models.sampling import TEXT_STREAM, RowSampler, SamplingParameters, sample
from antiphon.models.spec import LMSpec
from antiphon_quantize.onnx_modules import race

ROWS, STEPS, CARD = 6, 3, 50
SPEC = LMSpec(
    dim=8, num_layers=1, num_heads=1, context=8, n_q=6, dep_q=STEPS, card=CARD, text_card=9, delays=(0,) * 7
)
TEMPERATURES = (0.0, 0.7, 1.0, 3.0, 0.7, 1.0)
TOP_KS = (5, 1, 10, 0, 50, 400)


@pytest.mark.parametrize("seed", range(8))
def test_the_race_chooses_as_the_norm_does(seed: int) -> None:
    """Logits with many ties, infinities and NaN, for rows of every kind at once."""
    random = np.random.default_rng(seed)
    logits = np.round(random.normal(0, 2, (ROWS, CARD)), 1).astype(np.float32)
    logits[random.random(logits.shape) < 0.1] = random.choice([np.nan, np.inf, -np.inf])
    logits[seed % ROWS] = -np.inf
    sampler, frames = RowSampler(SPEC, ROWS), random.integers(0, 2**40, ROWS)
    for row in range(ROWS):
        sampler.set_parameters(
            row,
            SamplingParameters(
                audio_temperature=TEMPERATURES[row], audio_topk=TOP_KS[row], audio_seed=2**63 - row
            ),
        )
    noise = np.full((ROWS, STEPS, CARD), np.nan, dtype=np.float32)
    inverse, topk = sampler.voice_race(np.arange(ROWS, dtype=np.int32), frames, noise)
    for step in range(STEPS):
        wanted = sample(
            logits,
            temperature=TEMPERATURES,
            topk=TOP_KS,
            seed=np.array([2**63 - row for row in range(ROWS)], dtype=np.uint64),
            step=frames,
            stream=TEXT_STREAM + 1 + step,
        )
        scaled = torch.from_numpy(logits) * torch.from_numpy(inverse)[:, None]
        got = race(scaled, torch.from_numpy(noise[:, step]), torch.from_numpy(topk), int(topk.max()))
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_a_rows_noise_does_not_depend_on_its_place() -> None:
    sampler, noise = RowSampler(SPEC, ROWS), np.full((3, STEPS, CARD), 7, dtype=np.float32)
    sampler.set_parameters(5, SamplingParameters(audio_seed=1))
    frames = np.array([3, 9], dtype=np.int64)
    sampler.voice_race(np.array([4, 5], np.int32), frames, noise[:2])
    alone = np.empty((1, STEPS, CARD), np.float32)
    sampler.voice_race(np.array([5], np.int32), frames[1:], alone)
    np.testing.assert_array_equal(noise[1], alone[0])
    assert not np.array_equal(noise[0], noise[1])
    assert (noise[2] == 7).all()
