"""The mlx executors: S rows of a model on one device, for frames and for text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import (
    BackendInfo,
    FloatArray,
    IntArray,
    Progress,
    Result,
    TextResult,
    TextStep,
    Work,
)
from antiphon.backends.mlx.generation import Generator, TokenChooser
from antiphon.backends.mlx.lm import Conditions
from antiphon.backends.mlx.mimi import Mimi
from antiphon.backends.mlx.sampling import Draw, Sampler
from antiphon.backends.mlx.state import Packed, Packing, State, Step
from antiphon.errors import DeviceLostError
from antiphon.models.architecture import UNUSED_STATE
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import NEW_WORD
from antiphon.models.spec import ModelSpec, PipelineKind


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded modules of a model; ``conditions`` is None unless it is a tts model.

    ``bits`` are the widths of its quantised matrices, ascending, without duplicates.
    """

    mimi: Mimi
    generator: Generator | None
    conditions: Conditions | None
    bits: tuple[int, ...]
    weight_bytes: int


def device_bytes(device: mx.Device) -> dict[str, int]:
    """The device's part of ``BackendInfo.memory``: for a GPU ``total``, the working set that Metal allows."""
    if device.type == mx.DeviceType.cpu or not mx.metal.is_available():
        return {}
    return {"total": int(mx.metal.device_info()["max_recommended_working_set_size"])}


def quantization_of(loaded: Loaded) -> str:
    """The quantised parts of a model: "weights-int4+kv-int8", "weights-int4", "kv-int8" or "none"."""
    parts = [f"weights-int{bits}" for bits in loaded.bits]
    if loaded.generator is not None and loaded.generator.model.int8_kv:
        parts.append("kv-int8")
    return "+".join(parts) or "none"


Frames: TypeAlias = NDArray[np.int64]
"""The number of frames of each of some rows, int64 ``[m]``."""


def tick_size(rows: int, slots: int) -> int:
    """The number of rows that a compiled tick over ``rows`` computes: the next power of two, or all."""
    return min(1 << (rows - 1).bit_length(), slots)


