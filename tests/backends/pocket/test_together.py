"""Rows with a shared model step give the same audio as separate rows and the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from antiphon.backends.base import FloatArray
from antiphon.backends.pocket.backend import PocketBackend, PocketRows, deal
from antiphon.backends.pocket.model import BLOCK_NUMBERS, PocketModel, Together, multiply
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.sampling import SamplingParameters
from tests.backends.pocket.small import LONG, SAMPLED, Talk, entries_of, small_backend, speak, tick

TEXTS = (LONG, "seven eight, nine ten", "Good morning to you. The end")
SEEDS = (7, 8, 9)


@pytest.fixture
def backend(pocket_folder: Path) -> Iterator[PocketBackend]:
    made = small_backend(pocket_folder, slots=3)
    assert isinstance(made, PocketBackend)
    yield made
    made.close()


def parameters(seed: int) -> SamplingParameters:
    return SamplingParameters(audio_temperature=SAMPLED.audio_temperature, audio_seed=seed)


def alone(backend: PocketBackend, folder: Path) -> list[FloatArray]:
    """What each text is on a row that has the model for itself."""
    return [
        speak(backend, entries_of(folder, text), parameters=parameters(seed)).audio
        for text, seed in zip(TEXTS, SEEDS, strict=True)
    ]


def together(backend: PocketBackend, folder: Path) -> list[FloatArray]:
    """What they are side by side, each begun some ticks after the one before."""
    talks = {
        row: Talk(entries_of(folder, text), parameters(seed))
        for row, (text, seed) in enumerate(zip(TEXTS, SEEDS, strict=True))
    }
    for turn in range(2000):
        tick(backend, {row: talk for row, talk in talks.items() if turn >= 3 * row})
        if all(talk.is_done for talk in talks.values()):
            return [talk.audio for talk in talks.values()]
    raise AssertionError("they never end")


def test_rows_side_by_side_think_together_and_say_what_each_says_alone(
    backend: PocketBackend, pocket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 is held to the package, sample for sample, in test_parity.py."""
    counts: list[int] = []
    think = PocketModel.run_language_model

    def counted(self: PocketModel, states: Any, latents: Any) -> list[torch.Tensor]:
        counts.append(len(states))
        return think(self, states, latents)

    monkeypatch.setattr(PocketModel, "run_language_model", counted)
    wanted = alone(backend, pocket_folder)
    assert counts == []
    for found, sound in zip(together(backend, pocket_folder), wanted, strict=True):
        np.testing.assert_allclose(found, sound, rtol=0, atol=1e-5)
    assert {2, 3} <= set(counts)


