"""The mlx backend for text to speech: what the model is fed is the script's, and its voice a row's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from antiphon.backends.base import IntArray, Progress
from antiphon.backends.executor import TextResult, TextStep
from antiphon.backends.mlx.loading import Loaded
from antiphon.backends.mlx.rows import MlxRows, evaluate
from antiphon.backends.mlx.sampling import Draw, Sampler
from antiphon.backends.mlx.state import Packed, Step
from antiphon.models.prompt import Prompt
from antiphon.models.script import NEW_WORD
from antiphon.models.spec import ModelSpec


class ScriptedChooser:
    """Samples as ever, but what the model hears of its text is written: ``choices`` int32 ``[n, 2]``.

    The first column is for a model that asks for a word, the second for one that does not. So the host, which
    knows the script, need not be asked between a step's text and its audio. ``asked`` is what was sampled.
    """

    def __init__(self, sampler: Sampler, choices: mx.array) -> None:
        """Choose as ``sampler`` does."""
        self._sampler, self._choices, self.asked = sampler, choices, choices[:, 0]

    def text(self, logits: mx.array, step: Packed, draw: Draw) -> mx.array:
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        self.asked = self._sampler.text(logits, step, draw)
        return mx.where(self.asked == NEW_WORD, self._choices[:, 0], self._choices[:, 1])

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        return self._sampler.audio(codebook, logits, draw)


class MlxTts(MlxRows):
    """Runs tts models, which hear nothing; see :class:`antiphon.backends.executor.TextExecutor`."""

    def __init__(self, spec: ModelSpec, loaded: Loaded, *, device: mx.Device, compiles: bool) -> None:
        """Take over loaded modules, whose conditions make cross-attention sources of voices."""
        super().__init__(spec, loaded, device=device, compiles=compiles)
        assert loaded.conditions is not None
        self._conditions = loaded.conditions

    def warm_up(self, progress: Progress) -> None:
        """Run every size of a step once, with audio."""
        sizes = self.tick_sizes()
        for done, size in enumerate(sizes):
            progress(done, len(sizes), f"{size} rows")
            rows, every = np.arange(size, dtype=np.int32), np.ones(size, np.bool_)
            choices = np.zeros((size, 2), np.int32)
            self.advance(TextStep(rows, np.zeros(size, np.int64), choices, every, is_silent=False))
        progress(len(sizes), len(sizes), "ready")

    def renew(self, rows: IntArray) -> None:
        """Make rows fresh but for their voices."""
        with self.on_device():
            self.state.reset(rows.tolist(), keeps_voice=True)

    def advance(self, step: TextStep) -> TextResult:
        """One step of some rows."""
        rows, frames, is_fixed = step.rows, step.frames, step.is_fixed
        generator, sampler = self.generator, self.sampler
        assert generator is not None
        assert sampler is not None

        def work(own: Step) -> list[mx.array]:
            size, spread = own.packing.size, own.packing.spread
            hidden, logits = generator.listen(mx.zeros((size, generator.heard_codes), mx.int32) - 1, own)
            chooser = ScriptedChooser(sampler, mx.array(spread(step.choices)))
            draw = partial(sampler.draw, own.packing, frames, is_silent=step.is_silent)
            tokens = generator.speak(hidden, logits, own, chooser, draw, is_silent=step.is_silent)
            return [chooser.asked, tokens]

        with self.on_device():
            (asked, tokens), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
            stage_ms, pcm = {"text" if step.is_silent else "lm": took_ms}, None
            if step.is_emitting.any():
                codes = np.maximum(tokens[step.is_emitting, 1:], 0)
                emitting = rows[step.is_emitting], frames[step.is_emitting], codes
                pcm, stage_ms["decode"] = self.decode(*emitting, is_fixed=is_fixed)
            return TextResult(asked, pcm, stage_ms)

    def compute_voice(self, prompt: Prompt | None) -> dict[str, mx.array]:
        """Keys and values of a voice, None for no voice."""
        assert self.generator is not None
        with self.on_device():
            source = self._conditions.source(None if prompt is None else prompt.speakers)
            voice = self.generator.model.transformer.voice(source)
            evaluate(voice)
            return voice

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Give a row a voice that was computed."""
        with self.on_device():
            for name, tensor in tensors.items():
                self.state.tensors[name][row] = tensor
            evaluate(self.state.tensors)
