"""The onnx backend compared with torch in float32: tokens and samples are equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from antiphon.backends.base import Backend, StepInputs, StepOutputs
from antiphon.backends.onnx.loading import make as make_onnx
from antiphon.backends.torch.loading import make as make_torch
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import GREEDY, SAMPLED, step_inputs, voice
from tests.backends.onnx.exports import exported, source

ROWS = 4
TICKS = 70
"""Contexts are 24 frames (language model) and 8 (Mimi); each row is in two sessions."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ticks(seed: int, backend: Backend) -> Iterator[StepInputs]:
    """Sessions that join one after the other, pause at random, end, and are as loud as they like."""
    random = np.random.default_rng(seed)
    levels = (0.3, 15.0, 0.01, 0.3)
    voices = [voice(10 * seed + row, TICKS, backend.info, level=level) for row, level in enumerate(levels)]
    for tick in range(TICKS):
        joins = [row for row in range(ROWS) if tick in (row, 40 + 2 * row)]
        is_named = (random.random(ROWS) < 0.8) & (np.arange(ROWS) <= tick) | np.isin(np.arange(ROWS), joins)
        rows = random.permutation(np.flatnonzero(is_named)).astype(np.int32)
        if rows.size:
            pcm = np.stack([voices[row][tick] for row in rows])
            yield step_inputs(backend.info, rows, np.isin(rows, joins), pcm)


def run(backend: Backend, seed: int, parameters: SamplingParameters) -> list[StepOutputs]:
    for row in range(ROWS):
        backend.set_parameters(row, replace(parameters, text_seed=row, audio_seed=row + 7))
    outputs = [backend.step(given_a_voice(backend, inputs)) for inputs in ticks(seed, backend)]
    backend.close()
    return outputs


def given_a_voice(backend: Backend, inputs: StepInputs) -> StepInputs:
    """Whoever joins a tts model on an odd row brings one or two voices, the others have nobody's."""
    shape = SpeakerShape.of(backend.info.spec)
    if shape is None:
        return inputs
    joins = inputs.reset & (inputs.rows % 2 == 1)
    for row in inputs.rows[joins].tolist():
        speakers = np.random.default_rng(row).normal(0, 1, (1 + row // 2, shape.frames, shape.width))
        nothing = np.zeros((0, 0), np.int32)
        assert backend.prime(row, Prompt(nothing, speakers=speakers.astype(np.float32))).is_done
    return replace(inputs, reset=inputs.reset & ~joins)


@pytest.mark.parametrize(
    ("kind", "seed", "parameters"),
    [
        ("codec", 0, GREEDY),
        ("moshi", 1, GREEDY),
        ("moshi", 2, SAMPLED),
        ("stt", 3, GREEDY),
        ("tts", 4, GREEDY),
        ("tts", 5, SAMPLED),
    ],
)
def test_sessions_that_join_pause_and_restart_are_those_of_torch(
    kind: str, seed: int, parameters: SamplingParameters
) -> None:
    ours = run(make_onnx(exported(kind), slots=ROWS, threads=1), seed, parameters)
    oracle = make_torch(source(kind), slots=ROWS, device="cpu", dtype="float32", threads=1)
    emitted = 0
    for mine, theirs in zip(ours, run(oracle, seed, parameters), strict=True):
        np.testing.assert_array_equal(mine.consumed, theirs.consumed)
        np.testing.assert_array_equal(mine.emitted, theirs.emitted)
        rows = mine.emitted
        emitted += int(rows.sum())
        if mine.text_tokens is not None:
            np.testing.assert_array_equal(mine.text_tokens, theirs.text_tokens)
        if mine.finished is not None:
            np.testing.assert_array_equal(mine.finished, theirs.finished)
        if mine.pcm is not None:
            assert theirs.pcm is not None
            limit = 1e-4 * max(float(np.abs(theirs.pcm[rows]).max(initial=0)), 1e-3)
            np.testing.assert_allclose(mine.pcm[rows], theirs.pcm[rows], rtol=0, atol=limit)
        if mine.vad is not None:
            assert theirs.vad is not None
            np.testing.assert_allclose(mine.vad[rows], theirs.vad[rows], rtol=0, atol=1e-5)
    assert emitted > 2 * TICKS
