"""Evaluates the torch backend with its own modules and state, and records the logits of its choices.

The text that a tts model samples is only its request for the next word; its text input comes from the script
(:mod:`antiphon.models.script`). ``forced_tokens`` therefore contains the requests, and the script is replayed
with them to compute the logits: both models get the same words at the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.host import RowHost
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.pipeline import PAUSE_INDEX, Pipeline
from antiphon.backends.torch.state import Step
from antiphon.backends.torch.tts import ScriptedChooser
from antiphon.backends.tts import TtsBackend
from antiphon.errors import UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import NEW_WORD, Script, ScriptRules, TextReader
from antiphon_quantize.gate_subject import Codes, Logits, StepCollector, known


class TorchTeacherForcing:
    """Chooses given tokens int64 ``[n, 1 + dep_q]``, and stores the logits of the choices that they
    replace.
    """

    def __init__(self, tokens: Tensor) -> None:
        """Set the next tokens, text first."""
        self._tokens = tokens
        self.logits: list[FloatArray] = []

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:  # noqa: ARG002
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        self.logits.append(logits.float().cpu().numpy())
        return self._tokens[:, 0]

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:  # noqa: ARG002
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        self.logits.append(logits.float().cpu().numpy())
        return self._tokens[:, 1 + codebook]


def pipeline_of(backend: Backend) -> Pipeline:
    """The modules and the state of a backend on torch."""
    assert isinstance(backend, RowHost)
    assert isinstance(backend.executor, TorchRows)
    return backend.executor.pipeline


class TorchEvalModel:
    """An :class:`antiphon_quantize.gate_subject.EvalModel` on the torch backend."""

    def __init__(self, backend: Backend) -> None:
        """Take ownership of a new backend."""
        self.backend = backend

    def _fresh(self) -> Pipeline:
        pipeline = pipeline_of(self.backend)
        pipeline.state.reset(range(pipeline.state.rows))
        return pipeline

    @torch.inference_mode()
    def encode(self, pcm: FloatArray) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.encode`."""
        pipeline = self._fresh()
        frames = torch.split(torch.from_numpy(pcm), pipeline.spec.frame_samples, dim=1)
        step = pipeline.state.step(range(len(pcm)))
        codes = [pipeline.mimi.encode(frame.to(pipeline.device), step)[:, :, 0].cpu() for frame in frames]
        return torch.stack(codes, dim=1).numpy()

    @torch.inference_mode()
    def decode(self, codes: Codes) -> FloatArray:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.decode`."""
        pipeline = self._fresh()
        step = pipeline.state.step(range(len(codes)))
        frames = torch.from_numpy(codes).unbind(dim=1)
        heard = [pipeline.mimi.decode(frame[:, :, None].to(pipeline.device), step).cpu() for frame in frames]
        return torch.cat(heard, dim=1).numpy()

    @torch.inference_mode()
    def answer(self, input_codes: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.answer`."""
        pipeline = self._fresh()
        generator, sampler = known(pipeline.generator), known(pipeline.sampler)
        for row, own in enumerate(parameters):
            self.backend.set_parameters(row, own)
        step = pipeline.state.step(range(len(input_codes)))
        frames = torch.from_numpy(input_codes).to(pipeline.device).unbind(dim=1)
        said = [generator.step(frame, step, sampler).tokens.cpu() for frame in frames]
        return torch.stack(said[generator.cache.max_delay :], dim=1).numpy()

    @torch.inference_mode()
    def forced_logits(self, input_codes: Codes, forced_tokens: Codes) -> Logits:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.forced_logits`."""
        pipeline = self._fresh()
        generator, spec = known(pipeline.generator), known(pipeline.spec.lm)
        rows, collector = len(input_codes), StepCollector(spec)
        step = pipeline.state.step(range(rows))
        for index, frame in enumerate(torch.from_numpy(input_codes).to(pipeline.device).unbind(dim=1)):
            tokens = torch.from_numpy(collector.forced(forced_tokens, index))
            chooser = TorchTeacherForcing(tokens.to(pipeline.device))
            out = generator.step(frame, step, chooser)
            text, *voice = chooser.logits
            pauses = np.zeros((rows, 0), np.float32)
            if len(generator.model.extra_heads):
                pauses = generator.model.pause_heads(out.hidden)[:, :, PAUSE_INDEX].cpu().numpy()
            own = np.stack(voice, axis=1) if voice else np.zeros((rows, 0, spec.card), np.float32)
            collector.add(text, own, pauses)
        return collector.logits()


