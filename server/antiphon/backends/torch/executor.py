"""The common part of all torch executors: rows of state, their places in a tick, inputs, the step, and
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.base import BackendInfo, FloatArray, IntArray, Progress
from antiphon.backends.page_pool import PagePool
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.layers import StreamEmbeddings, TokenEmbedding, weight_bytes
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.pipeline import (
    BatchLayout,
    LayoutKind,
    Pipeline,
    StageRunner,
    place_rows,
    planned_rows,
    row_buckets,
    write_inputs,
)
from antiphon.backends.torch.quantised import formats_of, int4_linears, int8_linears, weight_bits
from antiphon.backends.torch.state import State, row_bytes
from antiphon.backends.torch_devices import device_bytes, device_name, device_probe, to_numpy
from antiphon.models.costs import TICK_ROW_BYTES, TickWork
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind


def tick_work(kind: PipelineKind, mimi: Mimi, generator: Generator) -> TickWork:
    """The cost of a tick of a model with its codec, from its modules' shapes and weights."""
    model, sequences = generator.model, generator.sequences
    config, compute = model.transformer.config, model.transformer.compute
    depformer = model.depformer and model.depformer.config
    position_bytes = compute.kv.position_bytes(config.head_dim, compute.attention_dtype)
    cross = 2 * config.layers * config.cross_positions * config.dim * model.dtype.itemsize
    return TickWork(
        weights_bytes=weight_bytes(mimi) + _read_bytes(model),
        frame_bytes=sequences * config.layers * config.kv_heads * position_bytes,
        context=config.context,
        row_bytes=sequences * cross,
        passes=kind.codec_passes,
        layers=config.layers,
        cross_layers=config.layers if config.cross_positions else 0,
        steps=depformer.steps if depformer else 0,
        step_layers=depformer.layers if depformer else 0,
        weight_bits=weight_bits(model),
    )


def _read_bytes(model: LanguageModel) -> int:
    """Bytes of all weights except tables; the depformer's count once for each step that shares them."""
    tables = [child for child in model.modules() if isinstance(child, StreamEmbeddings | TokenEmbedding)]
    read = weight_bytes(model) - sum(table.weight.nbytes for table in tables)
    if model.depformer is None:
        return read
    layers, config = weight_bytes(model.depformer.layers), model.depformer.config
    return read + layers * (config.steps - config.sets) // config.sets


def quantization_of(model: LanguageModel) -> str:
    """The quantised parts of a loaded model: "weights-int8+activations-int8+kv-int8", some of these three, or
    "none".

    Weights can be int4 too, and keys and values int8-int4 or int4.
    """
    parts = [f"weights-{name}" for name in formats_of(model)]
    if any(layer.rounds_input for layer in (*int8_linears(model), *int4_linears(model))):
        parts.append("activations-int8")
    if (form := model.transformer.compute.kv).is_rounded:
        parts.append(f"kv-{form}")
    return "+".join(parts) or "none"


WARM_UP_TICKS = 2
"""Runs of a shape before it is replayed: the first loads its kernels, the second captures it."""

WARM_UP_FRAMES = 64
"""The age of rows in frames while they are timed. On a CPU attention reads this number of frames."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation for S rows: the pipeline, and the host's views of its buffers."""

    pipeline: Pipeline
    layout: LayoutKind
    arriving: Tensor
    leaving: Tensor
    choosing: Tensor


