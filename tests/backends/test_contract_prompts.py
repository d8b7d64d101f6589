"""The contract of prompts: a primed row equals a stepped one, other rows are unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.backends.base import BackendInfo, PrimeProgress
from antiphon.errors import UnsupportedError
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.prompt import Prompt
from tests.backends.contract import Driver, Reply, Subject, assert_same, differ, silent_ticks, voice
from tests.backends.subjects import PACKED, SUBJECTS

FRAMES = 8
PROMPTED = (
    *("mlx-duplex", "mlx-tts", "null-duplex", "null-tts", "onnx-pocket", "onnx-tts", "pocket-tts"),
    *("torch-duplex", "torch-duplex-int8", "torch-tts", *PACKED),
)
prompted = pytest.mark.parametrize("subject", PROMPTED, indirect=True)


def prompt_for(info: BackendInfo, seed: int = 1) -> Prompt:
    """A few frames that were lived through, or a voice where that is the prompt."""
    lm, voices = info.spec.lm, SpeakerShape.of(info.spec)
    if voices is not None:
        speaker = np.random.default_rng(seed).normal(0, 1, (voices.width, voices.frames))
        return voices.prompt(speaker.astype(np.float32))
    if (kept := PocketShape.of(info.spec)) is not None:
        cache = np.random.default_rng(seed).normal(0, 1, (kept.layers, 2, 9, kept.heads, kept.head_dim))
        return Prompt(np.zeros((0, 0), np.int32), keys_values=cache.astype(np.float32))
    shape, highest = (1, 0), 1
    if lm is not None:
        shape, highest = (min(lm.context, 20), 1 + lm.n_q), min(lm.card, lm.text_card)
    return Prompt(np.random.default_rng(seed).integers(0, highest, shape).astype(np.int32))


def prime(driver: Driver, row: int, prompt: Prompt) -> list[PrimeProgress]:
    steps = [driver.backend.prime(row, prompt)]
    while not steps[-1].is_done:
        steps.append(driver.backend.prime(row, prompt))
    return steps


def go_on(driver: Driver, row: int, seed: int = 2) -> list[Reply]:
    return [driver.tick({row: frame}, fixed=True)[row] for frame in voice(seed, FRAMES, driver.info)]


@pytest.mark.parametrize("subject", sorted(set(SUBJECTS) - set(PROMPTED)), indirect=True)
def test_the_others_say_that_they_take_no_prompt(driver: Driver) -> None:
    assert not driver.info.can_prime
    with pytest.raises(UnsupportedError, match=r"takes? no prompt"):
        driver.backend.prime(0, prompt_for(driver.info))


@prompted
def test_a_primed_row_emits_from_its_first_frame_and_twice_the_same(driver: Driver, subject: Subject) -> None:
    prompt = prompt_for(driver.info)
    steps = prime(driver, 1, prompt)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    is_voice = prompt.speakers is not None or prompt.keys_values is not None
    assert {step.total for step in steps} == {1 if is_voice else prompt.count}
    first = go_on(driver, 1)
    silent = silent_ticks(driver.info) if is_voice else 0
    assert [reply.emitted for reply in first] == [index >= silent for index in range(FRAMES)]
    again = prime(driver, 3, prompt_for(driver.info))
    assert again[-1].is_copied or prompt.keys_values is not None, "nothing was computed"
    assert_same(go_on(driver, 3), first, subject.pcm_tolerance)


@prompted
def test_what_was_said_before_the_call_matters(driver: Driver) -> None:
    replies = []
    for seed in (1, 2):
        prime(driver, 0, prompt_for(driver.info, seed))
        replies.append(go_on(driver, 0))
    assert differ(*replies)


@prompted
def test_a_row_being_primed_and_its_neighbours_leave_each_other_alone(driver: Driver) -> None:
    frames = voice(4, FRAMES, driver.info)
    wanted = driver.run(0, frames, fixed=True)
    got: list[Reply] = []
    is_done = False
    for index, frame in enumerate(frames):
        is_done = is_done or driver.backend.prime(2, prompt_for(driver.info, 3)).is_done
        got.append(driver.tick({0: frame}, reset={0} if index == 0 else (), fixed=True)[0])
    between = go_on(driver, 2)
    prime(driver, 2, prompt_for(driver.info, 3))
    alone = go_on(driver, 2)
    assert_same(got, wanted)
    assert_same(between, alone)


@prompted
def test_a_reset_row_has_forgotten_its_prompt(driver: Driver) -> None:
    frames = voice(5, FRAMES, driver.info)
    wanted = driver.run(1, frames, fixed=True)
    prime(driver, 1, prompt_for(driver.info))
    go_on(driver, 1)
    assert_same(driver.run(1, frames, fixed=True), wanted)
