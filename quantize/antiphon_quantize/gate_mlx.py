"""The mlx backend under judgement: its own modules and state, with every choice of a token overheard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import mlx.core as mx
import numpy as np

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.mlx.backend import MlxBackend, read_bucket
from antiphon.backends.mlx.generation import Generator
from antiphon.backends.mlx.pipeline import PAUSE_INDEX, Pipeline, Tick
from antiphon.backends.mlx.sampling import Draw
from antiphon.backends.mlx.state import Step
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec
from antiphon_quantize.gate_subject import Codes, StepCollector, Thoughts

NO_NOISE: Final = Draw(0, None, None)


class Overheard:
    """Chooses given tokens int32 ``[n, 1 + dep_q]``, and keeps the logits they were not chosen from."""

    def __init__(self, tokens: Codes) -> None:
        """Say these, text first."""
        self._tokens = mx.array(tokens.astype(np.int32))
        self.logits: list[mx.array] = []

    def text(self, logits: mx.array, step: Step, draw: Draw) -> mx.array:  # noqa: ARG002
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        self.logits.append(logits.astype(mx.float32))
        return self._tokens[:, 0]

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:  # noqa: ARG002
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        self.logits.append(logits.astype(mx.float32))
        return self._tokens[:, 1 + codebook]


class MlxJudged:
    """See :class:`antiphon_quantize.gate_subject.Judged`."""

    def __init__(self, backend: Backend) -> None:
        """Take over a backend that was just made."""
        self._backend = cast("MlxBackend", backend)

    @property
    def backend(self) -> Backend:
        """See the protocol."""
        return self._backend

    def _fresh(self) -> Pipeline:
        pipeline = self._backend.pipeline
        pipeline.state.reset(range(self._backend.info.slots))
        return pipeline

    def encode(self, pcm: FloatArray) -> Codes:
        """See the protocol."""
        with self._backend.on_device():
            pipeline = self._fresh()
            parts = np.split(pcm, pcm.shape[1] // pipeline.spec.frame_samples, axis=1)
            codes = [pipeline.encode(part, everyone(len(pcm), frame)) for frame, part in enumerate(parts)]
            return np.stack([np.array(found) for found in codes], axis=1).astype(np.int64)

    def decode(self, codes: Codes) -> FloatArray:
        """See the protocol."""
        with self._backend.on_device():
            pipeline = self._fresh()
            heard = [
                pipeline.decode(mx.array(part.astype(np.int32)), everyone(len(codes), frame))
                for frame, part in enumerate(codes.swapaxes(0, 1))
            ]
            return np.concatenate(heard, axis=1)

    def answer(self, heard: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See the protocol."""
        for row, own in enumerate(parameters):
            self._backend.set_parameters(row, own)
        said = []
        with self._backend.on_device():
            pipeline = self._fresh()
            for frame, part in enumerate(heard.swapaxes(0, 1)):
                tick = everyone(len(heard), frame)
                text, _, codes = pipeline.think(mx.array(part.astype(np.int32)), tick)
                said.append(np.concatenate([text[:, None], np.array(codes)], axis=1))
        return np.stack(said[_lm(pipeline).max_delay :], axis=1).astype(np.int64)

    def think(self, heard: Codes, said: Codes) -> Thoughts:
        """See the protocol."""
        with self._backend.on_device():
            pipeline = self._fresh()
            generator, collector = pipeline.generator, StepCollector(_lm(pipeline))
            assert generator is not None
            for index, frame in enumerate(heard.swapaxes(0, 1)):
                step = Step(pipeline.state.tensors, len(heard))
                chooser = Overheard(collector.forced(said, index))
                pauses = _think(generator, frame, index, step, chooser)
                pipeline.state.tensors.update(step.tensors)
                del step  # or the next one would copy every ring that it writes into
                text, *voice = (np.array(logits) for logits in chooser.logits)
                nothing = np.zeros((len(heard), 0, _lm(pipeline).card), np.float32)
                collector.add(text, np.stack(voice, axis=1) if voice else nothing, pauses)
        return collector.thoughts()


def everyone(rows: int, frame: int) -> Tick:
    """A tick in which every row advances, all having lived for ``frame`` frames."""
    all_rows = np.ones(rows, np.bool_)
    return Tick(all_rows, all_rows, np.full(rows, frame, np.int64), read_bucket(frame + 1))


def _think(generator: Generator, frame: Codes, index: int, step: Step, chooser: Overheard) -> FloatArray:
    """One step under ``chooser``; the probabilities of a pause ``[n, heads]``."""
    filled = min(read_bucket(index + 1), generator.spec.context)
    hidden, logits = generator.listen(mx.array(frame.astype(np.int32)), step, filled)
    tokens = generator.speak(hidden, logits, step, chooser, lambda: NO_NOISE)
    mx.eval(tokens, chooser.logits, step.tensors)
    if not generator.model.extra_heads:
        return np.zeros((len(frame), 0), np.float32)
    return np.array(generator.model.pause_heads(hidden)[:, :, PAUSE_INDEX])


def _lm(pipeline: Pipeline) -> LMSpec:
    assert pipeline.spec.lm is not None
    return pipeline.spec.lm
