"""Text to speech on mlx compared with upstream's TTSModel, alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.backends.mlx.executor import MlxTts
from antiphon.backends.mlx.loading import make
from antiphon.backends.tts import TtsBackend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from tests.backends.torch.test_tts import (
    GREEDY,
    TEXTS,
    Driver,
    assert_said,
    entries_of,
    make_speaker,
    said_by_upstream,
    upstream,
    voice,
)

SLOTS = 4
Wanted: TypeAlias = list[tuple[FloatArray, list[int]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_speaker(tmp_path_factory.mktemp("mlx-tts") / "tts")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Wanted:
    return said_by_upstream(upstream(folder), folder, told=2.0)


@pytest.fixture
def backend(checkpoint: Checkpoint) -> TtsBackend:
    backend = make(checkpoint, slots=SLOTS, device="cpu")
    assert isinstance(backend, TtsBackend)
    for row in range(SLOTS):
        backend.set_parameters(row, GREEDY)
    return backend


def executor_of(backend: TtsBackend) -> MlxTts:
    assert isinstance(backend.executor, MlxTts)
    return backend.executor


def test_rows_that_join_and_pause_say_what_upstream_says(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Wanted
) -> None:
    """Six texts on four rows, each in its voice; a row that ends is taken by the next."""
    driver, random = Driver(backend), np.random.default_rng(3)
    queue, going, said = [0, 1, 2, 0, 1, 2], dict[int, int](), 0
    while queue or going:
        free = [row for row in range(SLOTS) if row not in going]
        if queue and free and random.random() < 0.3:
            row = int(random.choice(free))
            going[row] = queue.pop(0)
            driver.begin(
                row, entries_of(checkpoint, TEXTS[going[row]]), voice(checkpoint, folder, going[row])
            )
        if rows := [row for row in going if random.random() < 0.8]:
            driver.tick(rows)
        for row in [row for row in going if driver.said[row].is_finished]:
            assert_said(driver.said[row], wanted[going.pop(row)])
            said += 1
    assert said == 6


def test_what_has_not_been_said_goes_on_in_another_process(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Wanted
) -> None:
    """A snapshot amid a text, as numpy arrays: rings as long as the row has lived, its voice with it."""
    driver = Driver(backend)
    driver.begin(1, entries_of(checkpoint, TEXTS[0]), voice(checkpoint, folder, 0))
    for _ in range(9):
        driver.tick([1])
    taken = backend.snapshot(1)
    host = backend.to_host(taken)
    steps = int(host["lm.position"])
    assert host["lm.0.k"].shape[1] == min(steps, checkpoint.spec.lm.context if checkpoint.spec.lm else 0)
    another = make(checkpoint, slots=1, device="cpu")
    assert isinstance(another, TtsBackend)
    another.set_parameters(0, GREEDY)
    another.restore(0, another.from_host(host))
    there = Driver(another)
    there.said[0], there.waiting[0] = driver.said[1], driver.waiting[1]
    there.run([0])
    assert_said(there.said[0], wanted[0])


def test_a_reset_keeps_the_voices_memory_and_gives_nobodys(
    backend: TtsBackend, checkpoint: Checkpoint
) -> None:
    """Renewing a row erases its rings and not its voice; the host then gives it nobody's, once."""
    executor = executor_of(backend)
    with executor.on_device():
        for name in ("lm.0.cross_k", "lm.0.k"):
            executor.state.tensors[name][2] = mx.array(3.0)
        executor.reset_rows(np.array([2], np.int32))
        tensors = executor.state.tensors
        assert float(np.array(tensors["lm.0.cross_k"][2].min())) == 3.0
        assert float(np.array(tensors["lm.0.k"][2].max())) == 0.0
