"""Voices from recordings: each is encoded once, also under concurrent requests."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from antiphon.backends.pocket.backend import Voices
from antiphon.backends.pocket.model import State
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.prompt import Prompt

HEARD: State = {}
RECORDING = Prompt(np.zeros((0, 0), np.int32), voice=np.zeros((3, 1920), np.float32))


class Hearing(Future[State]):
    """Is ready just after somebody has waited in vain."""

    def result(self, timeout: float | None = None) -> State:
        if timeout is not None and not self.done():
            self.set_result(HEARD)
            raise TimeoutError
        return super().result(timeout)


class Ears(Executor):
    """Begins to hear, and is told when it has heard."""

    def __init__(self) -> None:
        self.begun: list[Hearing] = []

    def submit(self, *_: object, **__: object) -> Any:
        self.begun.append(Hearing())
        return self.begun[-1]


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def voices(pocket_folder: Path, ears: Ears) -> Voices:
    shape = PocketShape.of(load_checkpoint(str(pocket_folder)).spec)
    assert shape is not None
    return Voices(cast("Any", None), shape, 1920, ears)


def test_a_voice_that_is_ready_just_after_a_look_is_kept(voices: Voices, ears: Ears) -> None:
    assert voices.get(RECORDING) is None
    (hearing,) = ears.begun
    if not hearing.done():
        hearing.set_result(HEARD)
    assert voices.get(RECORDING) is HEARD
    assert voices.knows(RECORDING)
    assert len(ears.begun) == 1


def test_a_hearing_that_fails_is_told_and_may_be_tried_again(voices: Voices, ears: Ears) -> None:
    assert voices.get(RECORDING) is None
    ears.begun[0].set_exception(RuntimeError("no memory"))
    with pytest.raises(RuntimeError, match="no memory"):
        voices.get(RECORDING)
    assert voices.get(RECORDING) is None
    assert len(ears.begun) == 2
