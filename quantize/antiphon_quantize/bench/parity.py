"""Parity with upstream's own modules: the same speech through both, sampled greedily."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.backends.base import NO_TOKEN, Backend, FloatArray, StepInputs
from antiphon.models.sampling import SamplingParameters
from antiphon_quantize.bench.ticks import no_progress

GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)
LEAST_SNR_DB = 40.0
"""Of the sound, where every token agrees: rounding in float32 stays far above it, another token far below."""


@dataclass(frozen=True, slots=True)
class BackendOutput:
    """What a backend answered: ``pcm [frames, frame_samples]`` and ``text [frames]`` of emitted frames."""

    pcm: FloatArray
    text: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """Two answers to the same speech. ``first_difference``: the first frame whose text token differs."""

    frames: int
    first_difference: int | None
    snr_db: float

    @property
    def is_equal(self) -> bool:
        """Whether every token agrees, and the sound but for rounding."""
        return self.first_difference is None and self.snr_db >= LEAST_SNR_DB

    def __str__(self) -> str:
        """The comparison as text, with its numbers."""
        if self.first_difference is not None:
            return f"text tokens differ from frame {self.first_difference} of {self.frames} on"
        level = "equal" if math.isinf(self.snr_db) and self.snr_db > 0 else f"{self.snr_db:.1f} dB alike"
        return f"{self.frames} frames, every text token equal, sound {level} (least {LEAST_SNR_DB:g} dB)"


def speak(make: Callable[[], Backend], pcm: FloatArray) -> BackendOutput:
    """What a backend answers greedily to ``pcm [frames, frame_samples]``; it is closed again."""
    backend = make()
    try:
        backend.warm_up(no_progress)
        backend.set_parameters(0, GREEDY)
        sound, text, row = [], [], np.zeros(1, np.int32)
        for index, frame in enumerate(pcm):
            out = backend.step(StepInputs(row, np.array([index == 0]), frame[None]))
            if not out.emitted[0]:
                continue
            if out.pcm is not None:
                sound.append(out.pcm[0].copy())
            text.append(NO_TOKEN if out.text_tokens is None else int(out.text_tokens[0]))
    finally:
        backend.close()
    return BackendOutput(np.stack(sound) if sound else np.zeros((0, pcm.shape[1]), np.float32), tuple(text))


def compare(upstream: BackendOutput, ours: BackendOutput) -> Parity:
    """Hold our answer against upstream's.

    Raises:
        ValueError: they answered another number of frames.
    """
    pairs = enumerate(zip(upstream.text, ours.text, strict=True))
    differing = next((index for index, (theirs, own) in pairs if theirs != own), None)
    return Parity(len(upstream.text), differing, snr_db(upstream.pcm, ours.pcm))


def snr_db(clean: FloatArray, other: FloatArray) -> float:
    """Signal-to-noise ratio of ``other`` to ``clean``, of one shape; inf when they are equal."""
    wide = clean.astype(np.float64)
    noise, signal = float(np.square(other - wide).sum()), float(np.square(wide).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
