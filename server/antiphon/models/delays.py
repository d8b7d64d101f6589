"""Which token of which stream goes into a step, and which tokens come out of it: the delay cache.

The streams of a Moshi-family model run with different delays: what is sampled at step t for a stream
with delay d belongs to frame t - d. A short ring per row lines them up, as ``LMGen`` of kyutai-labs/moshi
0.2.13 does (``moshi/models/lm.py``), here in numpy for rows that start and pause independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.models.spec import LMSpec

IntArray: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]

ZERO: Final = -1
"""Input token that stands for "nothing": its embedding is zero."""
UNGENERATED: Final = -2
"""Output token of a row that has none: not executed, or still inside its first ``max_delay`` frames."""


class DelayCache:
    """The delay rings of ``rows`` rows.

    A step is :meth:`inputs`, then the model, then :meth:`outputs`, both with the same ``exec_mask``
    (bool ``[n]``: the first n rows take part). Until outputs is called nothing has advanced, so a step
    that failed in between can be tried again.

    State, row first: ``tokens`` int32 ``[rows, n_q + 1, max_delay + 2]``, ring position of frame f is
    f modulo its length; ``offsets`` int64 ``[rows]``, steps taken since the row was reset.
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
        self._rows = np.arange(rows)[:, None]
        self._streams = np.arange(spec.n_q + 1)

    def reset(self, mask: BoolArray) -> None:
        """Make the rows of a bool mask ``[n]`` fresh."""
        rows = np.flatnonzero(mask)
        self.tokens[rows] = UNGENERATED
        self.offsets[rows] = 0

    def inputs(self, heard: IntArray, exec_mask: BoolArray) -> IntArray:
        """Take what was heard, int32 ``[n, >= n_q - dep_q]``, and return the model's input ``[n, n_q + 1]``.

        Streams whose delay has not passed yet, and rows not executed, get the initial tokens
        (``text_card`` and ``card``): valid ids, whatever ``heard`` holds there. Codebooks heard beyond
        the ones the model listens to are ignored.
        """
        rows = np.flatnonzero(exec_mask)
        listening = self._streams[self._spoken :]
        written = (self.offsets[rows, None] + self._delays[listening]) % self._length
        self.tokens[rows[:, None], listening, written] = heard[rows, : len(listening)]

        offsets = self.offsets[: len(exec_mask), None]
        current = self.tokens[self._rows[: len(exec_mask)], self._streams, offsets % self._length]
        is_initial = (offsets <= self._delays) | ~exec_mask[:, None]
        return np.where(is_initial, self._initial, current)

    def outputs(self, text: IntArray, voice: IntArray, exec_mask: BoolArray) -> tuple[IntArray, BoolArray]:
        """Take what was sampled and return the frame that is now complete in all streams.

        ``text`` is int32 ``[n]``, ``voice`` int32 ``[n, dep_q]``. Returns tokens int32 ``[n, dep_q + 1]``,
        text first, and bool ``[n]``: whether the row has a frame at all (its tokens are ``UNGENERATED``
        otherwise).
        """
        rows = np.flatnonzero(exec_mask)
        self.offsets[rows] += 1
        now = self.offsets[rows] % self._length
        self.tokens[rows, 0, now] = text[rows]
        self.tokens[rows[:, None], self._streams[1 : self._spoken], now[:, None]] = voice[rows]

        offsets = self.offsets[: len(exec_mask), None]
        emitted = (offsets[:, 0] > self._max_delay) & exec_mask
        frame = (offsets - self._max_delay + self._delays[: self._spoken]) % self._length
        tokens = self.tokens[self._rows[: len(exec_mask)], self._streams[: self._spoken], frame]
        return np.where(emitted[:, None], tokens, np.int32(UNGENERATED)), emitted

    def snapshot(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Copy one row's state, by name, without the row axis."""
        return {"tokens": self.tokens[row].copy(), "offset": self.offsets[row].copy()}

    def restore(self, row: int, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put a copied state into a row. Raises ValueError when its shape is another model's."""
        tokens = state["tokens"]
        if tokens.shape != self.tokens.shape[1:]:
            raise ValueError(f"a delay ring of shape {tokens.shape} does not fit {self.tokens.shape[1:]}")
        self.tokens[row] = tokens
        self.offsets[row] = state["offset"]

    def move(self, source: int, target: int) -> None:
        """Copy the state of one row over another."""
        self.tokens[target] = self.tokens[source]
        self.offsets[target] = self.offsets[source]

    @property
    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self.tokens.nbytes + self.offsets.nbytes
