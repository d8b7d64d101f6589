"""Noises around a speaker: each ``[samples]`` at 24 kHz, of unit variance, and random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from lab.train.augment import SAMPLE_RATE, coloured_noise

Noise = Callable[[np.random.Generator, int], FloatArray]


def _even(rng: np.random.Generator, samples: int) -> FloatArray:
    return coloured_noise(rng, samples, float(rng.uniform(0, 2)))


def _hum(rng: np.random.Generator, samples: int) -> FloatArray:
    """Mains hum and its harmonics."""
    at = np.arange(samples) / SAMPLE_RATE
    base = rng.choice([50.0, 60.0]) * rng.uniform(0.99, 1.01)
    tones = [np.sin(2 * np.pi * base * n * at + rng.uniform(0, 6)) / n for n in range(1, 12)]
    return _unit(np.sum(tones, axis=0) + 0.3 * coloured_noise(rng, samples, 1.0))


def _clatter(rng: np.random.Generator, samples: int) -> FloatArray:
    """Objects put down and picked up: one a second and long, or up to forty and short."""
    sound = 0.05 * coloured_noise(rng, samples, 1.0)
    a_second = 40 ** rng.uniform(0, 1)
    for _ in range(max(1, int(a_second * samples / SAMPLE_RATE))):
        at, length = int(rng.integers(samples)), int(rng.integers(240, 4800) / a_second**0.5)
        burst = coloured_noise(rng, length, float(rng.uniform(0, 1))) * np.exp(
            -np.arange(length) / (length / 5)
        )
        sound[at : at + length] += burst[: samples - at]
    return _unit(sound)


def _wind(rng: np.random.Generator, samples: int) -> FloatArray:
    """Low noise in gusts of a second or so."""
    at = np.arange(0, samples + SAMPLE_RATE, SAMPLE_RATE // 2)
    gusts = np.interp(np.arange(samples), at, rng.uniform(0.05, 1.0, at.size) ** 2)
    return _unit(coloured_noise(rng, samples, float(rng.uniform(1.2, 2.2))) * gusts)


def _machine(rng: np.random.Generator, samples: int) -> FloatArray:
    """Noise that varies slower or faster than an engine's: up to 6 times a second, or 25 to 60 times."""
    at = np.arange(samples) / SAMPLE_RATE
    hz = rng.uniform(0.7, 6) if rng.random() < 0.5 else rng.uniform(25, 60)
    swing = 1 + rng.uniform(0.3, 0.9) * np.sin(2 * np.pi * hz * at)
    return _unit(coloured_noise(rng, samples, float(rng.uniform(0, 2))) * swing)


def _beeps(rng: np.random.Generator, samples: int) -> FloatArray:
    """Tones of a tenth to half a second, one to five a second, on faint noise."""
    sound = 0.05 * coloured_noise(rng, samples, 1.0)
    for _ in range(max(1, int(rng.uniform(1, 5) * samples / SAMPLE_RATE))):
        at, length = int(rng.integers(samples)), int(rng.uniform(0.1, 0.5) * SAMPLE_RATE)
        tone = np.sin(2 * np.pi * 200 * 15 ** rng.random() * np.arange(length) / SAMPLE_RATE)
        sound[at : at + length] += (tone * np.hanning(length)).astype(np.float32)[: samples - at]
    return _unit(sound)


def _band(rng: np.random.Generator, samples: int) -> FloatArray:
    """Hiss of one or two octaves, as of a fan or of air."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    octaves = np.log2(np.maximum(np.fft.rfftfreq(samples, 1 / SAMPLE_RATE), 1.0))
    spectrum *= np.exp(-(((octaves - rng.uniform(8, 13)) / rng.uniform(0.5, 1.5)) ** 2))
    return _unit(np.fft.irfft(spectrum, samples))


def _frying(rng: np.random.Generator, samples: int) -> FloatArray:
    """Clicks that ring at 1 to 6 kHz, 20 to 150 a second, on hiss."""
    clicks = (rng.random(samples) < rng.uniform(20, 150) / SAMPLE_RATE) * rng.standard_normal(samples)
    at = np.arange(240)
    ringing = np.sin(2 * np.pi * rng.uniform(1e3, 6e3) / SAMPLE_RATE * at) * np.exp(-at / rng.uniform(10, 80))
    return _unit(np.convolve(clicks, ringing, "same") + rng.uniform(0, 0.1) * rng.standard_normal(samples))


def _engine(rng: np.random.Generator, samples: int) -> FloatArray:
    """Low noise that varies 8 to 20 times a second."""
    at = np.arange(samples) / SAMPLE_RATE
    beat = 1 + 0.8 * np.sin(2 * np.pi * rng.uniform(8, 20) * at)
    return _unit(coloured_noise(rng, samples, 1.5) * beat)


def _rain(rng: np.random.Generator, samples: int) -> FloatArray:
    """Drops: short clicks, some hundred a second, on hiss."""
    drops = (rng.random(samples) < 400 / SAMPLE_RATE) * rng.standard_normal(samples)
    return _unit(np.convolve(drops, np.exp(-np.arange(48) / 8), "same") + 0.05 * rng.standard_normal(samples))


def _unit(sound: NDArray[np.floating[Any]]) -> FloatArray:
    even: FloatArray = (sound / (np.std(sound) + 1e-9)).astype(np.float32)
    return even


NOISES: Final[Mapping[str, Noise]] = MappingProxyType(
    {
        "even": _even,
        "hum": _hum,
        "clatter": _clatter,
        "wind": _wind,
        "machine": _machine,
        "beeps": _beeps,
        "band": _band,
        "frying": _frying,
        "engine": _engine,
        "rain": _rain,
    }
)
