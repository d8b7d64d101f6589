"""Excerpts of talk as a microphone gets them, and what the codec has for the speech in them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from antiphon.arrays import FloatArray
from lab.train.augment import equalise
from lab.train.questions import Utterance
from lab.train.segments import EQUALISED, FRAME_SAMPLES, QUIET_STRIPS, quiet, repeated
from lab.train.surroundings import Surroundings

LOUDNESS: Final = 0.1
"""The root mean square of every utterance, as it is to be encoded; it is heard up to 30 dB below."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a batch is made of."""

    batch: int = 8
    frames: int = 36
    quiet_share: float = 0.1
    """Of the excerpts, in so many nobody speaks."""
    pause_frames: tuple[float, float] = (1.0, 12.0)
    """Between one utterance and the next."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the microphone gets, float32 ``[B, 1, samples]``; latents ``[B, C, T]`` of the speech alone."""

    heard: Tensor
    wanted: Tensor


class Excerpts(Dataset[Heard]):
    """Batches by number, each drawn from a seed of its own."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        teacher: Any,
        shape: Shape,
        seed: int,
        *,
        held_out: bool = False,
    ) -> None:
        self._utterances, self._teacher, self._shape = utterances, teacher, shape
        self._seed, self._held_out = seed, held_out

    def __getitem__(self, place: int) -> Heard:
        """The batch of step ``place``."""
        rng = np.random.default_rng((self._seed, place))
        pairs = [self._pair(rng) for _ in range(self._shape.batch)]
        heard, said = (torch.from_numpy(np.stack(sounds))[:, None] for sounds in zip(*pairs, strict=True))
        with torch.no_grad():
            return Heard(heard, latent_of(self._teacher, said))

    def _pair(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """``[samples]`` at the microphone, and of the speech."""
        samples = self._shape.frames * FRAME_SAMPLES
        if rng.random() < self._shape.quiet_share:
            crowd = [self._drawn(rng) for _ in range(10)]
            sound = quiet(rng, crowd, samples, int(rng.integers(QUIET_STRIPS)), held_out=self._held_out)
            return sound, np.zeros(samples, np.float32)
        said = self.speech(rng, samples)
        around = Surroundings.drawn(rng, held_out=self._held_out)
        is_recoloured = not self._held_out and rng.random() < EQUALISED
        sent = equalise(rng, said) if is_recoloured else said
        behind = repeated(self._drawn(rng).pcm, samples, LOUDNESS)
        return around.heard(rng, sent, LOUDNESS, behind), said

    def speech(self, rng: np.random.Generator, samples: int) -> FloatArray:
        """Utterances with pauses, ``LOUDNESS`` each, the last one cut off."""
        said = np.zeros(samples, np.float32)
        at = int(rng.uniform(0, self._shape.pause_frames[1]) * FRAME_SAMPLES)
        while at < samples:
            pcm = self._drawn(rng).pcm
            said[at : at + pcm.size] = repeated(pcm, pcm.size, LOUDNESS)[: samples - at].clip(-1, 1)
            at += pcm.size + int(rng.uniform(*self._shape.pause_frames) * FRAME_SAMPLES)
        return said

    def _drawn(self, rng: np.random.Generator) -> Utterance:
        return self._utterances[int(rng.integers(len(self._utterances)))]


def latent_of(mimi: Any, sound: Tensor) -> Tensor:
    """Latents ``[B, C, T]`` of ``[B, 1, samples]``, before they are rounded."""
    latent: Tensor = mimi.encode_to_latent(sound, quantize=False)
    return latent.float()
