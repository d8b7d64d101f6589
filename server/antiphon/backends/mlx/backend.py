"""The mlx backend: S rows of our own modules, stepped over prefixes of their state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version

import mlx.core as mx
import numpy as np

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    FloatArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.mlx.loading import Loaded, device_bytes, quantization_of
from antiphon.backends.mlx.pipeline import Pipeline, Tick
from antiphon.backends.mlx.stages import evaluate
from antiphon.errors import StepError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

SHORTEST_READ_FRAMES = 64
"""Ring reads are bounded by the longest-lived row's frames, rounded up to a power of two from here."""

_FRAMES = "frames"


def row_buckets(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, ... and the number of slots itself."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)


def read_bucket(frames: int) -> int:
    """The bound on ring reads for rows that have seen up to ``frames`` frames."""
    return max(SHORTEST_READ_FRAMES, 1 << (frames - 1).bit_length())


class MlxBackend:
    """Our own modules over ``slots`` rows of explicit state; see :class:`antiphon.backends.base.Backend`."""

    def __init__(
        self, spec: ModelSpec, loaded: Loaded, *, slots: int, device: mx.Device, compiles: bool
    ) -> None:
        """Take over loaded modules and give them ``slots`` fresh rows."""
        check_slots(slots)
        self._device = device
        mimi, generator = loaded.mimi, loaded.generator
        with self.on_device():
            self._pipeline = Pipeline(spec, mimi, generator, rows=slots, compiles=compiles)
        self._frames = np.zeros(slots, dtype=np.int64)  # executed since reset, so that nothing is read back
        self._info = BackendInfo(
            name="mlx",
            device=str(device.type).removeprefix("DeviceType."),
            spec=spec,
            slots=slots,
            buckets=row_buckets(slots),
            dtype=str(mx.float32 if generator is None else generator.model.dtype).removeprefix("mlx.core."),
            quantization="none" if generator is None else quantization_of(loaded),
            can_snapshot=True,
            versions={"mlx": version("mlx")},
            memory={
                "weights": loaded.weight_bytes,
                "state_per_row": self._pipeline.state.bytes() // slots,
                **device_bytes(device),
            },
        )

    def on_device(self) -> AbstractContextManager[object]:
        """Where operations go is a thread's own choice, and the engine's thread need not be the maker's."""
        return mx.stream(self._device)

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change while the backend lives."""
        return self._info

    @property
    def pipeline(self) -> Pipeline:
        """The modules and their state, for whoever takes them step by step; use them :meth:`on_device`."""
        return self._pipeline

    def warm_up(self, progress: Progress) -> None:
        """Run every shape of a tick once, then make all rows fresh."""
        context = max(self._pipeline.mimi.context_frames, self._lm_context())
        filled = sorted({min(read_bucket(1 << shift), context) for shift in range(context.bit_length() + 1)})
        shapes = [(rows, frames) for rows in self._info.buckets for frames in filled]
        for done, (rows, frames) in enumerate(shapes):
            progress(done, len(shapes), f"{rows} rows, {frames} frames")
            everyone = np.ones(rows, dtype=np.bool_)
            silence = np.zeros((rows, self._info.spec.frame_samples), dtype=np.float32)
            with self.on_device():
                self._run(silence, Tick(everyone, everyone, self._frames[:rows], frames))
        with self.on_device():
            self._reset(range(self._info.slots))
            evaluate(self._pipeline.state.tensors)
        progress(len(shapes), len(shapes), "ready")

    def _lm_context(self) -> int:
        generator = self._pipeline.generator
        return 1 if generator is None else generator.spec.context

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        check_row(self._info, row)
        if self._pipeline.sampler is not None:
            with self.on_device():
                self._pipeline.sampler.set(row, parameters)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the executed rows by one frame; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        try:
            with self.on_device():
                return self._step(inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # What mlx raises while operations are put together. Nothing of other rows was written by then;
            # what fails while it is computed is a DeviceLostError already.
            touched = tuple(np.flatnonzero(inputs.exec | inputs.reset).tolist())
            raise StepError(
                f"a step over rows {list(touched)} failed: {type(error).__name__}: {error}", rows=touched
            ) from error

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:  # noqa: ARG002
        """Not possible here: always raises UnsupportedError."""
        raise UnsupportedError("the mlx backend takes no prompt")

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state; the arrays stay on the device."""
        check_row(self._info, row)
        with self.on_device():
            tensors = self._pipeline.state.snapshot(row)
        size = sum(tensor.nbytes for tensor in tensors.values())
        return RowSnapshot(self._info.name, {**tensors, _FRAMES: int(self._frames[row])}, size)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model.
        """
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        with self.on_device():
            self._pipeline.state.restore(row, snapshot.tensors)
        self._frames[row] = snapshot.tensors[_FRAMES]

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        check_row(self._info, source)
        check_row(self._info, target)
        sampler = self._pipeline.sampler
        with self.on_device():
            self._pipeline.state.move(source, target)
            if sampler is not None:
                sampler.set(target, sampler.get(source))
        self._frames[target] = self._frames[source]

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return self._pipeline.state.bytes()

    def close(self) -> None:
        """Let go of the modules and their state, and of the memory mlx keeps for them."""
        del self._pipeline
        mx.clear_cache()

    def _reset(self, rows: Sequence[int], prefix: str = "") -> None:
        self._pipeline.state.reset(rows, prefix)
        if not prefix:
            self._frames[list(rows)] = 0

    def _step(self, inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is not None
        rows, executed = inputs.rows, inputs.exec.copy()
        self._reset(np.flatnonzero(inputs.reset).tolist())
        frames = self._frames[:rows]
        emitted = executed & (frames >= self._info.spec.silent_frames)
        filled = read_bucket(int(frames[executed].max(initial=0)) + 1)
        # Rows that do not execute are silent, whatever they hold.
        pcm = np.where(executed[:, None], inputs.pcm, np.float32(0))
        outputs = self._run(pcm, Tick(executed, emitted, frames, filled))
        frames[executed] += 1
        return outputs

    def _run(self, pcm: FloatArray, tick: Tick) -> StepOutputs:
        """Encode, think, decode."""
        pipeline, kind = self._pipeline, self._info.kind
        tokens = vad = out = None
        codes = pipeline.encode(pcm, tick)
        if pipeline.generator is not None:
            if kind is PipelineKind.DUPLEX:
                # Upstream's codec forgets a duplex session's first frame once the model has been given
                # its codes (``skip_frames`` of ``moshi/server.py``), and the next codes depend on it.
                self._reset(np.flatnonzero(tick.executed & (tick.frames == 0)).tolist(), prefix="encoder")
            said, vad, codes = pipeline.think(codes, tick)
            tokens = np.where(tick.emitted, said, np.int32(NO_TOKEN))
        if kind is not PipelineKind.STT:
            out = np.zeros_like(pcm)
            if tick.emitted.any():
                out = pipeline.decode(codes, tick)
        return StepOutputs(tick.executed, tick.emitted, out, tokens, vad, stage_ms=tick.stage_ms)
