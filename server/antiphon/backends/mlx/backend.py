"""The mlx backend for frames: codec encodes and decodes, stt encodes and listens, duplex does all three."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from antiphon.backends.base import FloatArray, IntArray, Progress
from antiphon.backends.executor import Result, Work
from antiphon.backends.mlx.generation import TokenChooser
from antiphon.backends.mlx.rows import Frames, MlxRows, evaluate
from antiphon.backends.mlx.state import Packing, State, Step
from antiphon.models.spec import PipelineKind

PASS_FRAMES = 8
"""Frames of a prompt read in one pass."""

ANY_FRAMES = np.array([1 << 30])
"""How long a codec of no row has lived: its ring is read whole."""

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""


class MlxFrames(MlxRows):
    """Runs codec, duplex and stt models; see :class:`antiphon.backends.executor.FrameExecutor`."""

    def warm_up(self, progress: Progress) -> None:
        """Run every size of a tick once."""
        sizes = self.tick_sizes()
        for done, size in enumerate(sizes):
            progress(done, len(sizes), f"{size} rows")
            rows, every = np.arange(size, dtype=np.int32), np.ones(size, np.bool_)
            silence = np.zeros((size, self.spec.frame_samples), np.float32)
            self.run(Work(rows, np.zeros(size, np.int64), ~every, ~every, every, silence))
        progress(len(sizes), len(sizes), "ready")

    def run(self, work: Work) -> Result:
        """One tick, stage by stage, each over rows of its own."""
        rows, frames, is_emitting = work.rows, work.frames, work.is_emitting
        with self.on_device():
            self.state.reset(rows[work.is_fresh].tolist())
            codes, encode_ms = self.encode(rows, frames, work.pcm, is_fixed=work.is_fixed)
            self.state.reset(rows[work.is_forgotten].tolist(), prefix="encoder")
            stage_ms, tokens, vad = {"encode": encode_ms}, None, None
            if self.generator is not None:
                said, vad, stage_ms["lm"] = self.think(rows, frames, codes, is_fixed=work.is_fixed)
                tokens, codes = said[:, 0], np.maximum(said[:, 1:], 0)
            if self.spec.kind is PipelineKind.STT:
                return Result(None, tokens, vad, stage_ms)
            pcm = np.zeros_like(work.pcm)
            if is_emitting.any():
                spoken = rows[is_emitting], frames[is_emitting], codes[is_emitting]
                pcm[is_emitting], stage_ms["decode"] = self.decode(*spoken, is_fixed=work.is_fixed)
            return Result(pcm, tokens, vad, stage_ms)

    def encode(
        self, rows: IntArray, frames: Frames, pcm: FloatArray, *, is_fixed: bool = False
    ) -> tuple[IntArray, float]:
        """PCM ``[m, frame_samples]`` to codes int32 ``[m, codebooks]``, and the milliseconds."""

        def work(step: Step) -> list[mx.array]:
            return [self.mimi.encode(mx.array(step.packing.spread(pcm)), step)]

        (codes,), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
        return codes, took_ms

    def think(
        self,
        rows: IntArray,
        frames: Frames,
        codes: IntArray,
        *,
        is_fixed: bool = False,
        chooser: TokenChooser | None = None,
    ) -> tuple[IntArray, FloatArray | None, float]:
        """Codes heard to the tokens int32 ``[m, 1 + dep_q]`` of the frame that is complete, text first.

        Also the probabilities of a pause ``[m, heads]``, where the model has such heads, and the
        milliseconds. Tokens are chosen by ``chooser``, or as the rows' parameters say.
        """
        generator, sampler = self.generator, self.sampler
        assert generator is not None
        assert sampler is not None

        def work(step: Step) -> list[mx.array]:
            heard = mx.array(step.packing.spread(codes[:, : generator.heard_codes]))
            hidden, logits = generator.listen(heard, step)
            draw = partial(sampler.draw, step.packing, frames)
            outputs = [generator.speak(hidden, logits, step, chooser or sampler, draw)]
            if self.spec.kind is PipelineKind.STT and generator.model.extra_heads:
                outputs.append(generator.model.pause_heads(hidden)[:, :, PAUSE_INDEX])
            return outputs

        (tokens, *vad), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
        return tokens, vad[0] if vad else None, took_ms

    @property
    def pass_frames(self) -> int:
        """Frames of a prompt that one piece of work takes."""
        return PASS_FRAMES

    def encode_piece(self, codec: State | None, pcm: FloatArray) -> tuple[State, IntArray]:
        """Frames of a voice ``[F, frame_samples]`` to codes ``[F, codebooks]``, on a codec of its own."""
        with self.on_device():
            codec = codec or State((spec for spec in self.mimi.specs() if spec.name.startswith("encoder")), 1)
            codes = []
            for frame in pcm:
                step = Step(codec, Packing(np.zeros(1, np.int32), 1, is_fixed=False), ANY_FRAMES)
                codes.append(self.mimi.encode(mx.array(frame[None]), step))
                step.commit()
                evaluate(codes[-1], codec.tensors)
            return codec, np.array(mx.concatenate(codes))

    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:
        """Let a row's language model see tokens int32 ``[1 + n_q, T]``, up to its frame number ``frames``."""
        assert self.generator is not None
        with self.on_device():
            self._read(row, self.generator.model.embed(mx.array(tokens.T)), frames)

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:
        """The same for inputs ``[T, dim]`` that are embedded already."""
        with self.on_device():
            self._read(row, mx.array(inputs), frames)

    def _read(self, row: int, inputs: mx.array, frames: int) -> None:
        assert self.generator is not None
        model = self.generator.model

        def work(step: Step) -> list[mx.array]:
            model.read(inputs[None].astype(model.dtype), step)
            return []

        self.stage(np.array([row], np.int32), np.array([frames - 1]), work)

    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """Put tokens ``[k]`` of streams into a row's delay cache, as what those steps are fed."""
        assert self.generator is not None
        if not tokens.size:
            return
        with self.on_device():
            slots = mx.array(steps % self.generator.cache.capacity)
            self.state.tensors["lm.tokens"][row, mx.array(streams), slots] = mx.array(tokens)
            evaluate(self.state.tensors)

    def think_alone(self, row: int, codes: IntArray, frames: int) -> None:
        """The language model's stage for one row, which hears codes ``[heard]`` as frame ``frames``."""
        with self.on_device():
            self.think(np.array([row], np.int32), np.array([frames - 1]), codes[None])
