"""The sampling parameters of S rows as columns, for samplers on any device."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import UnsupportedError
from antiphon.models.sampling import SamplingParameters

RECENT_WORDS: Final = 256
"""Words that samplers remember for the repetition penalty; a session may ask for 200."""


class RowParameters:
    """What each row was asked to sample with; see docs/sampling.md.

    Columns by name, by text and audio, by row. ``floats`` float32 ``[4, 2, S]`` are temperature, its inverse
    (1 where it is 0), the penalty and its inverse, and the text's pad_mult. ``integers`` int64 ``[3, 2, S]``
    are top-k, the seed's 64 bits, and how far the text's penalty looks back.
    """

    def __init__(self, rows: int) -> None:
        """Give every row the default parameters."""
        self.floats: NDArray[np.float32] = np.zeros((4, 2, rows), np.float32)
        self.integers: NDArray[np.int64] = np.zeros((3, 2, rows), np.int64)
        for row in range(rows):
            self.set(row, SamplingParameters())

    def set(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters.

        Raises:
            UnsupportedError: a repetition penalty that looks back further than is remembered.
        """
        p = parameters
        if p.repetition_penalty_context > RECENT_WORDS:
            raise UnsupportedError(
                f"a repetition penalty over {p.repetition_penalty_context} words, "
                f"but only {RECENT_WORDS} are remembered"
            )
        temperature = np.array((p.text_temperature, p.audio_temperature), np.float32)
        penalty = np.float32(p.repetition_penalty)
        self.floats[0, :, row] = temperature
        self.floats[1, :, row] = np.reciprocal(np.where(temperature == 0, np.float32(1), temperature))
        self.floats[2, :, row] = penalty, np.float32(1) / penalty
        self.floats[3, 0, row] = p.pad_mult
        self.integers[0, :, row] = p.text_topk, p.audio_topk
        self.integers[1, :, row] = np.array((p.text_seed, p.audio_seed), np.uint64).view(np.int64)
        self.integers[2, 0, row] = p.repetition_penalty_context

    @property
    def seeds(self) -> NDArray[np.uint64]:
        """The seeds ``[2, S]``."""
        seeds: NDArray[np.uint64] = self.integers[1].view(np.uint64)
        return seeds
