"""Evaluates the mlx backend with its own modules and state, and records the logits of its choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np

from antiphon.backends.base import Backend, FloatArray, IntArray
from antiphon.backends.host import HostBackend
from antiphon.backends.mlx.executor import Frames, MlxFrames
from antiphon.backends.mlx.sampling import Draw
from antiphon.backends.mlx.state import Packed
from antiphon.models.sampling import SamplingParameters
from antiphon_quantize.gate_subject import Codes, Logits, StepCollector, known


class MlxTeacherForcing:
    """Chooses given tokens int32 ``[n, 1 + dep_q]``, and stores the logits of the choices that they
    replace.
    """

    def __init__(self, tokens: Codes) -> None:
        """Set the next tokens, text first."""
        self._tokens = mx.array(tokens.astype(np.int32))
        self.logits: list[mx.array] = []

    def text(self, logits: mx.array, step: Packed, draw: Draw) -> mx.array:  # noqa: ARG002
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        self.logits.append(logits.astype(mx.float32))
        return self._tokens[:, 0]

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:  # noqa: ARG002
        """See :class:`antiphon.backends.mlx.generation.TokenChooser`."""
        self.logits.append(logits.astype(mx.float32))
        return self._tokens[:, 1 + codebook]


class MlxEvalModel:
    """An :class:`antiphon_quantize.gate_subject.EvalModel` on the mlx backend."""

    def __init__(self, backend: Backend) -> None:
        """Take ownership of a new backend."""
        self.backend = backend
        self._executor = cast("MlxFrames", cast("HostBackend", backend).executor)
        self._spec = self._executor.spec.lm

    def _fresh(self, rows: int) -> IntArray:
        """The first rows, reset."""
        named = np.arange(rows, dtype=np.int32)
        self._executor.reset(named.tolist())
        return named

    def encode(self, pcm: FloatArray) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.encode`."""
        rows, executor = self._fresh(len(pcm)), self._executor
        with executor.on_device():
            parts = np.split(pcm, pcm.shape[1] // executor.spec.frame_samples, axis=1)
            codes = [executor.encode(rows, at(frame, rows), part)[0] for frame, part in enumerate(parts)]
            return np.stack(codes, axis=1).astype(np.int64)

    def decode(self, codes: Codes) -> FloatArray:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.decode`."""
        rows, executor = self._fresh(len(codes)), self._executor
        with executor.on_device():
            parts = enumerate(codes.swapaxes(0, 1).astype(np.int32))
            heard = [executor.decode(rows, at(frame, rows), part)[0] for frame, part in parts]
            return np.concatenate(heard, axis=1)

    def answer(self, input_codes: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.answer`."""
        for row, own in enumerate(parameters):
            self.backend.set_parameters(row, own)
        rows, executor = self._fresh(len(input_codes)), self._executor
        with executor.on_device():
            parts = enumerate(input_codes.swapaxes(0, 1).astype(np.int32))
            said = [executor.run_lm(rows, at(frame, rows), part)[0] for frame, part in parts]
        return np.maximum(np.stack(said[known(self._spec).max_delay :], axis=1), 0).astype(np.int64)

    def forced_logits(self, input_codes: Codes, forced_tokens: Codes) -> Logits:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.forced_logits`."""
        rows, executor, spec = self._fresh(len(input_codes)), self._executor, known(self._spec)
        collector, nothing = StepCollector(spec), np.zeros((len(input_codes), 0, spec.card), np.float32)
        with executor.on_device():
            for index, frame in enumerate(input_codes.swapaxes(0, 1).astype(np.int32)):
                chooser = MlxTeacherForcing(collector.forced(forced_tokens, index))
                _, pauses, _ = executor.run_lm(rows, at(index, rows), frame, chooser=chooser)
                text, *voice = (np.array(logits) for logits in chooser.logits)
                if pauses is None:
                    pauses = np.zeros((len(input_codes), 0), np.float32)
                collector.add(text, np.stack(voice, axis=1) if voice else nothing, pauses)
        return collector.logits()


def at(frame: int, rows: IntArray) -> Frames:
    """The ages of ``rows``, int64 ``[len(rows)]``: each row has processed ``frame`` frames."""
    return np.full(len(rows), frame, np.int64)
