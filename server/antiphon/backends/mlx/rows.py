"""S rows of a model on one mlx device: what the executors of frames and of text share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import FloatArray, IntArray
from antiphon.backends.executor import ExecutorFacts
from antiphon.backends.mlx.loading import Loaded, device_bytes, quantization_of
from antiphon.backends.mlx.sampling import Sampler
from antiphon.backends.mlx.state import Packing, State, Step, TensorSpec
from antiphon.errors import DeviceLostError
from antiphon.models.codec_architecture import UNUSED_STATE
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec

Frames: TypeAlias = NDArray[np.int64]
"""The frames that each of some rows has seen, int64 ``[m]``."""


def tick_size(rows: int, slots: int) -> int:
    """The rows that a compiled tick over ``rows`` computes: the next power of two, or all there are."""
    return min(1 << (rows - 1).bit_length(), slots)


class MlxRows:
    """Loaded modules and rows of their state; see :class:`antiphon.backends.executor.Rows`."""

    def __init__(self, spec: ModelSpec, loaded: Loaded, *, device: mx.Device, compiles: bool) -> None:
        """Take over loaded modules; ``compiles`` has mlx fuse their operations, once for each size."""
        self.spec, self.mimi, self.generator = spec, loaded.mimi, loaded.generator
        self._device, self._compiles = device, compiles
        if compiles:
            self.mimi.compile()
            if self.generator is not None:
                self.generator.model.compile()
        dtype = mx.float32 if self.generator is None else self.generator.model.dtype
        self.facts = ExecutorFacts(
            name="mlx",
            device=str(device.type).removeprefix("DeviceType."),
            dtype=str(dtype).removeprefix("mlx.core."),
            quantization=quantization_of(loaded),
            versions={"mlx": version("mlx")},
            memory={"weights": loaded.weight_bytes, **device_bytes(device)},
        )

    def on_device(self) -> AbstractContextManager[object]:
        """Where operations go is a thread's own choice, and the engine's thread need not be the maker's."""
        return mx.stream(self._device)

    def allocate(self, slots: int) -> None:
        """Have ``slots`` fresh rows with default parameters; former rows are let go of first."""
        self.sampler = None if self.spec.lm is None else Sampler(self.spec.lm, slots)
        self.state = State((), 0)
        with self.on_device():
            self.state = State(self._specs(), slots)

    def _specs(self) -> Iterator[TensorSpec]:
        unused = UNUSED_STATE.get(self.spec.kind)
        yield from (it for it in self.mimi.specs() if unused is None or not it.name.startswith(unused))
        if self.generator is not None and self.sampler is not None:
            yield from self.generator.specs()
            yield from self.sampler.specs()

    def age(self, frames: int) -> None:
        """Let every row look as if it had been given so many frames."""
        with self.on_device():
            for name in self.state.specs:
                if name.endswith(".position"):
                    positions = frames * (
                        1 if name.startswith("lm.") else self.mimi.encoder_transformer.config.frame_positions
                    )
                    self.state.tensors[name] = mx.full_like(self.state.tensors[name], positions)

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """As many as are named; for compiled operations the next power of two."""
        if is_fixed:
            return self.state.rows
        return tick_size(len(rows), self.state.rows) if self._compiles else len(rows)

    def tick_sizes(self) -> list[int]:
        """Every size that a tick may have, as far as it matters to mlx."""
        slots = self.state.rows
        return sorted({tick_size(rows, slots) for rows in range(1, slots + 1)}) if self._compiles else [slots]

    def reset(self, rows: Sequence[int]) -> None:
        """Make rows like fresh ones, bit for bit."""
        with self.on_device():
            self.state.reset(rows)
            evaluate(self.state.tensors)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        if self.sampler is not None:
            self.sampler.set(row, parameters)

    def snapshot(self, row: int) -> dict[str, mx.array]:
        """Copy a row; the arrays stay on the device."""
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
        """The arrays as numpy's, bfloat16 as uint16."""
        with self.on_device():
            return self.state.to_host(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """The reverse."""
        with self.on_device():
            return self.state.from_host(arrays)

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self.state.bytes()

    def probe(self) -> None:
        """Add two numbers on the device."""
        with self.on_device():
            mx.eval(mx.ones(1) + 1)

    def close(self) -> None:
        """Let go of the modules and their state, and of the memory mlx keeps for them."""
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
        """Run a stage over some rows; what it returned, ``[m, ...]`` each, and the milliseconds it took.

        ``frames`` is how many the rows have seen before this one.
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
        """Codes int32 ``[m, codebooks]`` to PCM ``[m, frame_samples]``, and the milliseconds."""

        def work(step: Step) -> list[mx.array]:
            return [self.mimi.decode(mx.array(step.packing.spread(codes)), step)]

        (pcm,), took_ms = self.stage(rows, frames, work, is_fixed=is_fixed)
        return pcm, took_ms


def evaluate(*arrays: object) -> None:
    """Have the device compute arrays, or trees of them.

    Raises:
        DeviceLostError: it did not. Inputs that gave their memory to a result may be gone with it, those
            of other rows included, so nothing can be trusted any more.
    """
    try:
        mx.eval(*arrays)
    except (RuntimeError, MemoryError) as error:
        raise DeviceLostError(f"mlx could not compute a step: {error}") from error
