"""The delay cache: the tokens of each stream that enter a step, and the tokens that the step completes.

The streams of a Moshi-family model have different delays: a token sampled at step t for a stream with delay d
belongs to frame t - d. A short ring per row aligns them, as ``LMGen`` of kyutai-labs/moshi 0.2.13 does
(``moshi/models/lm.py``), here in numpy for rows that start and pause independently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.models.spec import LMSpec

IntArray: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]

ZERO: Final = -1
"""Input token that means "nothing": its embedding is zero."""
UNGENERATED: Final = -2
"""Output token of a row that is still within its first ``max_delay`` frames."""


class DelayRings:
    """The delay rings of ``rows`` rows.

    A step calls :meth:`inputs`, then the model, then :meth:`outputs`. Both methods get the same rows, int32
    ``[m]``, each named once; all arrays are in the order of these rows. Rows advance only in :meth:`outputs`,
    so a step that failed can be repeated.

    State, row first: ``tokens`` int32 ``[rows, n_q + 1, max_delay + 2]``, where frame f is at position f
    modulo the ring's length; ``offsets`` int64 ``[rows]``, steps taken since the row was reset.
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Make ``rows`` fresh rows for a model of this shape."""
        self._delays = np.array(spec.delays, dtype=np.int64)
        self._max_delay = spec.max_delay
        self._spoken = spec.dep_q + 1  # text and the model's own voice
        self._initial = np.full(spec.n_q + 1, spec.card, dtype=np.int32)
        self._initial[0] = spec.text_card
        self._length = spec.max_delay + 2
        self.tokens: IntArray = np.full((rows, spec.n_q + 1, self._length), UNGENERATED, dtype=np.int32)
        self.offsets: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._streams = np.arange(spec.n_q + 1)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Make rows fresh."""
        self.tokens[list(rows)] = UNGENERATED
        self.offsets[list(rows)] = 0

    def inputs(self, rows: IntArray, heard: IntArray) -> IntArray:
        """Take received codes, int32 ``[m, >= n_q - dep_q]``, and return the model's input ``[m, n_q + 1]``.

        Streams whose delay has not yet passed get the initial tokens (``text_card`` and ``card``). Codebooks
        that the model does not have are ignored.
        """
        offsets = self.offsets[rows, None]
        listening = self._streams[self._spoken :]
        written = (offsets + self._delays[listening]) % self._length
        self.tokens[rows[:, None], listening, written] = heard[:, : len(listening)]
        current = self.tokens[rows[:, None], self._streams, offsets % self._length]
        return np.where(offsets <= self._delays, self._initial, current)

    def outputs(self, rows: IntArray, text: IntArray, voice: IntArray) -> tuple[IntArray, BoolArray]:
        """Take sampled tokens and return the frame that is now complete in all streams.

        ``text`` is int32 ``[m]``, ``voice`` int32 ``[m, dep_q]``. Returns tokens int32 ``[m, dep_q + 1]``,
        text first, and bool ``[m]``: whether the row has a frame (its tokens are ``UNGENERATED`` otherwise).
        """
        self.offsets[rows] += 1
        offsets, streams = self.offsets[rows, None], self._streams[: self._spoken]
        self.tokens[rows[:, None], streams, offsets % self._length] = np.column_stack([text, voice])
        emitted = offsets[:, 0] > self._max_delay
        frame = (offsets - self._max_delay + self._delays[: self._spoken]) % self._length
        tokens = self.tokens[rows[:, None], streams, frame]
        return np.where(emitted[:, None], tokens, np.int32(UNGENERATED)), emitted

    def snapshot(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Copy one row's state, by name, without the row axis."""
        return {"tokens": self.tokens[row].copy(), "offset": self.offsets[row].copy()}

    def restore(self, row: int, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put a copied state into a row. Raises ValueError if the state has the shape of another model."""
        tokens = state["tokens"]
        if tokens.shape != self.tokens.shape[1:]:
            raise ValueError(f"a delay ring of shape {tokens.shape} does not fit {self.tokens.shape[1:]}")
        self.tokens[row] = tokens
        self.offsets[row] = state["offset"]

    @property
    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self.tokens.nbytes + self.offsets.nbytes
