"""The output gate on output of the built-in model: answers are complete, silence is exactly zero."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.files import read_audio
from antiphon.audio.gate import OutputGate
from antiphon.audio.pcm import FloatArray
from antiphon.backends.base import StepInputs
from antiphon.backends.onnx.loading import make
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters

pytestmark = pytest.mark.product

FRAME, BLOCK = 1920, 240
RAMP = 120
CLIPS = ("question-colour.ogg", "question-count.ogg")


def dialogue(tokens: list[int]) -> FloatArray:
    """What `tiny` says to two questions with silence around them, float32 ``[frames, 1920]``."""
    checkpoint = load_checkpoint("tiny")
    backend = make(checkpoint, slots=1, threads=1)
    sampling = SamplingParameters.from_generation(checkpoint.generation)
    backend.set_parameters(0, replace(sampling, text_seed=1, audio_seed=1))
    quiet = np.zeros(5 * 24_000, np.float32)
    clips = [read_audio(Path(str(resources.files("antiphon_client") / "clips" / name))) for name in CLIPS]
    heard = np.concatenate((quiet[:24_000], clips[0], quiet, clips[1], quiet))
    said = []
    for index in range(heard.size // FRAME):
        pcm = heard[None, index * FRAME : (index + 1) * FRAME]
        outputs = backend.step(StepInputs(np.zeros(1, np.int32), np.array([index == 0]), pcm))
        assert outputs.pcm is not None
        assert outputs.text_tokens is not None
        if outputs.emitted[0]:
            said.append(outputs.pcm[0].copy())
            tokens.append(int(outputs.text_tokens[0]))
    return np.stack(said)


def test_no_sound_of_an_answer_is_lost_and_between_answers_there_are_zeros() -> None:
    checkpoint = load_checkpoint("tiny")
    assert checkpoint.spec.lm is not None
    padding = checkpoint.spec.lm.text_padding_id
    tokens: list[int] = []
    said = dialogue(tokens)
    gate = OutputGate(24_000)
    heard = np.stack(
        [gate.pass_frame(pcm, has_text=t != padding) for pcm, t in zip(said, tokens, strict=True)]
    )

    loudness = np.sqrt(np.square(said.reshape(-1, BLOCK)).mean(axis=1))
    lost = loudness[(heard.reshape(-1, BLOCK) != said.reshape(-1, BLOCK)).any(axis=1)]
    # Ramps and zeros touched nothing that is within 50 dB of the answers' loudest part.
    assert lost.max() < loudness.max() * 10 ** (-50 / 20)

    is_silent = (heard == 0).all(axis=1)
    spans = np.flatnonzero(np.diff(np.concatenate(([0], is_silent.astype(int), [0])))).reshape(-1, 2)
    assert [bool(is_silent[0]), bool(is_silent[-1])] == [True, True]
    # Before the first answer, between the two, and after the second: zeros without an interruption.
    assert len(spans) == 3
    assert (np.diff(spans, axis=1) * 80 > 1500).all()
