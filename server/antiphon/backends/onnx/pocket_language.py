"""The language model of Pocket-TTS over S rows: two graphs, for reading and for speaking, on the same
state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import FloatArray, IntArray
from antiphon.backends.onnx.stage import Stage
from antiphon.models.manifest import Array
from antiphon.models.pocket_shape import READ_POSITIONS, PocketShape

POSITION: Final = "lm.position"


class PocketLanguage:
    """The keys and values of S rows; each row starts with its voice.

    Graphs write at a row's position, and read only the positions before it. A run may write positions that it
    does not count: one in an idle row, and several after the end of a text. The next run overwrites these.
    ``voice`` counts the positions of the voices, ``reached`` the positions written since the reset; both are
    int64 ``[S]``.
    """

    def __init__(self, read: Stage, lm: Stage, shape: PocketShape) -> None:
        """Use the stages of loaded graphs, where ``read`` runs one row at a time."""
        self._read, self._lm, self._shape = read, lm, shape
        self.allocate(lm.slots)

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows; the stage "lm" must have allocated its rows before."""
        self._read.allocate(slots)
        self._read.graph.state.arrays.update(self._lm.state.arrays)
        self.voice: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._reached: NDArray[np.int64] = np.zeros(slots, np.int64)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The number of positions that each row has filled, int64 ``[S]``."""
        found: NDArray[np.int64] = self._lm.state.arrays[POSITION]
        return found

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows bit for bit: all positions that were written are erased."""
        for row in rows:
            own = min(int(self.positions[row]) + 1, self._shape.capacity)  # one more for an idle row
            self.positions[row] = max(self._reached[row], own)
            self._lm.state.reset([row])
            self._reached[row] = self.voice[row] = 0

    def rewind(self, row: int) -> None:
        """Remove a row's text and speech, and keep its voice."""
        self.positions[row] = self.voice[row]

    def room(self, row: int) -> int:
        """The number of free positions of a row."""
        return self._shape.capacity - int(self.positions[row])

    def read(self, row: int, tokens: Sequence[int], heard: FloatArray | None = None) -> None:
        """Read tokens into a row; ``heard`` has the latents ``[T, width]`` of a voice's positions."""
        rows = np.array([row], np.int32)
        for first in range(0, len(tokens), READ_POSITIONS):
            part = tokens[first : first + READ_POSITIONS]
            named = np.zeros((1, READ_POSITIONS), np.int64)
            named[0, : len(part)] = part
            inputs: dict[str, Array] = {"tokens": named, "count": np.array([len(part)])}
            if "heard" in self._read.graph.inputs:
                latents = np.zeros_like(self._read.graph.inputs["heard"][:1])
                if heard is not None:
                    latents[0, : len(part)] = heard[first : first + READ_POSITIONS]
                inputs["heard"] = latents
            self._read.run(rows, inputs)
            self._reach(row)

    def _reach(self, row: int) -> None:
        furthest = min(int(self.positions[row]) + READ_POSITIONS, self._shape.capacity)
        self._reached[row] = max(self._reached[row], furthest)

    def say(
        self, rows: IntArray, latents: FloatArray, noise: FloatArray, *, is_fixed: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Compute the next latents ``[m, width]`` after ``latents``, from ``noise``, and the end-of-speech
        scores ``[m]``.
        """
        found = self._lm.run(rows, {"latent": latents, "noise": noise}, is_fixed=is_fixed)
        for row in rows.tolist():
            self._reach(row)
        return found["next"], found["eos"]

    def write_voice(self, row: int, keys_values: FloatArray) -> None:
        """Write a voice, float32 ``[layers, 2, T, heads, head_dim]``, to a fresh row."""
        arrays, count = self._lm.state.arrays, keys_values.shape[2]
        for layer, pair in enumerate(keys_values):
            for part, values in zip("kv", pair, strict=True):
                arrays[f"lm.{layer}.{part}"][row, :, :count] = values.transpose(1, 0, 2)
        self.positions[row] = count
        self.keep_voice(row)

    def keep_voice(self, row: int) -> None:
        """Make all positions so far the row's voice."""
        self.voice[row] = self.positions[row]
        self._reach(row)

    def copy_voice(self, row: int) -> FloatArray:
        """Copy a row's voice, float32 ``[layers, 2, T, heads, head_dim]``, as :meth:`write_voice` takes
        it.
        """
        arrays, count = self._lm.state.arrays, int(self.voice[row])
        return np.array(
            [
                [arrays[f"lm.{layer}.{part}"][row, :, :count].transpose(1, 0, 2) for part in "kv"]
                for layer in range(self._shape.layers)
            ]
        )

    def recall(self, row: int, voice: int) -> None:
        """Set the length of a restored row's voice."""
        self.voice[row] = voice
        self._reach(row)
