"""Frames that reveal tearing and crosstalk, and a backend that echoes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from antiphon.backends.base import FloatArray, StepInputs, StepOutputs
from tests.engine.fakes import FakeBackend, fake_spec

SAMPLES: Final = 1920


class EchoBackend(FakeBackend):
    """What is said comes back, in frames of 24 kHz."""

    def __init__(self, slots: int) -> None:
        super().__init__(replace(fake_spec(), mimi=replace(fake_spec().mimi, sample_rate=24_000)), slots)

    def step(self, inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is not None
        return StepOutputs(np.ones(inputs.count, np.bool_), np.ones(inputs.count, np.bool_), inputs.pcm)


class Frames:
    """Frames that say whose they are, which they are, and what all their samples add up to."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.random = np.random.default_rng(owner)
        self.checked, self.last = 0, -1

    def make(self, number: int) -> FloatArray:
        frame = self.random.integers(0, 1000, SAMPLES).astype(np.float32)
        frame[:2] = self.owner, number
        frame[-1] = frame[:-1].sum(dtype=np.float64) % 4096
        return frame

    def check(self, number: int, frame: FloatArray) -> None:
        assert frame[-1] == frame[:-1].sum(dtype=np.float64) % 4096, "a torn frame"
        assert (frame[0], frame[1]) == (self.owner, number), "another session's frame"
        assert number > self.last
        self.checked, self.last = self.checked + 1, number
