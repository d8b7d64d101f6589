"""The torch backend for text to speech: a script and a voice beside each row's state."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.base import (
    BoolArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_row
from antiphon.backends.scripts import ScriptRows
from antiphon.backends.torch.backend import TorchBackend, read_bucket
from antiphon.backends.torch.conditions import Conditions
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.pipeline import EMIT, EXECUTE, FLAGS, RESET, Pipeline
from antiphon.backends.torch.priming import CACHE_BYTES
from antiphon.backends.torch.speaking_pipeline import SpeakingPipeline
from antiphon.backends.torch.state import State
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.script import ScriptRules
from antiphon.models.spec import ModelSpec

_SCRIPT: Final = "script"
_CROSS: Final = (".cross_k", ".cross_v")


class VoiceCache:
    """Keys and values of voices, computed once each; the least recently used go, beyond ``limit_bytes``."""

    def __init__(self, generator: Generator, conditions: Conditions, limit_bytes: int = CACHE_BYTES) -> None:
        """Begin with none."""
        self._transformer, self._sequences = generator.model.transformer, generator.sequences
        self._conditions, self._limit_bytes = conditions, limit_bytes
        self._kept: OrderedDict[str, dict[str, Tensor]] = OrderedDict()

    def give(self, state: State, row: int, prompt: Prompt | None) -> bool:
        """Give a row the voice of a prompt, None being nobody's; whether it was known."""
        key = "" if prompt is None else prompt.key
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            for name, tensor in known.items():
                state.tensors[name][row].copy_(tensor)
            return True
        said = self._conditions.source(None if prompt is None else prompt.speakers)
        sources = [said, self._conditions.source(None)][: self._sequences]  # guidance: away from nobody's
        self._transformer.set_cross(state, row, torch.stack(sources))
        names = [name for name in state.specs if name.endswith(_CROSS)]
        self._kept[key] = {name: state.tensors[name][row].clone() for name in names}
        while len(self._kept) > 1 and self._bytes() > self._limit_bytes:
            self._kept.popitem(last=False)
        return False

    def _bytes(self) -> int:
        return sum(tensor.nbytes for kept in self._kept.values() for tensor in kept.values())


