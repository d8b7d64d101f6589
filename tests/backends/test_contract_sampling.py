"""The contract of every backend: what a row's sampling parameters do."""

from __future__ import annotations

from dataclasses import replace

from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import (
    GREEDY,
    SLOTS,
    Driver,
    Subject,
    assert_same,
    differ,
    speaks_text,
    voice,
)

FRAMES = 8


def test_same_seed_same_tokens(subject: Subject, driver: Driver) -> None:
    """Tokens depend on the row's own seed and input, not on the row, the neighbours or the time."""
    frames = voice(14, FRAMES, driver.info)
    seeded = SamplingParameters(text_seed=7, audio_seed=8, repetition_penalty=2.0)
    for row in range(SLOTS):
        driver.backend.set_parameters(row, seeded if row in (0, 3) else SamplingParameters(text_seed=row))
    wanted = driver.run(0, frames, rows=SLOTS)
    assert_same(driver.run(0, frames, rows=SLOTS), wanted)
    assert_same(driver.run(3, frames, rows=SLOTS), wanted, subject.pcm_tolerance)
    driver.backend.set_parameters(0, SamplingParameters(text_seed=9, audio_seed=10))
    assert differ(driver.run(0, frames, rows=SLOTS), wanted) == speaks_text(driver.info)


def test_another_text_seed_gives_other_text(driver: Driver) -> None:
    frames = voice(15, FRAMES, driver.info)
    runs = []
    for seed in (1, 2):
        driver.backend.set_parameters(
            0, SamplingParameters(text_temperature=1.0, text_topk=0, text_seed=seed)
        )
        runs.append([reply.text_token for reply in driver.run(0, frames)])
    assert (runs[0] != runs[1]) == speaks_text(driver.info)


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
    silent = driver.info.spec.silent_frames
    driver.run(0, frames[: silent + 1])
    driver.backend.set_parameters(0, SamplingParameters(text_temperature=1.0, text_topk=0, text_seed=4))
    changed = [driver.tick({0: frame})[0] for frame in frames[silent + 1 :]]
    assert differ(changed, first[silent + 1 :]) == speaks_text(driver.info)
