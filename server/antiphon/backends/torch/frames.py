"""Codec, duplex and stt models on torch, and the operations that read the prompts of duplex models."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.base import FloatArray, IntArray, Result, Work
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.pipeline import (
    ENCODER,
    FORGOTTEN,
    FRESH,
    BatchLayout,
)
from antiphon.backends.torch.state import State

PASS_FRAMES = {"cpu": 8, "cuda": 32}
"""Number of prompt frames read in one pass, which takes little longer than reading the weights."""


class TorchFrames(TorchRows):
    """Runs codec, duplex and stt models; see :class:`antiphon.backends.base.FrameExecutor`."""

    @torch.inference_mode()
    def run(self, work: Work) -> Result:
        """Run one tick."""
        pipeline, kind, samples = self.pipeline, self._spec.kind, self._spec.frame_samples
        self._state.release(work.rows[work.is_fresh])
        with self._runner.tick():
            self._state.hold(work.rows, work.frames + 1)
            self._choose("reset_rows", FRESH, work.rows[work.is_fresh], pipeline.reset_rows)
            places = self._place(work.rows, work.frames, is_fixed=work.is_fixed)
            decoded = None
            if kind.gives_audio and work.is_emitting.any():
                emitting = work.rows[work.is_emitting], work.frames[work.is_emitting]
                decoded = self._place(*emitting, is_fixed=work.is_fixed)
            self.arrive(places, work.pcm, decoded)
            self._run("encode", pipeline.encode, places)
            if pipeline.generator is not None:
                self._run("lm", pipeline.run_lm, places)
                self._choose(
                    "reset_encoders", FORGOTTEN, work.rows[work.is_forgotten], pipeline.reset_encoders
                )
            if decoded is not None:
                self._run("decode", pipeline.decode, decoded)
            stage_ms = self._leave(places)
        pcm = tokens = vad = None
        if kind.gives_audio:
            pcm = np.zeros_like(work.pcm)
            if decoded is not None:
                pcm[work.is_emitting] = self._pcm(decoded)
        if pipeline.generator is not None:
            tokens = self.text_tokens(places)
        if self._rows.leaving.shape[1] > samples + 1:
            vad = self._rows.leaving.numpy()[places.at, samples + 1 :]
        return Result(pcm, tokens, vad, stage_ms)

    def _warm_up_stages(self, places: BatchLayout) -> None:
        everyone = np.arange(self._state.rows, dtype=np.int32)
        self._choose("reset_rows", FRESH, everyone, self.pipeline.reset_rows)
        self._run("encode", self.pipeline.encode, places)
        if self.pipeline.generator is not None:
            self._run("lm", self.pipeline.run_lm, places)
            self._choose("reset_encoders", FORGOTTEN, everyone, self.pipeline.reset_encoders)
        if self._spec.kind.gives_audio:
            self._run("decode", self.pipeline.decode, places)

    def _warm_up_prompts(self) -> None:
        """See the base class; for a model with voices and texts, one pass of each."""
        if self._spec.lm is not None and self._spec.kind.gives_audio:
            frames, streams = self.pass_frames, self._state.tensors["lm.tokens"].shape[1]
            self.encode_piece(None, np.zeros((frames, self._spec.frame_samples), np.float32))
            for length in (frames, 1):
                self.read_tokens(0, np.zeros((streams, length), np.int32), length)
                self.read_embedded(0, np.zeros((length, self._model.config["dim"]), np.float32), length)
            first = np.zeros(1, np.int32)
            self.write_tokens(0, first, first, first)
        super()._warm_up_prompts()

    @property
    def pass_frames(self) -> int:
        """Number of frames of a prompt that one call reads."""
        return PASS_FRAMES[self._mimi.device.type]

    @torch.inference_mode()
    def encode_piece(self, codec: State | None, pcm: FloatArray) -> tuple[State, IntArray]:
        """Map frames of a voice ``[F, frame_samples]`` to codes ``[F, codebooks]``, with a codec that belongs
        to no row.
        """
        if codec is None:
            specs = [spec for spec in self._mimi.specs() if spec.name.startswith(ENCODER)]
            codec = State(specs, 1, self._mimi.device)
        samples = torch.from_numpy(pcm).to(self._mimi.device).reshape(1, -1)
        with self._runner.on_device():
            codes = self._mimi.encode(samples, codec.step())[0].t()
        return codec, codes.cpu().numpy().astype(np.int32)

    @torch.inference_mode()
    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:
        """Process tokens int32 ``[1 + n_q, T]`` with a row's language model; the row is at frame ``frames``
        afterwards.
        """
        given = torch.from_numpy(tokens).to(self._mimi.device, torch.int64)
        with self._runner.on_device():
            self._read(row, self._model.embed(given[None]), frames)

    @torch.inference_mode()
    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:
        """Like :meth:`read_tokens`, for inputs ``[T, dim]`` that are already embedded."""
        given = torch.from_numpy(inputs).to(self._mimi.device, self._model.dtype)
        with self._runner.on_device():
            self._read(row, given[None], frames)

    @torch.inference_mode()
    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """Put ``tokens [k]`` into a row's delay cache, as the inputs of ``streams [k]`` at ``steps [k]``."""
        assert self._generator is not None
        slots = torch.from_numpy(steps % self._generator.cache.capacity).long()
        index = (torch.from_numpy(streams).long(), slots)
        ring = self._state.tensors["lm.tokens"][row]
        ring[index] = torch.from_numpy(tokens).to(ring)

    @torch.inference_mode()
    def run_lm_row(self, row: int, codes: IntArray, frames: int) -> None:
        """Run the language model for one row, with ``codes [input codebooks]``, as frame ``frames``."""
        self._state.hold(np.array([row], np.int32), np.array([frames]))
        places = self._place(np.array([row], np.int32), np.array([frames - 1]))
        self.pipeline.buffers.codes[places.at[0], : self.pipeline.input_codebooks].copy_(
            torch.from_numpy(codes)
        )
        with self._runner.tick():
            self.arrive(places)
            self._run("lm", self.pipeline.run_lm, places)
            self._runner.finish()

    @property
    def _model(self) -> LanguageModel:
        assert self._generator is not None
        return self._generator.model

    def _read(self, row: int, inputs: Tensor, frames: int) -> None:
        self._state.hold(np.array([row], np.int32), np.array([frames]))
        self._model.read(inputs, self._state.step([row], [frames]))
