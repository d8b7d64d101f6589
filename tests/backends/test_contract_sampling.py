"""The contract of every backend: the effect of a row's sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.backends.contract import (
    GREEDY,
    SLOTS,
    Driver,
    Subject,
    assert_same,
    chooses,
    differ,
    has_voice,
    silent_ticks,
    speaks_text,
    voice,
)
from tests.backends.subjects import SUBJECTS

pytestmark = pytest.mark.parametrize("subject", sorted(set(SUBJECTS) - {"torch-duplex-int8"}), indirect=True)
"""How keys and values are kept changes no sampler."""

FRAMES = 8


def test_same_seed_same_tokens(subject: Subject, driver: Driver) -> None:
    """Tokens depend on the row's own seed and input, not on the row, the neighbours or the time."""
    frames = voice(14, FRAMES, driver.info)
    seeded = SamplingParameters(text_seed=7, audio_seed=8, repetition_penalty=2.0)
    for row in range(SLOTS):
        driver.backend.set_parameters(row, seeded if row in (0, 3) else SamplingParameters(text_seed=row))
    wanted = driver.run(0, frames, fixed=True)
    assert_same(driver.run(0, frames, fixed=True), wanted)
    assert_same(driver.run(3, frames, fixed=True), wanted, subject.pcm_tolerance)
    driver.backend.set_parameters(0, SamplingParameters(text_seed=9, audio_seed=10))
    assert differ(driver.run(0, frames, fixed=True), wanted) == chooses(driver.info)


def test_another_text_seed_gives_other_text(driver: Driver) -> None:
    frames = voice(15, FRAMES, driver.info)
    runs = []
    for seed in (1, 2):
        driver.backend.set_parameters(
            0, SamplingParameters(text_temperature=1.0, text_topk=0, text_seed=seed)
        )
        runs.append([reply.text_token for reply in driver.run(0, frames)])
    assert (runs[0] != runs[1]) == speaks_text(driver.info)


TEXT = replace(GREEDY, text_temperature=1.0, text_topk=0)
VOICE = replace(GREEDY, audio_temperature=1.0, audio_topk=0)
PENALTY = replace(TEXT, repetition_penalty=1000.0)


CHANGES: Mapping[SamplingParameters, Sequence[dict[str, Any]]] = {
    TEXT: [
        {"text_temperature": 2.0},
        {"text_topk": 2},
        {"text_seed": 1},
        {"pad_mult": 100.0},
        {"repetition_penalty": 1000.0},
    ],
    PENALTY: [{"repetition_penalty_context": 1}],
    VOICE: [{"audio_temperature": 2.0}, {"audio_topk": 2}, {"audio_seed": 1}],
}


@pytest.mark.parametrize("before", CHANGES, ids=["text", "penalty", "voice"])
def test_every_parameter_changes_what_is_said(
    subject: Subject, driver: Driver, before: SamplingParameters
) -> None:
    """A parameter of the text changes what a model with text says; one of the voice, a voice.

    A text that is written leaves nothing to choose but when to go on; these words are given unasked.
    """
    if not subject.samples:
        assert driver.info.name == "null", "only the null backend has nothing to sample"
        return
    wanted = has_voice(driver.info) if before is VOICE else speaks_text(driver.info)
    is_long = wanted and driver.info.spec.kind is not PipelineKind.TTS
    frames = voice(18, 3 * FRAMES if is_long else FRAMES, driver.info)
    driver.backend.set_parameters(1, before)
    first = driver.run(1, frames)

    def is_other(parameters: SamplingParameters) -> bool:
        """Whether anything else is said; heard no further than the first difference."""
        driver.backend.set_parameters(1, parameters)
        replies = (
            driver.tick({1: frame}, reset={1} if index == 0 else ())[1] for index, frame in enumerate(frames)
        )
        return any(differ([one], [other]) for one, other in zip(first, replies, strict=True))

    assert not is_other(before)
    for change in CHANGES[before]:
        matters = wanted and not change.keys() & set(subject.ignores)
        assert is_other(replace(before, **change)) == matters, change


def test_temperature_zero_does_not_look_at_the_seed(driver: Driver) -> None:
    frames = voice(16, FRAMES, driver.info)
    runs = []
    for seed in (1, 2):
        driver.backend.set_parameters(2, replace(GREEDY, text_seed=seed, audio_seed=seed))
        runs.append(driver.run(2, frames))
    assert_same(runs[0], runs[1])


def test_parameters_survive_a_reset_and_take_effect_at_the_next_step(driver: Driver) -> None:
    frames = voice(17, FRAMES, driver.info)
    driver.backend.set_parameters(0, SamplingParameters(text_seed=3, audio_seed=3))
    first = driver.run(0, frames)
    assert_same(driver.run(0, frames), first)
    silent = silent_ticks(driver.info)
    driver.run(0, frames[: silent + 1])
    driver.backend.set_parameters(0, SamplingParameters(text_temperature=1.0, text_topk=0, text_seed=4))
    changed = [driver.tick({0: frame})[0] for frame in frames[silent + 1 :]]
    assert differ(changed, first[silent + 1 :]) == chooses(driver.info)
