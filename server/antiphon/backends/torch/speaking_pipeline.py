"""One tick of text to speech on the device: text to codes, codes to PCM, over static buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.backends.torch.embedding import ZERO_TOKEN
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.pipeline import EXECUTE, Pipeline
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import Step, TensorSpec
from antiphon.models.script import NEW_WORD
from antiphon.models.spec import ModelSpec


@dataclass(slots=True)
class ScriptedChooser:
    """Samples as ever, but what the model hears of its text is written: ``choices`` int64 ``[n, 2]``.

    The first column is for a model that asks for a word, the second for one that does not. So the host, which
    knows the script, need not be asked between a step's text and its audio. ``asked`` is what was sampled.
    """

    sampler: Sampler
    choices: Tensor
    asked: Tensor

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        self.asked = self.sampler.text(logits, step, frames)
        return torch.where(self.asked == NEW_WORD, self.choices[:, 0], self.choices[:, 1])

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        return self.sampler.audio(codebook, logits, frames)


class SpeakingPipeline(Pipeline):
    """The modules of a tts model. It has no encoder, and its codes heard are nothing, at every step.

    ``choices`` int64 ``[S, 2]`` is what the scripts say: see :class:`ScriptedChooser`.
    """

    def __init__(self, spec: ModelSpec, mimi: Mimi, generator: Generator, *, rows: int) -> None:
        """Take over loaded modules and allocate ``rows`` fresh rows beside them."""
        super().__init__(spec, mimi, generator, rows=rows)
        self.choices = torch.zeros(rows, 2, dtype=torch.int64, device=self.device)
        self.buffers.codes.fill_(ZERO_TOKEN)

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the pipeline."""
        return (spec for spec in super().specs() if not spec.name.startswith("encoder"))

    def context_frames(self) -> dict[str, int]:
        """How many frames back each stage looks."""
        found = super().context_frames()
        return {"renew": 1, "text": found["lm"], "lm": found["lm"], "decode": found["decode"]}

    def read_text(self, rows: int, filled: int, *, masked: bool) -> None:
        """One step within the audio delay: the language model alone."""
        self._speak(rows, filled, masked=masked, is_silent=True)

    def think(self, rows: int, filled: int, *, masked: bool) -> None:
        """One step: what the model asks for, and the codes to be spoken."""
        self._speak(rows, filled, masked=masked, is_silent=False)

    def _speak(self, rows: int, filled: int, *, masked: bool, is_silent: bool) -> None:
        assert self.generator is not None
        assert self.sampler is not None
        choices = self.choices[:rows]
        chooser = ScriptedChooser(self.sampler, choices, choices[:, 0])
        step = self._step(rows, EXECUTE if masked else None)
        heard = self.buffers.codes[:rows, : self.heard]
        out = self.generator.step(heard, step, chooser, filled, is_silent=is_silent)
        self.write_text(rows, chooser.asked)
        self.buffers.voice[:rows].copy_(out.tokens[:, 1:].clamp(min=0))
