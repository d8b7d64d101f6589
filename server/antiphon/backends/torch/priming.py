"""Prompts: read in wide passes, a few frames each between ticks, and kept as snapshots.

A prompt's tokens are all known, so its frames need neither sampling nor the depformer: the temporal
transformer reads many of them at once, and what they leave behind is keys and values alone. Only what the
model says first, after the last frame, is sampled, by each session itself; up to there a state depends on
nothing but the prompt, and is computed once and copied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from antiphon.backends.base import PrimeProgress
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.pipeline import Pipeline
from antiphon.backends.torch.state import State
from antiphon.models.prompt import Prompt, check_prompt
from antiphon.models.spec import LMSpec

ThinkAlone: TypeAlias = Callable[[int, Tensor, int], None]
"""Run the language model's stage for one row, on codes ``[heard]``, the row having seen so many frames."""

PASS_FRAMES = {"cpu": 8, "cuda": 32}
"""Frames a pass, by device: as many as cost little more than the weights a single frame has to read too."""

CACHE_BYTES = 1 << 30
"""Snapshots kept. A second of Moshi 7B's takes 6.6 MB in bfloat16, so some minutes of personas."""

_ENCODER = "encoder"
_LM = "lm."
_RINGS = (".k", ".v", ".k_scale", ".v_scale")

_Saved: TypeAlias = dict[str, Tensor]


class SnapshotCache:
    """What prompts left behind, by key, the least recently used thrown out first."""

    def __init__(self, capacity_bytes: int) -> None:
        """Keep at most so many bytes; a snapshot larger than all of it is not kept."""
        self._capacity_bytes = capacity_bytes
        self._saved: OrderedDict[str, _Saved] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Snapshots kept."""
        return len(self._saved)

    def get(self, key: str) -> _Saved | None:
        """A prompt's snapshot, which becomes the one used last."""
        found = self._saved.get(key)
        if found is not None:
            self._saved.move_to_end(key)
        return found

    def put(self, key: str, saved: _Saved) -> None:
        """Keep a snapshot, and make room for it."""
        size = _size(saved)
        if key in self._saved or size > self._capacity_bytes:
            return
        self._saved[key] = saved
        self.bytes += size
        while self.bytes > self._capacity_bytes:
            _, oldest = self._saved.popitem(last=False)
            self.bytes -= _size(oldest)


@dataclass(slots=True)
class _Reading:
    """A row on its way through a prompt.

    ``frames`` int64 ``[T, 1 + n_q]``, on the device. ``voice`` is what is left to encode, float32
    ``[V, frame_samples]``, ``encoded`` how many frames of it are; ``state`` is the codec's while it is.
    """

    prompt: Prompt
    frames: Tensor
    embedded: Tensor | None
    done: int = 0
    is_copied: bool = False
    encoded: int = 0
    state: State | None = None


