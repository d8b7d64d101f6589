"""Reads prompts many frames at a time, between ticks, and keeps the results as snapshots.

All tokens of a prompt are known, so its frames need neither sampling nor the depformer: the temporal
transformer reads many of them at once, and the only result is keys and values. The state before the first
output depends only on the prompt, so it is computed once and copied. After the copy a session only samples
the model's first output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from antiphon.backends.base import DeviceRows, IntArray, PrimeProgress, PromptExecutor
from antiphon.backends.snapshots import SnapshotCache, Tensors, size_of
from antiphon.models.prompt import Prompt, check_prompt
from antiphon.models.spec import LMSpec


class PromptedRows(DeviceRows, PromptExecutor, Protocol):
    """An executor whose rows accept prompts."""


@dataclass(slots=True)
class _Reading:
    """A row with a prompt in progress.

    ``frames`` int32 ``[T, 1 + n_q]``. ``encoded`` is the number of frames of its voice that are in it;
    ``codec`` is the executor's state for encoding the next.
    """

    prompt: Prompt
    frames: IntArray
    done: int = 0
    is_copied: bool = False
    encoded: int = 0
    codec: Any = None

    @property
    def is_encoded(self) -> bool:
        """Whether all of the voice is encoded."""
        voice = self.prompt.voice
        return voice is None or self.encoded == voice.shape[0]


class Primer:
    """Processes the prompts of an executor's rows, piece by piece."""

    def __init__(self, executor: PromptedRows, lm: LMSpec, cache_bytes: int) -> None:
        """Prime rows whose language model has the shape ``lm``; keep up to ``cache_bytes``."""
        self._executor, self._lm = executor, lm
        self._delays: IntArray = np.array(lm.delays, np.int32)
        self._initial: IntArray = np.array((lm.text_card, *[lm.card] * lm.n_q), np.int32)
        self._readings: dict[int, _Reading] = {}
        self.cache = SnapshotCache[Tensors](cache_bytes, size_of)

    def is_reading(self, row: int, prompt: Prompt) -> bool:
        """Whether the row is processing this prompt."""
        reading = self._readings.get(row)
        return reading is not None and reading.prompt.key == prompt.key

    def begin(self, row: int, prompt: Prompt) -> None:
        """Start a fresh row on a checked prompt."""
        reading, kept = _Reading(prompt, prompt.frames.copy()), self.cache.get(prompt.key)
        if kept is not None:
            self._executor.restore(row, kept)
            reading.done, reading.is_copied = prompt.count - 1, True
        self._readings[row] = reading

    def check(self, prompt: Prompt) -> None:
        """Raise UnsupportedError for a prompt this model cannot take."""
        check_prompt(prompt, self._lm)

    def advance(self, row: int) -> PrimeProgress:
        """Process one piece: some frames of the voice, one pass over tokens, or at the end the model's first
        output.
        """
        reading = self._readings.pop(row)  # a piece that fails may be half done: the prompt starts again
        count = reading.prompt.count
        if reading.done == count - 1:
            self._speak(row, reading)
            return PrimeProgress(count, count, reading.is_copied)
        if reading.is_encoded:
            self._read(row, reading)
        else:
            self._encode(reading)
        self._readings[row] = reading
        return PrimeProgress(reading.done, count, reading.is_copied)

    def forget(self, rows: Iterable[int]) -> None:
        """Drop the prompts of these rows, which other sessions now have."""
        for row in rows:
            self._readings.pop(row, None)

    def _encode(self, reading: _Reading) -> None:
        """Put some of the voice's codes into the model's own streams."""
        voice, first = reading.prompt.voice, reading.encoded
        assert voice is not None
        piece = voice[first : first + self._executor.pass_frames]
        reading.codec, codes = self._executor.encode_piece(reading.codec, piece)
        reading.encoded, own = first + piece.shape[0], self._lm.dep_q
        reading.frames[first : reading.encoded, 1 : 1 + own] = codes[:, :own]
        if reading.is_encoded:
            reading.codec = None

    def _read(self, row: int, reading: _Reading) -> None:
        """Run one wide pass; after the last one the state is kept."""
        first, last = reading.done, reading.prompt.count - 1
        end = min(first + self._executor.pass_frames, last)
        embedded = reading.prompt.embedded
        if embedded is not None and first < embedded.shape[0]:
            end = min(end, embedded.shape[0])
            self._executor.read_embedded(row, embedded[first:end], end)
        else:
            self._executor.read_tokens(row, self.inputs(reading.frames, first, end), end)
        reading.done = end
        if end == last:
            self._put_tokens(row, reading.frames)
            self.cache.put(reading.prompt.key, self._executor.snapshot(row))

    def inputs(self, frames: IntArray, first: int, end: int) -> IntArray:
        """The model's input at steps ``first`` to ``end - 1``: int32 ``[1 + n_q, end - first]``.

        At step s stream k is at frame ``s - delays[k]``. The stream's tokens up to frame 0, which is never
        output, are the initial token.
        """
        streams = np.arange(frames.shape[1])
        frame = np.arange(first, end)[:, None] - self._delays
        return np.where(frame > 0, frames[np.maximum(frame, 0), streams], self._initial).T

    def _put_tokens(self, row: int, frames: IntArray) -> None:
        """Fill the delay cache with the values that it has after all steps but the last."""
        last = frames.shape[0] - 1
        first = max(0, last - self._lm.max_delay)
        tokens = self.inputs(frames, first, last + 1)
        streams, steps = np.meshgrid(
            np.arange(tokens.shape[0], dtype=np.int32),
            np.arange(first, last + 1, dtype=np.int32),
            indexing="ij",
        )
        self._executor.write_tokens(row, streams.ravel(), steps.ravel(), tokens.ravel())

    def _speak(self, row: int, reading: _Reading) -> None:
        """Run the last step: the session's own sample, except for tokens of the last frame that are still
        due."""
        own, count = 1 + self._lm.dep_q, reading.prompt.count
        last = reading.frames[count - 1]
        self._executor.run_lm_row(row, last[own:], count)
        due = np.flatnonzero(self._delays[:own]).astype(np.int32)
        self._executor.write_tokens(row, due, np.full(due.size, count, np.int32), last[due])
