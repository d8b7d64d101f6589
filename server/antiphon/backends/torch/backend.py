"""The torch backend: S rows of our own modules, stepped over prefixes of their state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.devices import device_bytes, device_probe
from antiphon.backends.faults import FaultJudge
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.linear import weight_bytes
from antiphon.backends.torch.loading import quantization_of
from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.pipeline import EMIT, EXECUTE, FLAGS, RESET, MaskedStage, Pipeline
from antiphon.backends.torch.priming import CACHE_BYTES, Primer
from antiphon.backends.torch.stages import StageRunner
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

SHORTEST_READ_FRAMES = 64
"""Ring reads are bounded by the longest-lived row's frames, rounded up to a power of two from here."""

_WARM_UP_TICKS = 2
_FRAMES = "frames"


def row_buckets(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, ... and the number of slots itself."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)


def read_bucket(frames: int) -> int:
    """The bound on ring reads for rows that have seen up to ``frames`` frames."""
    return max(SHORTEST_READ_FRAMES, 1 << (frames - 1).bit_length())


class TorchBackend:
    """Our own modules over ``slots`` rows of explicit state; see :class:`antiphon.backends.base.Backend`."""

    def __init__(self, spec: ModelSpec, mimi: Mimi, generator: Generator | None, *, slots: int) -> None:
        """Take over loaded modules and give them ``slots`` fresh rows."""
        self._spec, self._mimi, self._generator = spec, mimi, generator
        self._runner = StageRunner(mimi.device)
        self._judge = FaultJudge(device_probe(mimi.device))
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        """Everything that has a row for each of ``slots``."""
        check_slots(slots)
        spec, mimi, generator = self._spec, self._mimi, self._generator
        self._pipeline = self._make_pipeline(slots)
        self._frames = np.zeros(slots, dtype=np.int64)  # executed since reset, so that nothing is read back
        self._context_frames = self._pipeline.context_frames()
        self._primer: Primer | None = None
        if generator is not None and spec.lm is not None and spec.kind is PipelineKind.DUPLEX:
            self._primer = Primer(self._pipeline, generator, spec.lm, self._think_alone, CACHE_BYTES)
        self._arriving = self._host_buffer(self._pipeline.buffers.arrived)
        self._leaving = self._host_buffer(self._pipeline.buffers.leaving)
        modules = [mimi] if generator is None else [mimi, generator.model]
        self._info = BackendInfo(
            name="torch",
            device=str(self._pipeline.device),
            spec=spec,
            slots=slots,
            buckets=row_buckets(slots),
            dtype="float32" if generator is None else str(generator.model.dtype).removeprefix("torch."),
            quantization="none" if generator is None else quantization_of(generator.model),
            can_snapshot=True,
            can_prime=self._primer is not None,
            versions={"torch": torch.__version__},
            memory={
                "weights": sum(map(weight_bytes, modules)),
                "state_per_row": self._pipeline.state.bytes() // slots,
                **device_bytes(self._pipeline.device),
            },
        )

    def _make_pipeline(self, slots: int) -> Pipeline:
        return Pipeline(self._spec, self._mimi, self._generator, rows=slots)

    def _host_buffer(self, device_buffer: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(device_buffer, device="cpu", pin_memory=self._runner.on_cuda)

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change while the backend lives."""
        return self._info

    @property
    def pipeline(self) -> Pipeline:
        """The modules and their state, for tools that look inside while nothing is being served."""
        return self._pipeline

    def warm_up(self, progress: Progress) -> None:
        """Run every shape of a tick until it is captured, then make all rows fresh."""
        shapes = [(rows, filled) for rows in self._info.buckets for filled in self._read_buckets()]
        for done, (rows, filled) in enumerate(shapes):
            progress(done, len(shapes), f"{rows} rows, {filled} frames")
            everyone = np.ones(rows, dtype=np.bool_)
            with torch.inference_mode():
                for _ in range(_WARM_UP_TICKS):
                    self._runner.begin()
                    self._run_stages(rows, filled, everyone, everyone, everyone)
                    self._runner.finish()
        with torch.inference_mode():
            self._pipeline.state.reset(range(self._info.slots))
        self._own_anew(range(self._info.slots))
        progress(len(shapes), len(shapes), "ready")

    def _read_buckets(self) -> list[int]:
        """The bounds on ring reads that ticks will have; on a CPU nothing depends on having seen them."""
        longest = max(self._context_frames.values()) if self._runner.on_cuda else 1
        return sorted({read_bucket(1 << shift) for shift in range(longest.bit_length() + 1)})

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        check_row(self._info, row)
        sampler = self._pipeline.sampler
        if sampler is None:
            return
        before = (sampler.is_greedy, sampler.width)
        sampler.set(row, parameters)
        if before != (sampler.is_greedy, sampler.width):
            self._runner.forget()

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the executed rows by one frame; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        try:
            with torch.inference_mode():
                outputs = self._step(inputs)
        except (RuntimeError, ValueError, IndexError) as error:
            # What torch raises. The rows of this tick may be half written; the others were not touched.
            touched = tuple(np.flatnonzero(inputs.exec | inputs.reset).tolist())
            raise self._judge.judge(error, touched) from error
        self._judge.note_success()
        return outputs

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """One piece of a prompt; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if self._primer is None:
            raise UnsupportedError(f"a {self._info.kind} model takes no prompt")
        try:
            with torch.inference_mode():
                if not self._primer.is_reading(row, prompt):
                    self._own_anew([row])
                    self._primer.begin(row, prompt)
                progress = self._primer.advance(row)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._judge.judge(error, (row,)) from error
        if progress.is_done:
            self._frames[row] = progress.total
        return progress

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state; the tensors stay on the device."""
        check_row(self._info, row)
        tensors = self._pipeline.state.snapshot(row)
        size = sum(tensor.nbytes for tensor in tensors.values())
        tensors[_FRAMES] = torch.tensor(self._frames[row])
        return RowSnapshot(self._info.name, tensors, size)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model.
        """
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        with torch.inference_mode():
            self._pipeline.state.restore(row, snapshot.tensors)
        self._frames[row] = int(snapshot.tensors[_FRAMES])
        if self._primer is not None:
            self._primer.forget([row])

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        check_row(self._info, source)
        check_row(self._info, target)
        with torch.inference_mode():
            self._pipeline.state.move(source, target)
        self._frames[target] = self._frames[source]
        if self._primer is not None:
            self._primer.move(source, target)
        if self._pipeline.sampler is not None:
            self._pipeline.sampler.set(target, self._pipeline.sampler.get(source))

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return self._pipeline.state.bytes()

    def resize(self, slots: int) -> None:
        """Have ``slots`` fresh rows instead; see :class:`antiphon.backends.base.Resizable`."""
        check_slots(slots)
        self._release()
        self._allocate(slots)

    def close(self) -> None:
        """Let go of the modules and their state, and of the memory the device keeps for them."""
        self._release()
        del self._mimi, self._generator

    def _release(self) -> None:
        """Let go of the rows, and of the memory the device keeps for them."""
        self._runner.forget()
        del self._pipeline, self._primer, self._arriving, self._leaving
        if self._runner.on_cuda:
            torch.cuda.empty_cache()

    def _own_anew(self, rows: Sequence[int]) -> None:
        """What the host knows of these rows is of their former sessions."""
        self._frames[list(rows)] = 0
        if self._primer is not None:
            self._primer.forget(rows)

    def _step(self, inputs: StepInputs) -> StepOutputs:
        rows, spec, executed = inputs.rows, self._info.spec, inputs.exec
        self._own_anew(np.flatnonzero(inputs.reset).tolist())
        frames = self._frames[:rows]
        emitted = executed & (frames >= spec.silent_frames)
        filled = read_bucket(int(frames[executed].max(initial=0)) + 1)
        self._runner.begin()
        self._send(inputs, emitted)
        self._run_stages(rows, filled, inputs.reset, executed, emitted)
        frames[executed] += 1
        stage_ms = self._receive(rows)
        leaving = self._leaving[:rows].numpy()
        pcm = tokens = vad = None
        if spec.kind is not PipelineKind.STT:
            pcm = leaving[:, : spec.frame_samples].copy()
        if spec.lm is not None:
            tokens = np.where(emitted, self._read_text(rows), np.int32(NO_TOKEN))
        if leaving.shape[1] > spec.frame_samples + 1:
            vad = leaving[:, spec.frame_samples + 1 :].copy()
        return StepOutputs(executed.copy(), emitted, pcm, tokens, vad, stage_ms=stage_ms)

    def _run_stages(
        self, rows: int, filled: int, reset: BoolArray, executed: BoolArray, emitted: BoolArray
    ) -> None:
        """Reset and encode, think, decode. On a CPU masks are left out where they would change nothing."""
        pipeline, always = self._pipeline, self._runner.on_cuda
        masked, is_reset = always or not bool(executed.all()), always or bool(reset.any())

        def encode(rows: int, filled: int, *, masked: bool) -> None:
            if is_reset:
                pipeline.renew(rows)
            pipeline.encode(rows, filled, masked=masked)

        self._run("encode", encode, rows, filled, masked=masked)
        if pipeline.generator is not None:
            self._run("lm", pipeline.think, rows, filled, masked=masked)
        if self._info.kind is not PipelineKind.STT and emitted.any():
            masked = always or not bool(emitted.all())
            self._run("decode", pipeline.decode, rows, filled, masked=masked)

    def _think_alone(self, row: int, codes: torch.Tensor, frames: int) -> None:
        """The language model's stage for one row, which hears ``codes`` as its frame number ``frames``."""
        rows = next(bucket for bucket in self._info.buckets if bucket > row)
        buffers = self._pipeline.buffers
        buffers.arrived[:rows, EXECUTE] = 0
        buffers.arrived[row, EXECUTE] = 1
        buffers.codes[row, : self._pipeline.heard].copy_(codes)
        self._runner.begin()
        self._run("lm", self._pipeline.think, rows, read_bucket(frames), masked=True)
        self._runner.finish()

    def _run(self, name: str, stage: MaskedStage, rows: int, filled: int, *, masked: bool) -> None:
        """Run one stage; past its context, one bound on reads serves all."""
        filled = min(filled, self._context_frames[name])
        self._runner.run(name, (rows, filled, masked), lambda: stage(rows, filled, masked=masked))

    def _send(self, inputs: StepInputs, emitted: BoolArray) -> None:
        """One transfer to the device. Rows that do not execute are silent, whatever they hold."""
        assert inputs.pcm is not None
        rows, arriving = inputs.rows, self._arriving.numpy()
        arriving[:rows, :-FLAGS] = np.where(inputs.exec[:, None], inputs.pcm, np.float32(0))
        flags = {RESET: inputs.reset, EXECUTE: inputs.exec, EMIT: emitted}
        for column, flag in flags.items():
            arriving[:rows, column] = flag
        self._pipeline.buffers.arrived[:rows].copy_(self._arriving[:rows], non_blocking=True)

    def _read_text(self, rows: int) -> IntArray:
        """The text tokens of a tick that was received, int32 ``[n]``."""
        bits: IntArray = self._leaving[:rows, self._info.spec.frame_samples].numpy().view(np.int32)
        return bits

    def _receive(self, rows: int) -> dict[str, float]:
        """One transfer back, and the end of the tick."""
        self._leaving[:rows].copy_(self._pipeline.buffers.leaving[:rows], non_blocking=True)
        return self._runner.finish()
