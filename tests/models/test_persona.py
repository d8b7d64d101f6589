from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import UnsupportedError
from antiphon.models.prompt import (
    SILENCE_CODES,
    SINE_CODES,
    VoicePrompt,
    check_prompt,
    persona_prompt,
    takes_persona,
    wrap_text,
)
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind

MIMI = MimiSpec(sample_rate=24000, frame_rate=12.5, codebooks=8, cardinality=2048)
LM = LMSpec(
    dim=6,
    num_layers=1,
    num_heads=1,
    context=100,
    n_q=16,
    dep_q=8,
    card=2048,
    text_card=100,
    delays=(0, *[0, 1, 1, 1, 1, 1, 1, 1] * 2),
)
SPEC = ModelSpec("persona", PipelineKind.DUPLEX, "personaplex", MIMI, LM)
PAUSE = 6  # half a second, rounded down to frames


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("You are kind.", "<system> You are kind. <system>"),
        ("  You are kind.\n", "<system> You are kind. <system>"),
        ("<system> You are kind. <system>", "<system> You are kind. <system>"),
        ("<system> You", "<system> <system> You <system>"),
    ],
)
def test_a_text_is_wrapped_once(text: str, wrapped: str) -> None:
    assert wrap_text(text) == wrapped
    assert wrap_text(wrapped) == wrapped


def test_a_text_stands_between_two_pauses_one_token_a_frame() -> None:
    prompt = persona_prompt(SPEC, [11, 12, 13])
    assert prompt.frames[:, 0].tolist() == [3] * PAUSE + [11, 12, 13] + [3] * PAUSE
    assert (prompt.frames[:, 1:9] == SILENCE_CODES).all()
    assert (prompt.frames[:, 9:] == SINE_CODES).all()
    check_prompt(prompt, LM)


def test_a_recorded_voice_comes_first() -> None:
    pcm = np.zeros((5, 1920), np.float32)
    prompt = persona_prompt(SPEC, [11], VoicePrompt(pcm=pcm))
    assert prompt.count == 5 + PAUSE + 1 + PAUSE
    assert prompt.voice is pcm
    assert prompt.frames[:, 0].tolist() == [3] * (5 + PAUSE) + [11] + [3] * PAUSE
    check_prompt(prompt, LM)


def test_an_embedded_voice_leaves_its_last_two_frames_to_be_heard() -> None:
    codes = np.arange(34, dtype=np.int32).reshape(2, 17)
    embedded = np.ones((7, 6), np.float32)
    prompt = persona_prompt(SPEC, [], VoicePrompt(embedded=embedded, codes=codes))
    assert prompt.count == 8 + 2 * PAUSE
    assert prompt.embedded is embedded
    assert (prompt.frames[6:8] == codes).all()
    assert (prompt.frames[8:, 1:9] == SILENCE_CODES).all()
    check_prompt(prompt, LM)


def test_a_persona_too_long_is_refused_with_its_parts() -> None:
    words = r"this persona is 101 frames long \(0 of voice, 89 of text, 12 of silence\), .* context is 100"
    with pytest.raises(UnsupportedError, match=words):
        persona_prompt(SPEC, [1] * 89)
    assert persona_prompt(SPEC, [1] * 88).count == LM.context


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(SPEC, family="moshi"), "persona is moshi; only personaplex models take a persona"),
        (replace(SPEC, lm=replace(LM, card=2008)), r"8 \+ 8 streams of 2008 codes"),
        (replace(SPEC, lm=replace(LM, dep_q=4)), r"4 \+ 12 streams"),
    ],
)
def test_other_models_take_none(spec: ModelSpec, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        persona_prompt(spec, [1])
    assert takes_persona(spec) == (spec.family == "personaplex")