class TorchRows:
    """S rows of our modules' state on one device, and the stages over them."""

    def __init__(
        self, spec: ModelSpec, mimi: Mimi, generator: Generator | None, *, overcommit: float = 1.0
    ) -> None:
        """Take ownership of loaded modules; :meth:`allocate` makes rows, whose rings may share pages
        (:class:`State`).
        """
        self._spec, self._mimi, self._generator = spec, mimi, generator
        self._overcommit = overcommit
        self._runner = StageRunner(mimi.device)
        self._allocation: Allocation | None = None

    @property
    def facts(self) -> BackendInfo:
        """The properties that do not change while the executor exists."""
        generator = self._generator
        model = None if generator is None else generator.model
        modules = [self._mimi] if model is None else [self._mimi, model]
        return BackendInfo(
            name="torch",
            device=str(self._mimi.device),
            spec=self._spec,
            dtype="float32" if model is None else str(model.dtype).removeprefix("torch."),
            quantization="none" if model is None else quantization_of(model),
            versions={"torch": str(torch.__version__)},
            memory={
                "weights": sum(map(weight_bytes, modules)),
                **device_bytes(self._mimi.device),
                **({"tick_per_row": TICK_ROW_BYTES} if self._runner.on_cuda else {}),
                **self._promised_bytes(),
            },
            device_name=device_name(self._mimi.device),
            cpu_threads=torch.get_num_threads() if self._mimi.device.type == "cpu" else 0,
            work={} if generator is None else asdict(tick_work(self._spec.kind, self._mimi, generator)),
        )

    def _promised_bytes(self) -> dict[str, int]:
        """With shared pages: the pages promised to a row, and its most."""
        if self._allocation is None or self._overcommit <= 1:
            return {}
        whole = row_bytes(self._state.specs.values())
        return {"state_per_row": self._state.promised_bytes(), "whole_row": whole}

    @property
    def pool(self) -> PagePool | None:
        """The pages that rows share; None while each row has its own pages."""
        return self._state.pool

    @property
    def _rows(self) -> Allocation:
        assert self._allocation is not None, "allocate comes first"
        return self._allocation

    @property
    def pipeline(self) -> Pipeline:
        """The modules and their state, also for tools that inspect them while no call is served."""
        return self._rows.pipeline

    @property
    def _state(self) -> State:
        return self.pipeline.state

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
        self._release()
        pipeline = Pipeline(self._spec, self._mimi, self._generator, rows=slots, overcommit=self._overcommit)
        buffers = pipeline.buffers
        hosts = map(self._host_buffer, (buffers.arrived, buffers.leaving, buffers.chosen))
        self._allocation = Allocation(pipeline, pipeline.layout, *hosts)

    def _host_buffer(self, buffer: Tensor) -> Tensor:
        """The host's view of a buffer; on a CPU the buffer itself."""
        return torch.zeros_like(buffer, device="cpu", pin_memory=True) if self._runner.on_cuda else buffer

    def _release(self) -> None:
        """Free the memory of the rows, and the device's cache of it."""
        self._runner.forget()
        self._allocation = None
        if self._runner.on_cuda:
            torch.cuda.empty_cache()

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The number of rows that a tick over ``rows`` computes."""
        return planned_rows(self._rows.layout, self._state.rows, rows.size, is_fixed=is_fixed)

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        """Run every shape of a tick until it is captured. Without kernels, run only one row and all rows.

        Raises:
            MemoryError: the device has too little memory for ticks of this number of rows.
        """
        slots = self._state.rows
        sizes = row_buckets(slots) if self._rows.layout is LayoutKind.PADDED else sorted({1, slots})
        try:
            for done, size in enumerate(sizes):
                progress(done, len(sizes), f"{size} rows")
                self._warm_up_rows(size)
            if self._runner.on_cuda:
                self._warm_up_prompts()
        except RuntimeError as error:  # from torch's allocator, or from CUDA when a graph is made
            if "out of memory" in str(error):
                raise MemoryError(str(error)) from error
            raise
        self._runner.settle()
        progress(len(sizes), len(sizes), "ready")

    def _warm_up_rows(self, size: int) -> None:
        """Run ticks of ``size`` rows."""
        places = self._place(np.arange(size, dtype=np.int32), np.full(size, WARM_UP_FRAMES - 1, np.int64))
        for _ in range(WARM_UP_TICKS):
            with self._runner.tick():
                self.arrive(places)
                self._warm_up_stages(places)
                self._runner.finish()

    def _warm_up_stages(self, places: BatchLayout) -> None:
        """Run each stage once."""
        raise NotImplementedError

    def _warm_up_prompts(self) -> None:
        """Run once the work of a prompt or a state between ticks: a GPU loads a kernel when it first runs."""
        self.restore(0, self.snapshot(0))

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones, bit for bit: rings are erased too, parameters are kept."""
        self._state.reset(rows)

    def age(self, frames: int) -> None:
        """Make every row appear to have received ``frames`` frames."""
        self._state.share_pages()
        with torch.inference_mode():
            for name in self._state.specs:
                if name.endswith(".position"):
                    positions = 1 if name.startswith("lm.") else self._mimi.frame_positions
                    self._state.tensors[name].fill_(frames * positions)

    def choose_threads(self) -> None:
        """No effect: there is no choice of threads with torch."""

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; no effect for a codec."""
        if self.pipeline.sampler is not None:
            self.pipeline.sampler.set(row, parameters)

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """Copy a row; the tensors remain on the device, rings are cut to their filled part."""
        return self._state.snapshot(row)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""
        self._state.check(tensors)

    def restore(self, row: int, tensors: Mapping[str, Tensor]) -> None:
        """Write checked tensors into a fresh row."""
        self._state.restore(row, tensors)

    def to_host(self, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """Convert a snapshot's tensors to numpy arrays, bfloat16 as the uint16 of the same bits."""
        return to_numpy(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Reverse :meth:`to_host`."""
        found = {}
        for name, array in arrays.items():
            tensor, spec = torch.from_numpy(array.copy()), self._state.specs.get(name)
            if spec is not None and spec.dtype == torch.bfloat16 and tensor.dtype == torch.uint16:
                tensor = tensor.view(torch.bfloat16)
            found[name] = tensor.to(self._mimi.device)
        return found

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self._state.bytes()

    def probe(self) -> None:
        """Do a little work on the device; raises if it fails."""
        device_probe(self._mimi.device)()

    def close(self) -> None:
        """Free the modules, their state, and the memory that the device keeps for them."""
        self._release()
        del self._mimi, self._generator

    def _place(self, rows: IntArray, frames: NDArray[np.int64], *, is_fixed: bool = False) -> BatchLayout:
        return place_rows(self._rows.layout, self._state.rows, rows, frames, is_fixed=is_fixed)

    def arrive(
        self, places: BatchLayout, pcm: FloatArray | None = None, decoded: BatchLayout | None = None
    ) -> None:
        """Copy the inputs to the device in one transfer: the rows of each place."""
        arriving = self._rows.arriving[: places.count]
        write_inputs(arriving.numpy(), places, pcm, decoded)
        self.pipeline.buffers.arrived[: places.count].copy_(arriving, non_blocking=True)

    def _choose(self, name: str, line: int, rows: IntArray, stage: Callable[[], None]) -> None:
        """Run a stage over rows chosen by the host, unless there are none."""
        if not rows.size:
            return
        self._rows.choosing[line] = torch.from_numpy(np.isin(np.arange(self._state.rows), rows))
        self.pipeline.buffers.chosen[line].copy_(self._rows.choosing[line], non_blocking=True)
        self._runner.run(name, (), stage)

    def _run(self, name: str, stage: Callable[[BatchLayout], None], places: BatchLayout) -> None:
        """Run a stage over places; its captured form depends on their number."""
        key = places.count if self._rows.layout is LayoutKind.PADDED else None
        self._runner.run(name, key, lambda: stage(places))

    def _leave(self, places: BatchLayout) -> dict[str, float]:
        """Copy the results back in one transfer, and end the tick; returns the stages' milliseconds."""
        leaving = self.pipeline.buffers.leaving[: places.count]
        self._rows.leaving[: places.count].copy_(leaving, non_blocking=True)
        return self._runner.finish()

    def text_tokens(self, places: BatchLayout) -> IntArray:
        """The text tokens in the transfer from the device, int32 ``[m]``."""
        bits: IntArray = self._rows.leaving.numpy()[places.at, self._spec.frame_samples].view(np.int32)
        return bits

    def _pcm(self, places: BatchLayout) -> FloatArray:
        """The PCM in the transfer back, ``[m, frame_samples]``."""
        pcm: FloatArray = self._rows.leaving.numpy()[places.at, : self._spec.frame_samples]
        return pcm
