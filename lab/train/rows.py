"""A talker in this process: prepared tracks in, its sound and its words out, as fast as it goes.

What it says is placed where a listener hears it at the earliest: a frame after the frame that it answers. The
times are the model's own; a server and a network add theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import AUTO, make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters

FRAME_SAMPLES: Final = 1920
FRAME_S: Final = 0.08


@dataclass(frozen=True, slots=True)
class Reply:
    """Sound ``[samples]`` beside a track, sample for sample, and words, each with its second."""

    pcm: FloatArray
    words: tuple[tuple[float, str], ...]

    def text(self, start_s: float = 0.0, stop_s: float = np.inf) -> str:
        """The words from one second up to another."""
        return " ".join(word for at_s, word in self.words if start_s <= at_s < stop_s)


class Talker:
    """A talker with so many rows; the likeliest text token is taken, whatever its folder says."""

    def __init__(self, model: str, backend: str | None = None, rows: int = 8) -> None:
        """Load a built-in model or a folder.

        Raises:
            AntiphonError: there is no such model, or it cannot be run here.
            ValueError: it has no words.
        """
        checkpoint = load_checkpoint(model)
        tokenizer = checkpoint.text_tokenizer()
        if tokenizer is None:
            raise ValueError(f"{model} has no tokenizer")
        self._tokenizer, self._rows = tokenizer, rows
        self._backend = make_backend(backend or AUTO, checkpoint, slots=rows)
        self._sampling = SamplingParameters.from_generation(checkpoint.generation)

    def listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        """What is answered to each track, padded to whole frames."""
        replies: list[Reply] = []
        for start in range(0, len(tracks), self._rows):
            replies += self._listen(tracks[start : start + self._rows])
        return replies

    def _listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        heard = [np.pad(one, (0, -one.size % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES) for one in tracks]
        sound = [np.zeros(((len(one) + 1), FRAME_SAMPLES), np.float32) for one in heard]
        words: list[list[tuple[float, str]]] = [[] for _ in heard]
        for row in range(len(heard)):
            self._backend.set_parameters(row, replace(self._sampling, text_temperature=0.0, audio_seed=row))
        for frame in range(max(len(one) for one in heard)):
            rows = [row for row, one in enumerate(heard) if frame < len(one)]
            first = np.full(len(rows), frame == 0)
            pcm = np.stack([heard[row][frame] for row in rows]).astype(np.float32)
            outputs = self._backend.step(StepInputs(np.array(rows, np.int32), first, pcm))
            assert outputs.text_tokens is not None
            assert outputs.pcm is not None
            for place, row in enumerate(rows):
                if outputs.emitted[place]:
                    sound[row][frame + 1] = outputs.pcm[place]
                    word = self._tokenizer.piece(int(outputs.text_tokens[place])).strip()
                    if word:
                        words[row].append(((frame + 1) * FRAME_S, word))
        return [
            Reply(played.reshape(-1)[: one.size], tuple(said))
            for played, one, said in zip(sound, tracks, words, strict=True)
        ]