class MlxRows:
    """Loaded modules and rows of their state; see :class:`antiphon.backends.base.DeviceRows`."""

    def __init__(self, spec: ModelSpec, loaded: Loaded, *, device: mx.Device, compiles: bool) -> None:
        """Take ownership of loaded modules; with ``compiles`` mlx fuses their operations, once for each
        size."""
        self.spec, self.mimi, self.generator = spec, loaded.mimi, loaded.generator
        self._device, self._compiles = device, compiles
        if compiles:
            self.mimi.compile()
            if self.generator is not None:
                self.generator.model.compile()
        dtype = mx.float32 if self.generator is None else self.generator.model.dtype
        self.facts = BackendInfo(
            name="mlx",
            device=str(device.type).removeprefix("DeviceType."),
            spec=spec,
            dtype=str(dtype).removeprefix("mlx.core."),
            quantization=quantization_of(loaded),
            versions={"mlx": version("mlx")},
            memory={"weights": loaded.weight_bytes, **device_bytes(device)},
        )

    def on_device(self) -> AbstractContextManager[object]:
        """Select the device: each thread has its own default device, and the engine's thread may not be the
        thread that made this object.
        """
        return mx.stream(self._device)

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
        self.sampler = None if self.spec.lm is None else Sampler(self.spec.lm, slots)
        self.state = State((), 0)
        with self.on_device():
            unused = UNUSED_STATE.get(self.spec.kind)
            specs = [it for it in self.mimi.specs() if unused is None or not it.name.startswith(unused)]
            if self.generator is not None and self.sampler is not None:
                specs += [*self.generator.specs(), *self.sampler.specs()]
            self.state = State(specs, slots)

    def age(self, frames: int) -> None:
        """Make every row appear to have received ``frames`` frames."""
        with self.on_device():
            for name in self.state.specs:
                if name.endswith(".position"):
                    positions = frames * (
                        1 if name.startswith("lm.") else self.mimi.encoder_transformer.config.frame_positions
                    )
                    self.state.tensors[name] = mx.full_like(self.state.tensors[name], positions)

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The number of rows that a tick computes: all if ``is_fixed``, otherwise the named rows, for
        compiled operations rounded up to a power of two.
        """
        if is_fixed:
            return self.state.rows
        return tick_size(len(rows), self.state.rows) if self._compiles else len(rows)

    def tick_sizes(self) -> list[int]:
        """The numbers of rows that a warm-up runs: each that mlx compiles, or without compilation only all
        rows.
        """
        slots = self.state.rows
        return sorted({tick_size(rows, slots) for rows in range(1, slots + 1)}) if self._compiles else [slots]

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones, bit for bit."""
        with self.on_device():
            self.state.reset(rows)
            evaluate(self.state.tensors)

    def choose_threads(self) -> None:
        """No effect: there is no choice of threads with mlx."""

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; no effect for a codec."""
        if self.sampler is not None:
            self.sampler.set(row, parameters)

    def snapshot(self, row: int) -> dict[str, mx.array]:
        """Copy a row; the arrays remain on the device."""
        with self.on_device():
            return self.state.snapshot(row)

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError for a snapshot of another model."""
        with self.on_device():
            self.state.check(tensors)

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked arrays into a fresh row."""
        with self.on_device():
            self.state.restore(row, tensors)

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Convert the arrays to numpy arrays; bfloat16 becomes uint16."""
        with self.on_device():
            return self.state.to_host(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Reverse :meth:`to_host`."""
        with self.on_device():
            return self.state.from_host(arrays)

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self.state.bytes()

    def probe(self) -> None:
        """Check the device by adding two numbers on it."""
        with self.on_device():
            mx.eval(mx.ones(1) + 1)

    def close(self) -> None:
        """Free the modules, their state, and the memory that mlx keeps for them."""
        del self.mimi, self.generator, self.state
        mx.clear_cache()

    def stage(
        self,
        rows: IntArray,
        frames: Frames,
        work: Callable[[Step], Sequence[mx.array]],
        *,
        is_fixed: bool = False,
    ) -> tuple[list[NDArray[Any]], float]:
        """Run a stage over some rows; return its results, each ``[m, ...]``, and its time in milliseconds.

        ``frames`` are the rows' frames before this one.
        """
        began_s = time.perf_counter()
        packing = Packing(rows, self.state.rows, is_fixed=is_fixed, size=self.plan(rows, is_fixed=is_fixed))
        step = Step(self.state, packing, packing.spread(frames + 1))
        outputs = work(step)
        step.commit()
        evaluate(outputs, self.state.tensors)
        found = [packing.gather(output) for output in outputs]
        return found, 1000.0 * (time.perf_counter() - began_s)

    def decode(
        self, rows: IntArray, frames: Frames, codes: IntArray, *, is_fixed: bool = False
    ) -> tuple[FloatArray, float]:
        """Map codes int32 ``[m, codebooks]`` to PCM ``[m, frame_samples]``; also return the time in ms."""

        def work(step: Step) -> list[mx.array]:
            return [self.mimi.decode(mx.array(step.packing.spread(codes)), step)]

        (pcm,), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
        return pcm, took_ms


def evaluate(*arrays: object) -> None:
    """Compute arrays, or trees of them, on the device.

    Raises:
        DeviceLostError: the computation failed. Inputs whose memory mlx reused for a result may be lost
            too, including the state of other rows, so no state is reliable.
    """
    try:
        mx.eval(*arrays)
    except (RuntimeError, MemoryError) as error:
        raise DeviceLostError(f"mlx could not compute a step: {error}") from error


PASS_FRAMES = 8
"""Frames of a prompt read in one pass."""

ANY_FRAMES = np.array([1 << 30])
"""The age of a codec that belongs to no row: its whole ring is read."""

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""


class MlxFrames(MlxRows):
    """Runs codec, duplex and stt models; see :class:`antiphon.backends.base.FrameExecutor`."""

    def warm_up(self, progress: Progress) -> None:
        """Run a tick of each number of rows in :meth:`tick_sizes` once."""
        sizes = self.tick_sizes()
        for done, size in enumerate(sizes):
            progress(done, len(sizes), f"{size} rows")
            rows, every = np.arange(size, dtype=np.int32), np.ones(size, np.bool_)
            silence = np.zeros((size, self.spec.frame_samples), np.float32)
            self.run(Work(rows, np.zeros(size, np.int64), ~every, ~every, every, silence))
        progress(len(sizes), len(sizes), "ready")

    def run(self, work: Work) -> Result:
        """Run the stages of one tick, each over its rows."""
        rows, frames, is_emitting = work.rows, work.frames, work.is_emitting
        with self.on_device():
            self.state.reset(rows[work.is_fresh].tolist())
            codes, encode_ms = self.encode(rows, frames, work.pcm, is_fixed=work.is_fixed)
            self.state.reset(rows[work.is_forgotten].tolist(), prefix="encoder")
            stage_ms, tokens, vad = {"encode": encode_ms}, None, None
            if self.generator is not None:
                said, vad, stage_ms["lm"] = self.run_lm(rows, frames, codes, is_fixed=work.is_fixed)
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
        """Map PCM ``[m, frame_samples]`` to codes int32 ``[m, codebooks]``; also return the time in ms."""

        def work(step: Step) -> list[mx.array]:
            return [self.mimi.encode(mx.array(step.packing.spread(pcm)), step)]

        (codes,), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
        return codes, took_ms

    def run_lm(
        self,
        rows: IntArray,
        frames: Frames,
        codes: IntArray,
        *,
        is_fixed: bool = False,
        chooser: TokenChooser | None = None,
    ) -> tuple[IntArray, FloatArray | None, float]:
        """Map input codes to the tokens int32 ``[m, 1 + dep_q]`` of the complete frame, text first.

        Also return the probabilities of a pause ``[m, heads]``, if the model has such heads, and the time in
        milliseconds. ``chooser`` chooses the tokens; without it the rows' parameters do.
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
        """Number of frames of a prompt that one call reads."""
        return PASS_FRAMES

    def encode_piece(self, codec: State | None, pcm: FloatArray) -> tuple[State, IntArray]:
        """Map frames of a voice ``[F, frame_samples]`` to codes ``[F, codebooks]``, with a codec that belongs
        to no row.
        """
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
        """Process tokens int32 ``[1 + n_q, T]`` with a row's language model; the row is at frame ``frames``
        afterwards.
        """
        assert self.generator is not None
        with self.on_device():
            self._read(row, self.generator.model.embed(mx.array(tokens.T)), frames)

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:
        """Like :meth:`read_tokens`, for inputs ``[T, dim]`` that are already embedded."""
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
        """Put ``tokens [k]`` into a row's delay cache, as the inputs of ``streams [k]`` at ``steps [k]``."""
        assert self.generator is not None
        if not tokens.size:
            return
        with self.on_device():
            slots = mx.array(steps % self.generator.cache.capacity)
            self.state.tensors["lm.tokens"][row, mx.array(streams), slots] = mx.array(tokens)
            evaluate(self.state.tensors)

    def run_lm_row(self, row: int, codes: IntArray, frames: int) -> None:
        """Run the language model for one row, with ``codes [input codebooks]``, as frame ``frames``."""
        with self.on_device():
            self.run_lm(np.array([row], np.int32), np.array([frames - 1]), codes[None])


class ScriptedChooser:
    """Samples as usual, but with prescribed text input: ``choices`` int32 ``[n, 2]``.

    The first column is used if the model requests a word, the second if it does not. The device therefore
    computes text and audio without asking the host, which has the script. ``asked`` is the sampled token.
    """

    def __init__(self, sampler: Sampler, choices: mx.array) -> None:
        """Choose as ``sampler`` does."""
        self._sampler, self._choices, self.asked = sampler, choices, choices[:, 0]

    def text(self, logits: mx.array, step: Packed, draw: Draw) -> mx.array:
        """Choose text tokens int32 ``[n]`` from logits ``[n, text_card]``; may keep a history in the
        state.
        """
        self.asked = self._sampler.text(logits, step, draw)
        return mx.where(self.asked == NEW_WORD, self._choices[:, 0], self._choices[:, 1])

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:
        """Choose tokens of one codebook, int32 ``[n]``, from logits ``[n, card]``."""
        return self._sampler.audio(codebook, logits, draw)


class MlxTts(MlxRows):
    """Runs tts models, which have no audio input; see :class:`antiphon.backends.base.TextExecutor`."""

    def __init__(self, spec: ModelSpec, loaded: Loaded, *, device: mx.Device, compiles: bool) -> None:
        """Take ownership of loaded modules, whose conditioners turn voices into sources of
        cross-attention.
        """
        super().__init__(spec, loaded, device=device, compiles=compiles)
        assert loaded.conditions is not None
        self._conditions = loaded.conditions

    def warm_up(self, progress: Progress) -> None:
        """Run a step of each number of rows in :meth:`tick_sizes` once, with audio."""
        sizes = self.tick_sizes()
        for done, size in enumerate(sizes):
            progress(done, len(sizes), f"{size} rows")
            rows, every = np.arange(size, dtype=np.int32), np.ones(size, np.bool_)
            choices = np.zeros((size, 2), np.int32)
            self.advance(TextStep(rows, np.zeros(size, np.int64), choices, every, is_silent=False))
        progress(len(sizes), len(sizes), "ready")

    def reset_rows(self, rows: IntArray) -> None:
        """Reset rows, except for their voices."""
        with self.on_device():
            self.state.reset(rows.tolist(), keeps_voice=True)

    def advance(self, step: TextStep) -> TextResult:
        """Run one step of the rows of ``step``."""
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
        """Compute the keys and values of a voice; None means no voice."""
        assert self.generator is not None
        with self.on_device():
            source = self._conditions.source(None if prompt is None else prompt.speakers)
            voice = self.generator.model.transformer.voice(source)
            evaluate(voice)
            return voice

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write a computed voice into a row."""
        with self.on_device():
            for name, tensor in tensors.items():
                self.state.tensors[name][row] = tensor
            evaluate(self.state.tensors)
