"""The torch backend under evaluation: its own modules and state, with every choice of a token recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.host import RowHost
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.pipeline import PAUSE_INDEX, Pipeline
from antiphon.backends.torch.step import Step
from antiphon.models.sampling import SamplingParameters
from antiphon_quantize.gate_subject import Codes, Logits, StepCollector


class TorchTeacherForcing:
    """Chooses given tokens int64 ``[n, 1 + dep_q]``, and keeps the logits they were not chosen from."""

    def __init__(self, tokens: Tensor) -> None:
        """Say these, text first."""
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
    """See :class:`antiphon_quantize.gate_subject.EvalModel`."""

    def __init__(self, backend: Backend) -> None:
        """Take over a backend that was just made."""
        self._backend = backend

    @property
    def backend(self) -> Backend:
        """See the protocol."""
        return self._backend

    def _fresh(self) -> Pipeline:
        pipeline = pipeline_of(self._backend)
        pipeline.state.reset(range(pipeline.state.rows))
        return pipeline

    @torch.inference_mode()
    def encode(self, pcm: FloatArray) -> Codes:
        """See the protocol."""
        pipeline = self._fresh()
        frames = torch.split(torch.from_numpy(pcm), pipeline.spec.frame_samples, dim=1)
        step = pipeline.state.step(range(len(pcm)))
        codes = [pipeline.mimi.encode(frame.to(pipeline.device), step)[:, :, 0].cpu() for frame in frames]
        return torch.stack(codes, dim=1).numpy()

    @torch.inference_mode()
    def decode(self, codes: Codes) -> FloatArray:
        """See the protocol."""
        pipeline = self._fresh()
        step = pipeline.state.step(range(len(codes)))
        frames = torch.from_numpy(codes).unbind(dim=1)
        heard = [pipeline.mimi.decode(frame[:, :, None].to(pipeline.device), step).cpu() for frame in frames]
        return torch.cat(heard, dim=1).numpy()

    @torch.inference_mode()
    def answer(self, heard: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See the protocol."""
        pipeline = self._fresh()
        assert pipeline.generator is not None
        assert pipeline.sampler is not None
        for row, own in enumerate(parameters):
            self._backend.set_parameters(row, own)
        step = pipeline.state.step(range(len(heard)))
        frames = torch.from_numpy(heard).to(pipeline.device).unbind(dim=1)
        said = [pipeline.generator.step(frame, step, pipeline.sampler).tokens.cpu() for frame in frames]
        return torch.stack(said[pipeline.generator.cache.max_delay :], dim=1).numpy()

    @torch.inference_mode()
    def think(self, heard: Codes, said: Codes) -> Logits:
        """See the protocol."""
        pipeline = self._fresh()
        generator, spec = pipeline.generator, pipeline.spec.lm
        assert generator is not None
        assert spec is not None
        step, collector, rows = pipeline.state.step(range(len(heard))), StepCollector(spec), len(heard)
        for index, frame in enumerate(torch.from_numpy(heard).to(pipeline.device).unbind(dim=1)):
            chooser = TorchTeacherForcing(torch.from_numpy(collector.forced(said, index)).to(pipeline.device))
            out = generator.step(frame, step, chooser)
            text, *voice = chooser.logits
            pauses = np.zeros((rows, 0), np.float32)
            if len(generator.model.extra_heads):
                pauses = generator.model.pause_heads(out.hidden)[:, :, PAUSE_INDEX].cpu().numpy()
            own = np.stack(voice, axis=1) if voice else np.zeros((rows, 0, spec.card), np.float32)
            collector.add(text, own, pauses)
        return collector.thoughts()
