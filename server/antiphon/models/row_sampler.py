"""The sampling of S rows: their parameters as columns, and the words each of them has lately said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import UnsupportedError
from antiphon.models.philox import gumbel_table
from antiphon.models.sampling import TEXT_STREAM, SamplingParameters, penalise, sample
from antiphon.models.spec import LMSpec

FloatArray: TypeAlias = NDArray[np.float32]
IntArray: TypeAlias = NDArray[np.int32]

MAX_PENALTY_CONTEXT = 200  # the longest look back of docs/sampling.md

_PARAMETERS = np.dtype(
    [
        ("text_temperature", np.float32),
        ("text_topk", np.int64),
        ("audio_temperature", np.float32),
        ("audio_topk", np.int64),
        ("pad_mult", np.float32),
        ("repetition_penalty_context", np.int64),
        ("repetition_penalty", np.float32),
        ("text_seed", np.uint64),
        ("audio_seed", np.uint64),
    ]
)


class RowSampler:
    """Chooses the tokens of each row by that row's own parameters, seeds and step.

    A call names its rows, int32 ``[m]``, each once; all arrays are in their order.

    State, row first: ``words`` int32 ``[rows, MAX_PENALTY_CONTEXT]``, the newest last, -1 where there is
    none yet: the text that counts for the repetition penalty (docs/sampling.md, section 4).
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Make ``rows`` fresh rows with default parameters."""
        self._no_words = (spec.text_padding_id, spec.text_end_padding_id, spec.text_card)
        self._pad_id = spec.text_padding_id
        self._parameters = np.zeros(rows, dtype=_PARAMETERS)
        self._words: IntArray = np.full((rows, MAX_PENALTY_CONTEXT), -1, dtype=np.int32)
        for row in range(rows):
            self.set_parameters(row, SamplingParameters())

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters. Raises UnsupportedError for a longer look back than is remembered."""
        if parameters.repetition_penalty_context > MAX_PENALTY_CONTEXT:
            raise UnsupportedError(
                f"a repetition penalty over {parameters.repetition_penalty_context} words, "
                f"but only {MAX_PENALTY_CONTEXT} are remembered"
            )
        values = asdict(parameters)
        self._parameters[row] = tuple(values[name] for name in _PARAMETERS.names or ())

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Forget what rows have said; their parameters stay."""
        self._words[list(rows)] = -1

    def text(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64]) -> IntArray:
        """Choose a text token for each row, int32 ``[m]``, and remember the words.

        ``logits`` is float32 ``[m, text_card]``, ``steps`` int64 ``[m]`` the rows' steps since their reset.
        """
        asked = self._parameters[rows]
        chosen = sample(
            self._penalised(logits, rows),
            temperature=asked["text_temperature"],
            topk=asked["text_topk"],
            seed=asked["text_seed"],
            step=steps,
            stream=TEXT_STREAM,
            pad_id=self._pad_id,
            pad_mult=asked["pad_mult"],
        )
        said = ~np.isin(chosen, self._no_words)
        speaking = rows[said]
        self._words[speaking, :-1] = self._words[speaking, 1:]
        self._words[speaking, -1] = chosen[said]
        return chosen

    def voice(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64], codebook: int) -> IntArray:
        """Choose a token of one codebook for each row, int32 ``[m]``."""
        asked = self._parameters[rows]
        return sample(
            logits,
            temperature=asked["audio_temperature"],
            topk=asked["audio_topk"],
            seed=asked["audio_seed"],
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
        asked = self._parameters[rows]
        temperature, topk = asked["audio_temperature"], asked["audio_topk"]
        is_greedy = temperature == 0
        noise[is_greedy] = 0
        streams = TEXT_STREAM + 1 + np.arange(codebooks)
        drawn = ~is_greedy
        if drawn.any():
            noise[drawn] = gumbel_table(asked["audio_seed"][drawn], steps[drawn], streams, card)
        inverse: FloatArray = np.reciprocal(np.where(is_greedy, np.float32(1), temperature))
        topk = np.where((topk == 0) | (topk > card), card, topk)
        return inverse, np.where(is_greedy, 1, topk)

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
        asked = self._parameters[rows]
        penalty, context = asked["repetition_penalty"], asked["repetition_penalty_context"]
        if np.all((penalty == 1) | (context == 0)):
            return logits
        age = np.arange(MAX_PENALTY_CONTEXT)[::-1]
        recent = np.where(age < context[:, None], self._words[rows], -1)
        return penalise(logits, recent, penalty)
