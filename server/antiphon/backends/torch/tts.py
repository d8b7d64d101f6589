"""Text to speech on torch: the script sets the model's text input, and each row has its voice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from antiphon.backends.base import IntArray, TextResult, TextStep
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.pipeline import FRESH, BatchLayout
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import Step
from antiphon.backends.torch.weights import Conditions
from antiphon.models.delays import ZERO
from antiphon.models.prompt import Prompt
from antiphon.models.script import NEW_WORD
from antiphon.models.spec import ModelSpec

_STAGES: Final = {True: "text", False: "lm"}


@dataclass(slots=True)
class ScriptedChooser:
    """Samples as usual, but with prescribed text input: ``choices`` int64 ``[n, 2]``.

    The first column is used if the model requests a word, the second if it does not. The device therefore
    computes text and audio without asking the host, which has the script. ``asked`` is the sampled token.
    """

    sampler: Sampler
    choices: Tensor
    asked: Tensor

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """Choose text tokens int64 ``[n]`` from logits ``[n, text_card]`` in the model's dtype; may keep a
        history in the state.
        """
        self.asked = self.sampler.text(logits, step, frames)
        return torch.where(self.asked == NEW_WORD, self.choices[:, 0], self.choices[:, 1])

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """Choose tokens of one codebook, int64 ``[n]``, from logits ``[n, card]`` in the model's dtype."""
        return self.sampler.audio(codebook, logits, frames)


class TorchTts(TorchRows):
    """Runs tts models; see :class:`antiphon.backends.base.TextExecutor`. There are no input codes."""

    def __init__(
        self,
        spec: ModelSpec,
        mimi: Mimi,
        generator: Generator,
        conditions: Conditions,
    ) -> None:
        """Take ownership of loaded modules; ``conditions`` make cross-attention sources of voices."""
        super().__init__(spec, mimi, generator)
        self._conditions = conditions

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows; the former rows are freed first."""
        super().allocate(slots)
        self.pipeline.buffers.codes.fill_(ZERO)
        self._choices = torch.zeros(slots, 2, dtype=torch.int64, device=self._mimi.device)
        self._chosen = self._host_buffer(self._choices)

    @torch.inference_mode()
    def reset_rows(self, rows: IntArray) -> None:
        """Reset rows fast: rings are hidden instead of erased; voices are kept."""
        self._state.release(rows)
        with self._runner.tick():
            self._choose("reset_rows", FRESH, rows, self.pipeline.reset_rows)
            self._runner.finish()

    @torch.inference_mode()
    def advance(self, step: TextStep) -> TextResult:
        """Run one step of the rows of ``step``."""
        places = self._place(step.rows, step.frames, is_fixed=step.is_fixed)
        decoded = None
        if step.is_emitting.any():
            emitting = step.rows[step.is_emitting], step.frames[step.is_emitting]
            decoded = self._place(*emitting, is_fixed=step.is_fixed)
        with self._runner.tick():
            self._state.hold(step.rows, step.frames + 1)
            self.arrive(places, decoded=decoded)
            self._chosen[: places.count] = 0
            self._chosen.numpy()[places.at] = step.choices
            self._choices[: places.count].copy_(self._chosen[: places.count], non_blocking=True)
            self._run_lm(places, is_silent=step.is_silent)
            if decoded is not None:
                self._run("decode", self.pipeline.decode, decoded)
            stage_ms = self._leave(places)
        pcm = None if decoded is None else self._pcm(decoded)
        return TextResult(self.text_tokens(places), pcm, stage_ms)

    def _run_lm(self, places: BatchLayout, *, is_silent: bool) -> None:
        """A step of the language model; it is the only stage within the audio delay (``is_silent``)."""
        pipeline, choices = self.pipeline, self._choices[: places.count]
        sampler = pipeline.sampler
        assert sampler is not None

        def run_lm(places: BatchLayout) -> None:
            chooser = ScriptedChooser(sampler, choices, choices[:, 0])
            pipeline.generate(places, chooser, is_silent=is_silent)
            pipeline.write_text(chooser.asked)

        self._run(_STAGES[is_silent], run_lm, places)

    def _warm_up_stages(self, places: BatchLayout) -> None:
        self._choose("reset_rows", FRESH, places.rows[places.at], self.pipeline.reset_rows)
        for is_silent in _STAGES:
            self._run_lm(places, is_silent=is_silent)
        self._run("decode", self.pipeline.decode, places)

    @torch.inference_mode()
    def compute_voice(self, prompt: Prompt | None) -> dict[str, Tensor]:
        """Compute the keys and values of a voice (None: no voice); with guidance the second sequence has no
        voice.
        """
        assert self._generator is not None
        said = self._conditions.source(None if prompt is None else prompt.speakers)
        sources = [said, self._conditions.source(None)][: self._generator.sequences]
        return self._generator.model.transformer.voice(torch.stack(sources))

    @torch.inference_mode()
    def write_voice(self, row: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a computed voice into a row."""
        for name, tensor in tensors.items():
            self._state.tensors[name][row].copy_(tensor)
