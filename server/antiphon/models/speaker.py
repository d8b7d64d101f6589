"""The voice of a tts model: embeddings of a recording, as Kyutai publishes them.

A file holds ``speaker_wavs`` float ``[1, width, T]``: T vectors of about ten seconds of one voice. Models
were trained with up to five voices, all of the same T (``make_condition_attributes`` in
``moshi/models/tts.py`` of kyutai-labs/moshi); where there are fewer, something learnt stands in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.spec import ModelSpec
from antiphon.models.strict import check_type
from antiphon.models.voice_file import read_voice_file

CONDITION: Final = "speaker_wavs"
MAX_SPEAKERS: Final = 5
SPEAKER_FRAMES: Final = 125
"""Ten seconds at 12.5 Hz, what all published voices have; ``tts_config.speaker_frames`` is ours."""


@dataclass(frozen=True, slots=True)
class SpeakerShape:
    """``frames`` vectors of ``width`` for each voice."""

    frames: int
    width: int

    @classmethod
    def of(cls, spec: ModelSpec) -> SpeakerShape | None:
        """The shape a model needs; None for one that has a voice of its own.

        Raises:
            CheckpointFormatError: a configuration without the width.
        """
        conditioners = {} if spec.lm is None else spec.lm.config.get("conditioners") or {}
        if CONDITION not in conditioners:
            return None
        width = conditioners[CONDITION].get("tensor", {}).get("dim")
        frames = spec.generation.get("tts_config", {}).get("speaker_frames", SPEAKER_FRAMES)
        check_type(width, int, f"conditioners.{CONDITION}.tensor.dim")
        check_type(frames, int, "tts_config.speaker_frames")
        if frames < 1:
            raise CheckpointFormatError(f"tts_config.speaker_frames is {frames}, it must be at least 1")
        return cls(frames, width)

    @property
    def positions(self) -> int:
        """What cross-attention looks at, however many voices there are."""
        return MAX_SPEAKERS * self.frames

    def check(self, prompt: Prompt) -> FloatArray:
        """The voices of a prompt, float32 ``[V, T, width]``.

        Raises:
            UnsupportedError: it has none, or too many, or of another shape.
        """
        speakers = prompt.speakers
        wanted = f"float32 [1 to {MAX_SPEAKERS}, {self.frames}, {self.width}]"
        if speakers is None or speakers.dtype != np.float32 or speakers.ndim != 3:
            raise UnsupportedError(f"a tts model takes voices, {wanted}, and no other prompt")
        if not 1 <= len(speakers) <= MAX_SPEAKERS or speakers.shape[1:] != (self.frames, self.width):
            raise UnsupportedError(f"voices {list(speakers.shape)}, but this model needs {wanted}")
        return speakers

    def prompt(self, embeddings: FloatArray) -> Prompt:
        """The prompt of one voice, ``[1, width, T]`` or ``[width, T]`` as published.

        Raises:
            UnsupportedError: another shape, or a number that is not finite.
        """
        shape = embeddings.shape[1:] if embeddings.ndim == 3 and len(embeddings) == 1 else embeddings.shape
        if shape != (self.width, self.frames):
            raise UnsupportedError(
                f"a voice of shape {list(embeddings.shape)}, this model needs "
                f"[1, {self.width}, {self.frames}]"
            )
        if not np.isfinite(embeddings).all():
            raise UnsupportedError("a voice holds numbers that are not finite")
        speaker = embeddings.astype(np.float32, copy=False).reshape(self.width, self.frames).T
        return Prompt(np.zeros((0, 0), np.int32), speakers=np.ascontiguousarray(speaker)[None])


def read_speaker(path: Path) -> FloatArray:
    """The embeddings in a voice's file, float32 as published.

    Raises:
        CheckpointFormatError: no safetensors file, or none of a voice, or too large.
    """
    found = read_voice_file(path)
    if CONDITION not in found:
        raise CheckpointFormatError(f"{path.name} has {sorted(found)[:3]}, a voice has {CONDITION}")
    return found[CONDITION].astype(np.float32, copy=False)
