"""The language model of Pocket-TTS over S rows: two graphs, one to read and one to say, on the same state."""

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
    """Keys and values of S rows, which begin with each row's voice.

    Graphs write at a row's position, which bounds what they read; a row that rests in a run gets one position
    written that stays hidden, and the end of a text is followed by hidden ones. ``voice`` counts the
    positions of the voices, ``reached`` those that were ever written since the reset, both int64 ``[S]``.
    """

    def __init__(self, read: Stage, lm: Stage, shape: PocketShape) -> None:
        """Take over the stages of loaded graphs, of which ``read`` runs one row at a time."""
        self._read, self._lm, self._shape = read, lm, shape
        self.allocate(lm.slots)

    def allocate(self, slots: int) -> None:
        """Have ``slots`` fresh rows, after those of ``lm``."""
        self._read.allocate(slots)
        self._read.graph.state.arrays.update(self._lm.state.arrays)
        self.voice: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._reached: NDArray[np.int64] = np.zeros(slots, np.int64)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of all rows, int64 ``[S]``."""
        found: NDArray[np.int64] = self._lm.state.arrays[POSITION]
        return found

    def reset(self, rows: Sequence[int]) -> None:
        """Make rows fresh, bit for bit: what is hidden is erased too."""
        for row in rows:
            own = min(int(self.positions[row]) + 1, self._shape.capacity)  # one more where it rested
            self.positions[row] = max(self._reached[row], own)
            self._lm.state.reset([row])
            self._reached[row] = self.voice[row] = 0

    def rewind(self, row: int) -> None:
        """Forget a row's text and speech; its voice stays."""
        self.positions[row] = self.voice[row]

    def room(self, row: int) -> int:
        """The positions that are left in a row."""
        return self._shape.capacity - int(self.positions[row])

    def read(self, row: int, tokens: Sequence[int], heard: FloatArray | None = None) -> None:
        """Read tokens, with the latents ``[T, width]`` of those that are a voice's."""
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
        """The next latents ``[m, width]`` after ``latents``, from ``noise``; and signs of an end ``[m]``."""
        found = self._lm.run(rows, {"latent": latents, "noise": noise}, is_fixed=is_fixed)
        for row in rows.tolist():
            self._reach(row)
        return found["next"], found["eos"]

    def write_voice(self, row: int, keys_values: FloatArray) -> None:
        """Give a fresh row a voice, float32 ``[layers, 2, T, heads, head_dim]``."""
        arrays, count = self._lm.state.arrays, keys_values.shape[2]
        for layer, pair in enumerate(keys_values):
            for part, values in zip("kv", pair, strict=True):
                arrays[f"lm.{layer}.{part}"][row, :, :count] = values.transpose(1, 0, 2)
        self.positions[row] = count
        self.keep_voice(row)

    def keep_voice(self, row: int) -> None:
        """What a row has read until now is its voice."""
        self.voice[row] = self.positions[row]
        self._reach(row)

    def copy_voice(self, row: int) -> FloatArray:
        """The reverse of :meth:`write_voice`."""
        arrays, count = self._lm.state.arrays, int(self.voice[row])
        return np.array(
            [
                [arrays[f"lm.{layer}.{part}"][row, :, :count].transpose(1, 0, 2) for part in "kv"]
                for layer in range(self._shape.layers)
            ]
        )

    def recall(self, row: int, voice: int) -> None:
        """A restored row's voice is this long."""
        self.voice[row] = voice
        self._reach(row)
