"""The sampling of S rows: their parameters as columns, and the words each of them has lately said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray as FloatArray
from antiphon.models.philox import gumbel_table
from antiphon.models.row_parameters import RECENT_WORDS, RowParameters
from antiphon.models.sampling import TEXT_STREAM, SamplingParameters, penalise, sample
from antiphon.models.spec import LMSpec

IntArray: TypeAlias = NDArray[np.int32]

TEXT, AUDIO = 0, 1
"""Columns of parameters."""


class RowSampler:
    """Chooses the tokens of each row by that row's own parameters, seeds and step.

    A call names its rows, int32 ``[m]``, each once; all arrays are in their order.

    State, row first: ``words`` int32 ``[rows, RECENT_WORDS]``, the newest last, -1 where there is
    none yet: the text that counts for the repetition penalty (docs/sampling.md, section 4).
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Make ``rows`` fresh rows with default parameters."""
        self._no_words = (spec.text_padding_id, spec.text_end_padding_id, spec.text_card)
        self._pad_id = spec.text_padding_id
        self._given = RowParameters(rows)
        self._words: IntArray = np.full((rows, RECENT_WORDS), -1, dtype=np.int32)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters; see :meth:`RowParameters.set`."""
        self._given.set(row, parameters)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Forget what rows have said; their parameters stay."""
        self._words[list(rows)] = -1

    def text(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64]) -> IntArray:
        """Choose a text token for each row, int32 ``[m]``, and remember the words.

        ``logits`` is float32 ``[m, text_card]``, ``steps`` int64 ``[m]`` the rows' steps since their reset.
        """
        given = self._given
        chosen = sample(
            self._penalised(logits, rows),
            temperature=given.floats[0, TEXT, rows],
            topk=given.integers[0, TEXT, rows],
            seed=given.seeds[TEXT, rows],
            step=steps,
            stream=TEXT_STREAM,
            pad_id=self._pad_id,
            pad_mult=given.floats[3, TEXT, rows],
        )
        said = ~np.isin(chosen, self._no_words)
        speaking = rows[said]
        self._words[speaking, :-1] = self._words[speaking, 1:]
        self._words[speaking, -1] = chosen[said]
        return chosen

    def voice(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64], codebook: int) -> IntArray:
        """Choose a token of one codebook for each row, int32 ``[m]``."""
        return sample(
            logits,
            temperature=self._given.floats[0, AUDIO, rows],
            topk=self._given.integers[0, AUDIO, rows],
            seed=self._given.seeds[AUDIO, rows],
            step=steps,
            stream=TEXT_STREAM + 1 + codebook,
        )

    def voice_race(
        self, rows: IntArray, steps: NDArray[np.int64], noise: FloatArray
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        """Everything a frame's audio tokens depend on but the logits, for choosing them elsewhere.

        ``noise`` float32 ``[m, codebooks, card]`` is filled. Returns, per row, ``1 / temperature`` float32
        and top-k int64 from 1 to ``card``. The token is the one with the largest
        ``logit / temperature + noise`` of the top k; a greedy row's is the top one, without noise.
        """
        _, codebooks, card = noise.shape
        topk = self._given.integers[0, AUDIO, rows]
        is_greedy = self._given.floats[0, AUDIO, rows] == 0
        noise[is_greedy] = 0
        streams = TEXT_STREAM + 1 + np.arange(codebooks)
        drawn = ~is_greedy
        if drawn.any():
            noise[drawn] = gumbel_table(self._given.seeds[AUDIO, rows[drawn]], steps[drawn], streams, card)
        topk = np.where((topk == 0) | (topk > card), card, topk)
        return self._given.floats[1, AUDIO, rows], np.where(is_greedy, 1, topk)

    def snapshot(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Copy one row's state, by name, without the row axis."""
        return {"words": self._words[row].copy()}

    def restore(self, row: int, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put a copied state into a row."""
        self._words[row] = state["words"]

    @property
    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self._words.nbytes

    def _penalised(self, logits: FloatArray, rows: IntArray) -> FloatArray:
        penalty, context = self._given.floats[2, 0, rows], self._given.integers[2, 0, rows]
        if np.all((penalty == 1) | (context == 0)):
            return logits
        age = np.arange(RECENT_WORDS)[::-1]
        recent = np.where(age < context[:, None], self._words[rows], -1)
        return penalise(logits, recent, penalty)
