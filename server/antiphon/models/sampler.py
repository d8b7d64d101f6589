"""Sampling for a batch of rows, each with its own parameters and its own recent text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import ConfigError
from antiphon.models.sampling import TEXT_STREAM, FloatArray, IntArray, SamplingParameters, penalise, sample
from antiphon.models.spec import LMSpec

BoolArray: TypeAlias = NDArray[np.bool_]

MAX_CONTEXT: Final = 200
"""Most text tokens a repetition penalty can look back on: the range the protocol allows."""
_NOTHING: Final = -1


class RowSampler:
    """Chooses the tokens of ``rows`` rows as docs/sampling.md says. Parameters survive a reset.

    State, row first: ``recent`` int32 ``[rows, 200]``, a ring of the last text tokens that were no
    padding (-1: none yet); ``said`` int64 ``[rows]``, how many there have been since the reset.
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Make ``rows`` fresh rows with default parameters."""
        self._pad_id = spec.text_padding_id
        self._unsaid = np.array([spec.text_padding_id, spec.text_end_padding_id, spec.text_card])
        self.parameters = [SamplingParameters()] * rows
        self.recent: IntArray = np.full((rows, MAX_CONTEXT), _NOTHING, dtype=np.int32)
        self.said: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._gather()

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters, from the next token on. Raises ConfigError for a context over 200."""
        if not 0 <= parameters.repetition_penalty_context <= MAX_CONTEXT:
            raise ConfigError(
                f"repetition_penalty_context is {parameters.repetition_penalty_context}, "
                f"expected 0 to {MAX_CONTEXT}"
            )
        self.parameters[row] = parameters
        self._gather()

    def reset(self, mask: BoolArray) -> None:
        """Forget the text of the rows of a bool mask ``[n]``."""
        rows = np.flatnonzero(mask)
        self.recent[rows] = _NOTHING
        self.said[rows] = 0

    def text(self, logits: FloatArray, step: NDArray[np.int64], exec_mask: BoolArray) -> IntArray:
        """Choose and remember the text token of every executed row.

        ``logits`` is float32 ``[n, text_card]``, ``step`` int64 ``[n]`` the steps taken since the reset.
        Returns int32 ``[n]``, 0 for rows not executed.
        """
        rows = np.flatnonzero(exec_mask)
        logits = logits if len(rows) == len(logits) else logits[rows]
        if (self._penalty[rows] != 1).any():
            logits = penalise(logits, self._context(rows), self._penalty[rows])
        chosen = sample(
            logits,
            temperature=self._text_temperature[rows],
            topk=self._text_topk[rows],
            seed=self._text_seed[rows],
            step=step[rows],
            stream=TEXT_STREAM,
            pad_id=self._pad_id,
            pad_mult=self._pad_mult[rows],
        )
        self._remember(rows, chosen)
        return self._spread(chosen, rows, len(exec_mask))

    def audio(
        self, logits: FloatArray, codebook: int, step: NDArray[np.int64], exec_mask: BoolArray
    ) -> IntArray:
        """Choose the token of one codebook (from 0) of every executed row, from float32 ``[n, card]``."""
        rows = np.flatnonzero(exec_mask)
        chosen = sample(
            logits if len(rows) == len(logits) else logits[rows],
            temperature=self._audio_temperature[rows],
            topk=self._audio_topk[rows],
            seed=self._audio_seed[rows],
            step=step[rows],
            stream=codebook + 1,
        )
        return self._spread(chosen, rows, len(exec_mask))

    def snapshot(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Copy one row's state, by name, without the row axis. Parameters are not part of it."""
        return {"recent": self.recent[row].copy(), "said": self.said[row].copy()}

    def restore(self, row: int, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put a copied state into a row."""
        self.recent[row] = state["recent"]
        self.said[row] = state["said"]

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        self.recent[target] = self.recent[source]
        self.said[target] = self.said[source]
        self.parameters[target] = self.parameters[source]
        self._gather()

    @property
    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self.recent.nbytes + self.said.nbytes

    def _gather(self) -> None:
        """Lay the rows' parameters out as arrays, so that a step need not."""
        rows = self.parameters
        self._text_temperature = np.array([row.text_temperature for row in rows], dtype=np.float32)
        self._audio_temperature = np.array([row.audio_temperature for row in rows], dtype=np.float32)
        self._text_topk = np.array([row.text_topk for row in rows], dtype=np.int64)
        self._audio_topk = np.array([row.audio_topk for row in rows], dtype=np.int64)
        self._text_seed = np.array([row.text_seed for row in rows], dtype=np.uint64)
        self._audio_seed = np.array([row.audio_seed for row in rows], dtype=np.uint64)
        self._pad_mult = np.array([row.pad_mult for row in rows], dtype=np.float32)
        self._penalty = np.array([row.repetition_penalty for row in rows], dtype=np.float32)
        self._penalty_context = np.array([row.repetition_penalty_context for row in rows], dtype=np.int64)

    def _context(self, rows: NDArray[np.int64]) -> IntArray:
        """The tokens each row's penalty looks back on, -1 elsewhere."""
        newest = self.said[rows, None] - 1
        age = (newest - np.arange(MAX_CONTEXT)) % MAX_CONTEXT
        return np.where(age < self._penalty_context[rows, None], self.recent[rows], np.int32(_NOTHING))

    def _remember(self, rows: NDArray[np.int64], tokens: IntArray) -> None:
        is_said = ~np.isin(tokens, self._unsaid)
        rows = rows[is_said]
        self.recent[rows, self.said[rows] % MAX_CONTEXT] = tokens[is_said]
        self.said[rows] += 1

    @staticmethod
    def _spread(chosen: IntArray, rows: NDArray[np.int64], count: int) -> IntArray:
        tokens = np.zeros(count, dtype=np.int32)
        tokens[rows] = chosen
        return tokens