class SpeakingBackend(TorchBackend):
    """A tts model over ``slots`` rows; see :class:`antiphon.backends.base.Backend` and ``ScriptRows``."""

    def __init__(
        self, spec: ModelSpec, mimi: Mimi, generator: Generator, conditions: Conditions, *, slots: int
    ) -> None:
        """Take over loaded modules and give them ``slots`` fresh rows."""
        self._rules = ScriptRules.of(spec)
        self._conditions = conditions
        self._voices = None if conditions.shape is None else VoiceCache(generator, conditions)
        super().__init__(spec, mimi, generator, slots=slots)

    def _allocate(self, slots: int) -> None:
        super()._allocate(slots)
        self._info = replace(self._info, can_prime=self._voices is not None)
        self._scripts = ScriptRows(self._rules, slots)
        self._choices = self._host_buffer(self._speaking.choices)
        with torch.inference_mode():
            for row in range(slots):
                self._begin(row)

    def _make_pipeline(self, slots: int) -> Pipeline:
        assert self._generator is not None
        return SpeakingPipeline(self._spec, self._mimi, self._generator, rows=slots)

    @property
    def _speaking(self) -> SpeakingPipeline:
        assert isinstance(self._pipeline, SpeakingPipeline)
        return self._pipeline

    def _begin(self, row: int) -> None:
        """What the host knows of a row is of its former session, and so is its voice."""
        self._own_anew([row])
        self._scripts.begin(row)
        if self._voices is not None:
            self._voices.give(self._pipeline.state, row, None)

    def warm_up(self, progress: Progress) -> None:
        """Run every shape of a tick until it is captured, then make all rows fresh."""
        super().warm_up(progress)
        with torch.inference_mode():
            for row in range(self._info.slots):
                self._begin(row)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice, in one piece; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        voices, shape = self._voices, self._conditions.shape
        if voices is None or shape is None:
            raise UnsupportedError(f"{self._spec.name} has a voice of its own and takes no other")
        shape.check(prompt)
        try:
            with torch.inference_mode():
                self._own_anew([row])
                self._scripts.begin(row)
                self._pipeline.state.reset([row])
                is_known = voices.give(self._pipeline.state, row, prompt)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._judge.judge(error, (row,)) from error
        return PrimeProgress(1, 1, is_copied=is_known)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state, script and voice; the tensors stay on the device."""
        found = super().snapshot(row)
        return replace(found, tensors={**found.tensors, _SCRIPT: self._scripts.get(row)})

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model.
        """
        super().restore(row, snapshot)
        self._scripts.put(row, snapshot.tensors[_SCRIPT])

    def move(self, source: int, target: int) -> None:
        """Copy the state, script, voice and parameters of one row over another."""
        super().move(source, target)
        self._scripts.put(target, self._scripts.get(source))

    def _step(self, inputs: StepInputs) -> StepOutputs:
        rows, samples = inputs.rows, self._spec.frame_samples
        self._stage_ms: dict[str, float] = {}
        self._renew(inputs.reset)
        told = self._scripts.tick(inputs, self._advance)
        pcm = self._leaving[:rows, :samples].numpy().copy()
        return StepOutputs(
            told.consumed, told.emitted, pcm, told.words, finished=told.finished, stage_ms=self._stage_ms
        )

    def _renew(self, reset: BoolArray) -> None:
        if not reset.any():
            return
        self._flag(RESET, reset)
        self._runner.begin()
        self._runner.run("renew", len(reset), lambda: self._pipeline.renew(len(reset)))
        self._finish()
        for row in np.flatnonzero(reset).tolist():
            self._begin(row)

    def _advance(self, going: BoolArray, emitted: BoolArray) -> IntArray:
        """One step of some rows: their scripts' choices in, what the model asked for back."""
        rows, frames = len(going), self._frames[: len(going)]
        self._scripts.choices(going, self._choices.numpy())
        self._speaking.choices[:rows].copy_(self._choices[:rows], non_blocking=True)
        self._flag(EXECUTE, going)
        self._flag(EMIT, emitted)
        is_silent = self._scripts.is_silent(going)
        filled = read_bucket(int(frames[going].max(initial=0)) + 1)
        self._runner.begin()
        self._think(rows, filled, going, is_silent=is_silent)
        if emitted.any():
            masked = self._runner.on_cuda or not bool(emitted.all())
            self._run("decode", self._pipeline.decode, rows, filled, masked=masked)
        self._leaving[:rows].copy_(self._pipeline.buffers.leaving[:rows], non_blocking=True)
        self._finish()
        frames[going] += 1
        return self._read_text(rows)

    def _think(self, rows: int, filled: int, going: BoolArray, *, is_silent: bool) -> None:
        masked = self._runner.on_cuda or not bool(going.all())
        if is_silent:
            self._run("text", self._speaking.read_text, rows, filled, masked=masked)
        else:
            self._run("lm", self._speaking.think, rows, filled, masked=masked)

    def _run_stages(
        self, rows: int, filled: int, reset: BoolArray, executed: BoolArray, emitted: BoolArray
    ) -> None:
        """Every stage once: what a warm-up runs."""
        for column, flags in ((RESET, reset), (EXECUTE, executed), (EMIT, emitted)):
            self._flag(column, flags)
        self._runner.run("renew", rows, lambda: self._pipeline.renew(rows))
        for is_silent in (True, False):
            self._think(rows, filled, executed, is_silent=is_silent)
        self._run("decode", self._pipeline.decode, rows, filled, masked=self._runner.on_cuda)

    def _flag(self, column: int, flags: BoolArray) -> None:
        rows = len(flags)
        self._arriving[:rows, column] = torch.from_numpy(flags)
        arrived = self._pipeline.buffers.arrived[:rows, -FLAGS:]
        arrived.copy_(self._arriving[:rows, -FLAGS:], non_blocking=True)

    def _finish(self) -> None:
        """The end of a part of the tick: its stages' times go to those of the others."""
        for name, stage_ms in self._runner.finish().items():
            self._stage_ms[name] = self._stage_ms.get(name, 0.0) + stage_ms