TEXTS: Final = (
    "Good morning. The train to the coast leaves at nine, and the next one only in the afternoon.",
    "She opened the window, looked at the sky for a while, and said that it would rain before noon.",
    "How many apples are left in the basket? Three, I think, unless somebody has been in the kitchen.",
    "Please turn left after the bridge, drive on for two miles, and stop where the road ends.",
    "It was not the wind that had woken him, but a low voice from the other side of the wall.",
    "Water boils at one hundred degrees. On a high mountain it needs less, and tea takes longer.",
)
"""Texts to speak, one for each row; a text is repeated if it is shorter than the recording."""


class TtsEvalModel(TorchEvalModel):
    """An :class:`antiphon_quantize.gate_subject.EvalModel` that speaks :data:`TEXTS`, without audio input."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        """Take ownership of a new backend of ``checkpoint``.

        Raises:
            UnsupportedError: the model has no tokenizer, so it cannot get a text.
        """
        super().__init__(backend)
        tokenizer = checkpoint.text_tokenizer()
        if tokenizer is None:
            raise UnsupportedError(f"{checkpoint.spec.name} has no tokenizer, so it cannot take a text")
        self._spec, self._rules = checkpoint.spec, ScriptRules.of(checkpoint.spec)
        self._entries = [TextReader(self._spec, tokenizer.encode).read(text) for text in TEXTS]

    def _told(self, rows: int, steps: int) -> tuple[Pipeline, list[Script]]:
        """Fresh rows, each with a script long enough for this number of steps."""
        assert isinstance(self.backend, TtsBackend)
        self.backend.executor.reset_rows(np.arange(self.backend.info.slots, dtype=np.int32))
        scripts = [Script(self._rules) for _ in range(rows)]
        for script, entries in zip(scripts, cycle(self._entries), strict=False):
            script.add(tuple(islice(cycle(entries), steps)))
        return pipeline_of(self.backend), scripts

    @torch.inference_mode()
    def answer(self, input_codes: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.answer`.

        The text stream contains the requests, and is -1 in frames before the audio's delay.
        """
        rows, steps = input_codes.shape[:2]
        pipeline, scripts = self._told(rows, steps)
        generator, sampler = known(pipeline.generator), known(pipeline.sampler)
        for row, own in enumerate(parameters):
            self.backend.set_parameters(row, own)
        step, nothing = (
            pipeline.state.step(range(rows)),
            pipeline.buffers.codes[:rows, : pipeline.input_codebooks],
        )
        asked, voice = [], []
        for index in range(steps):
            choices = torch.tensor([script.choices for script in scripts], device=pipeline.device)
            chooser = ScriptedChooser(sampler, choices, choices[:, 0])
            is_silent = index < self._rules.audio_delay
            out = generator.step(nothing, step, chooser, is_silent=is_silent)
            asked.append(chooser.asked.cpu())
            voice.append(out.tokens[:, 1:].cpu())
            advance(scripts, chooser.asked)
        late = generator.cache.max_delay
        text = torch.stack(asked[: steps - late], dim=1)[:, :, None]
        return torch.cat([text, torch.stack(voice[late:], dim=1)], dim=2).numpy()

    @torch.inference_mode()
    def forced_logits(self, input_codes: Codes, forced_tokens: Codes) -> Logits:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.forced_logits`."""
        rows, steps = input_codes.shape[:2]
        pipeline, scripts = self._told(rows, steps)
        generator, spec = known(pipeline.generator), known(self._spec.lm)
        step, collector = pipeline.state.step(range(rows)), StepCollector(spec)
        nothing = pipeline.buffers.codes[:rows, : pipeline.input_codebooks]
        silence = np.zeros((rows, spec.dep_q, spec.card), np.float32)
        for index in range(steps):
            choices = torch.tensor([script.choices for script in scripts])
            tokens = torch.from_numpy(collector.forced(forced_tokens, index)).clamp(min=0)
            asked = tokens[:, 0].clone()
            tokens[:, 0] = torch.where(asked == NEW_WORD, choices[:, 0], choices[:, 1])
            chooser = TorchTeacherForcing(tokens.to(pipeline.device))
            generator.step(nothing, step, chooser, is_silent=index < self._rules.audio_delay)
            text, *voice = chooser.logits
            collector.add(
                text, np.stack(voice, axis=1) if voice else silence, np.zeros((rows, 0), np.float32)
            )
            advance(scripts, asked)
        return collector.logits()


def advance(scripts: Sequence[Script], asked: Tensor) -> None:
    """Advance every script by a step with the token that its row sampled: a request for a word, or none."""
    for script, token in zip(scripts, asked.tolist(), strict=True):
        script.advance(token)