class Primer:
    """Takes the rows of a pipeline through prompts, piece by piece."""

    def __init__(
        self, pipeline: Pipeline, generator: Generator, lm: LMSpec, think_alone: ThinkAlone, cache_bytes: int
    ) -> None:
        """Prime rows of ``pipeline``, whose language model is ``generator`` of shape ``lm``."""
        self._pipeline, self._generator, self._lm = pipeline, generator, lm
        self._think_alone = think_alone
        self._readings: dict[int, _Reading] = {}
        self.pass_frames = PASS_FRAMES[pipeline.device.type]
        self.cache = SnapshotCache(cache_bytes)

    def is_reading(self, row: int, prompt: Prompt) -> bool:
        """Whether the row is on its way through this prompt."""
        reading = self._readings.get(row)
        return reading is not None and reading.prompt.key == prompt.key

    def begin(self, row: int, prompt: Prompt) -> None:
        """Make a row fresh and start it on a prompt.

        Raises:
            UnsupportedError: a prompt this model cannot take.
        """
        check_prompt(prompt, self._lm)
        device, dtype = self._pipeline.device, self._generator.model.dtype
        embedded = prompt.embedded
        self._pipeline.state.renew(torch.arange(self._pipeline.state.rows, device=device) == row)
        reading = self._readings[row] = _Reading(
            prompt,
            torch.from_numpy(prompt.frames).to(device, torch.int64),
            None if embedded is None else torch.from_numpy(embedded).to(device, dtype),
        )
        saved = self.cache.get(prompt.key)
        if saved is not None:
            self._restore(row, saved)
            reading.done, reading.is_copied = prompt.count - 1, True

    def advance(self, row: int) -> PrimeProgress:
        """One piece: some frames of the voice, or a pass, or at the end the first thing the model says."""
        reading = self._readings[row]
        count = reading.prompt.count
        if reading.done == count - 1:
            self._speak(row, reading)
            del self._readings[row]
            return PrimeProgress(count, count, reading.is_copied)
        if not reading.is_copied and not self._is_encoded(reading):
            self._encode(reading)
        else:
            self._read(row, reading)
        return PrimeProgress(reading.done, count, reading.is_copied)

    def forget(self, rows: Iterable[int]) -> None:
        """These rows are somebody else's now."""
        for row in rows:
            self._readings.pop(row, None)

    def move(self, source: int, target: int) -> None:
        """The row's state was copied over another's."""
        self.forget([target])
        if source in self._readings:  # an owner that stays behind begins anew: nothing is shared
            self._readings[target] = self._readings.pop(source)

    def _is_encoded(self, reading: _Reading) -> bool:
        voice = reading.prompt.voice
        return voice is None or reading.encoded == voice.shape[0]

    def _encode(self, reading: _Reading) -> None:
        """Put some of the voice's codes where the model's own belong."""
        voice, mimi = reading.prompt.voice, self._pipeline.mimi
        assert voice is not None
        if reading.state is None:
            specs = [spec for spec in mimi.specs() if spec.name.startswith(_ENCODER)]
            reading.state = State(specs, 1, self._pipeline.device)
        first = reading.encoded
        pcm = torch.from_numpy(voice[first : first + self.pass_frames]).to(self._pipeline.device)
        reading.encoded = first + pcm.shape[0]
        codes = mimi.encode(pcm.reshape(1, -1), reading.state.step(1), reading.encoded)
        own = self._lm.dep_q
        reading.frames[first : reading.encoded, 1 : 1 + own] = codes[0, :own].t()
        if self._is_encoded(reading):
            reading.state = None

    def _read(self, row: int, reading: _Reading) -> None:
        """One wide pass; after the last of them the state is worth keeping."""
        first, last = reading.done, reading.prompt.count - 1
        count = min(self.pass_frames, last - first)
        embedded, model = reading.embedded, self._generator.model
        if embedded is not None and first < embedded.shape[0]:
            inputs = embedded[None, first : first + count]
            count = inputs.shape[1]
        else:
            inputs = model.embed(self._inputs(reading.frames, first, first + count)[None])
        model.read(inputs, self._pipeline.state.row_step(row), first + count)
        reading.done = first + count
        if reading.done == last:
            self._put_tokens(row, reading.frames)
            self.cache.put(reading.prompt.key, self._save(row, last))

    def _inputs(self, frames: Tensor, first: int, end: int) -> Tensor:
        """What the model hears at steps ``first`` to ``end - 1``: int64 ``[1 + n_q, end - first]``.

        At step s stream k has reached frame ``s - delays[k]``; up to frame 0, which nobody ever hears, it
        is the initial token.
        """
        cache = self._generator.cache
        streams = torch.arange(frames.shape[1], device=frames.device)
        frame = torch.arange(first, end, device=frames.device)[:, None] - cache.delays
        tokens = frames[frame.clamp(min=0), streams]
        return torch.where(frame > 0, tokens, cache.initial[:, 0]).t()

    def _put_tokens(self, row: int, frames: Tensor) -> None:
        """Leave in the delay cache what steps up to the last would have left there."""
        cache, last = self._generator.cache, frames.shape[0] - 1
        ring = self._pipeline.state.tensors["lm.tokens"][row]
        first = max(0, last - cache.capacity + 2)
        columns = torch.arange(first, last + 1, device=frames.device) % cache.capacity
        ring[:, columns] = self._inputs(frames, first, last + 1)

    def _speak(self, row: int, reading: _Reading) -> None:
        """The last step: what it samples is the session's own, but for tokens of the last frame still due."""
        lm, frames, cache = self._lm, reading.frames, self._generator.cache
        last = reading.prompt.count - 1
        self._think_alone(row, frames[last, 1 + lm.dep_q :], reading.prompt.count)
        own = slice(0, 1 + lm.dep_q)
        said = self._pipeline.state.tensors["lm.tokens"][row, own, (last + 1) % cache.capacity]
        said.copy_(torch.where(cache.delays[own] > 0, frames[last, own], said))

    def _save(self, row: int, filled: int) -> _Saved:
        """Copy what the passes wrote: the language model's tensors, rings only as far as they are filled."""
        return {
            name: (tensor[row, :, :filled] if name.endswith(_RINGS) else tensor[row]).clone()
            for name, tensor in self._pipeline.state.tensors.items()
            if name.startswith(_LM)
        }

    def _restore(self, row: int, saved: _Saved) -> None:
        """Put it into a fresh row."""
        for name, tensor in saved.items():
            whole = self._pipeline.state.tensors[name][row]
            (whole[:, : tensor.shape[1]] if name.endswith(_RINGS) else whole).copy_(tensor)


def _size(saved: _Saved) -> int:
    return sum(tensor.nbytes for tensor in saved.values())