def test_where_thinking_together_fails_each_row_thinks_alone(
    backend: PocketBackend, pocket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, think = alone(backend, pocket_folder), Together.think

    def fail_late(self: Together, inputs: Any, states: Any) -> list[torch.Tensor]:
        think(self, inputs, states)  # which has written into every row's rings
        raise RuntimeError("no such product")

    monkeypatch.setattr(Together, "think", fail_late)
    for found, sound in zip(together(backend, pocket_folder), wanted, strict=True):
        np.testing.assert_array_equal(found, sound)


@pytest.mark.parametrize(("inputs", "outputs"), [(1024, 3 * 128 + 5), (4096, 64), (48, 20)])
def test_a_product_in_blocks_is_each_rows_own(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs, bias=False)
    rows = [torch.randn(1, 1, inputs) for _ in range(3)]
    with torch.inference_mode():
        for found, row in zip(multiply(linear, rows), rows, strict=True):
            assert found.shape == (1, 1, outputs)
            torch.testing.assert_close(found, functional.linear(row, linear.weight), rtol=0, atol=1e-5)


def test_a_block_is_multiplied_by_every_row_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, asked = nn.Linear(1024, 300, bias=False), []
    own = functional.linear

    def noted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        asked.append(weight.data_ptr())
        return own(x, weight)

    monkeypatch.setattr(functional, "linear", noted)
    with torch.inference_mode():
        multiply(linear, [torch.randn(1, 1, 1024) for _ in range(2)])
    outputs = BLOCK_NUMBERS // 1024
    first = linear.weight.data_ptr()
    assert asked == [first + 4 * 1024 * outputs * block for block in range(3) for _ in range(2)]


def test_a_linear_of_another_kind_takes_the_rows_as_they_come() -> None:
    linear = nn.Linear(8, 4)  # with a bias
    rows = [torch.randn(1, 1, 8) for _ in range(2)]
    with torch.inference_mode():
        for found, row in zip(multiply(linear, rows), rows, strict=True):
            assert torch.equal(found, linear(row))


def test_rows_are_dealt_by_what_they_take() -> None:
    assert deal([1.0] * 5, 2) == [[0, 2, 4], [1, 3]]
    assert deal([1.0, 1.0, 4.0, 1.0, 1.0], 2) == [[2], [0, 1, 3, 4]]
    assert deal([1.0, 5.0, 5.0, 1.0], 3) == [[1], [2], [0, 3]]
    assert deal([1.0], 4) == [[0]]


def test_an_opening_is_timed_when_the_model_is_warm(
    backend: PocketBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms, cold_ms = 0.0, [50.0]
    opens, thinks = PocketModel.open, PocketModel.next_latent

    def open_slowly(self: PocketModel, voice: Any, text: str) -> Any:
        nonlocal now_ms
        now_ms += cold_ms.pop() if cold_ms else 5.0
        return opens(self, voice, text)

    def think_slowly(self: PocketModel, *arguments: Any) -> Any:
        nonlocal now_ms
        now_ms += 1.0
        return thinks(self, *arguments)

    monkeypatch.setattr(PocketModel, "open", open_slowly)
    monkeypatch.setattr(PocketModel, "next_latent", think_slowly)
    model, spec = backend.executor.model, backend.info.spec
    shape = PocketShape.of(spec)
    assert shape is not None
    rows = PocketRows(spec, model, shape, chunk_tokens=50, threads=1, clock=lambda: now_ms / 1000.0)
    made = PocketBackend(rows, slots=1)
    assert made.executor.opening_frames == pytest.approx(6.0)
    assert made.info.row_ms == pytest.approx(1.0)
    made.close()


def test_silence_costs_nothing_and_the_chunk_behind_it_an_opening(
    backend: PocketBackend, pocket_folder: Path
) -> None:
    backend.executor.opening_frames = 3.0
    assert backend.executor.cost(0, ()) == 0.0
    talk = Talk(entries_of(pocket_folder, 'One two <break time="0.4s"/> three'), at_once=100)
    costs = []
    while not talk.is_done:
        costs.append(backend.executor.cost(0, tuple(talk.entries)))
        tick(backend, {0: talk})
    _, (pause_at, _), (then, _) = talk.told
    assert then == pause_at + 5
    assert costs[:2] == [3.0, 1.0]
    assert costs[pause_at + 1 : then + 2] == [0.0, 0.0, 0.0, 0.0, 3.0, 1.0]


def test_a_row_that_begins_an_utterance_has_a_thread_for_itself(
    pocket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    advance = PocketRows.advance

    def noted(self: PocketRows, rows: Any, offered: Any) -> Any:
        seen.append(list(rows))
        return advance(self, rows, offered)

    monkeypatch.setattr(PocketRows, "advance", noted)
    backend = small_backend(pocket_folder, slots=4, threads=2)
    assert isinstance(backend, PocketBackend)
    backend.executor.opening_frames = 3.0
    talks = {row: Talk(entries_of(pocket_folder, LONG), parameters(row), at_once=100) for row in range(4)}
    for _ in range(2):
        tick(backend, {row: talks[row] for row in (0, 1, 3)})
    seen.clear()
    tick(backend, talks)
    assert sorted(seen) == [[0, 1, 3], [2]]
    backend.close()
