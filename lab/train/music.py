"""Random music, which a talker must not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from antiphon.arrays import FloatArray
from lab.train import held_out as kept
from lab.train.augment import SAMPLE_RATE, coloured_noise

SCALE: Final = (0, 2, 4, 5, 7, 9, 11)
Note = Callable[[np.random.Generator, float, int], FloatArray]


def _float(sound: Any) -> FloatArray:
    made: FloatArray = np.asarray(sound, np.float32)
    return made


def _chord(rng: np.random.Generator, pitch_hz: float, samples: int) -> FloatArray:
    at = np.arange(samples) / SAMPLE_RATE
    tones = [
        np.sin(2 * np.pi * pitch_hz * step * n * at + rng.uniform(0, 6)) / n**1.5
        for step in (1, 1.25, 1.5)
        for n in range(1, 8)
    ]
    return _float(np.sum(tones, axis=0) * np.minimum(1, np.minimum(at, at[::-1]) * 20))


def _plucked(rng: np.random.Generator, pitch_hz: float, samples: int) -> FloatArray:
    at = np.arange(samples) / SAMPLE_RATE
    tones = [
        np.sin(2 * np.pi * pitch_hz * n * at) * np.exp(-at * (2 + n)) * rng.uniform(0.3, 1) / n
        for n in range(1, 16)
    ]
    return _float(np.sum(tones, axis=0))


def _drum(rng: np.random.Generator, pitch_hz: float, samples: int) -> FloatArray:
    at = np.arange(samples) / SAMPLE_RATE
    skin = np.sin(2 * np.pi * pitch_hz / 4 * at) * np.exp(-at * 12)
    return _float(skin + 0.5 * coloured_noise(rng, samples, 0.5) * np.exp(-at * rng.uniform(10, 60)))


def _bell(rng: np.random.Generator, pitch_hz: float, samples: int) -> FloatArray:
    at = np.arange(samples) / SAMPLE_RATE
    tones = [
        np.sin(2 * np.pi * pitch_hz * ratio * at + rng.uniform(0, 6)) * np.exp(-at * ratio)
        for ratio in (0.5, 1, 1.19, 1.56, 2, 2.66, 3.76)
    ]
    return _float(np.sum(tones, axis=0))


INSTRUMENTS: Final[Mapping[str, Note]] = MappingProxyType(
    {"chord": _chord, "plucked": _plucked, "drum": _drum, "bell": _bell}
)


def music(rng: np.random.Generator, samples: int, *, held_out: bool = False) -> FloatArray:
    """Return music of one or more instruments, each with its own tune, float32 ``[samples]`` with peak 1."""
    names = [name for name in INSTRUMENTS if (name in kept.INSTRUMENTS) == held_out]
    sound = np.zeros(samples)
    for name in rng.choice(names, size=int(rng.integers(1, len(names) + 1)), replace=False):
        beat, at = int(rng.uniform(0.15, 0.6) * SAMPLE_RATE), 0
        base = float(rng.uniform(100, 400))
        while at < samples:
            length = int(beat * rng.choice([1, 1, 2]))
            pitch = base * 2 ** ((SCALE[int(rng.integers(7))] + 12 * int(rng.integers(2))) / 12)
            note = INSTRUMENTS[str(name)](rng, pitch, length)
            sound[at : at + length] += note[: samples - at]
            at += length
    return _float(sound / (np.abs(sound).max() + 1e-9))
