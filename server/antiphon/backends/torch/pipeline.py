"""One tick on the device: the places of its rows, and stages over static buffers, which may run as CUDA
graphs.

The stages encode, run the language model, and decode. Codec models encode and decode; stt models encode and
run the language model; duplex models do all three; tts models have no encoder. A stage reads and writes only
buffers at fixed addresses, so the same function runs eagerly and as a graph, captured once per shape. Rows
are computed packed, or each in its own place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.base import FloatArray, IntArray
from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.generation import Generator, TokenChooser
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import NO_ROW, PackedStep, Run, State, runs_of
from antiphon.log import Log
from antiphon.models.architecture import UNUSED_STATE
from antiphon.models.spec import ModelSpec, PipelineKind

Stage = Callable[[], None]


class StageRunner:
    """Runs stages on one device and times them.

    On CUDA a stage is captured as a graph the second time its key occurs (the first run loads kernels and
    workspaces, which is forbidden during a capture) and replayed from then on. All graphs share one memory
    pool, because they never run at the same time and leave results only in the buffers. A stage has no host
    sync, uses no random generator of torch, and allocates only temporary data.

    After :meth:`settle` nothing is captured: a capture waits for the whole device, which delays every call's
    frame, and it fails while another model of the process captures. A stage with a new key then runs eagerly;
    ``late_runs`` counts these runs, and the first one is logged.

    Each model's ticks have their own CUDA stream, so that two models of one process do not wait for each
    other.

    On CUDA this class turns off cuDNN's TF32 for all convolutions of the process: TF32 has ten bits of
    mantissa, and with TF32 Mimi's codes would differ from the codes on a CPU. torch rejects a process that
    sets TF32 through both of its interfaces; this class uses the newer one.
    """

    def __init__(self, device: torch.device) -> None:
        """Start with nothing captured."""
        self._device = device
        if self.on_cuda:
            cudnn: Any = torch.backends.cudnn
            cudnn.conv.fp32_precision = "ieee"
        # A separate pool: torch's default pool for captures belongs to the process, on the device of the
        # first capture.
        self._stream = torch.cuda.Stream(device) if self.on_cuda else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._is_settled = False
        self.late_runs = 0
        self._pool = self._new_pool()
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    @property
    def on_cuda(self) -> bool:
        """Whether stages are captured as CUDA graphs."""
        return self._device.type == "cuda"

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the device current in this thread: Triton launches on the current device, wherever its tensors
        are.
        """
        with torch.cuda.device(self._device) if self.on_cuda else nullcontext():
            yield

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Run a tick in this block: start its clock, and queue its copies and stages after the device's
        earlier work.
        """
        if self._stream is None:
            self._marks = [("", self._now())]
            yield
            return
        with self.on_device():  # captures are made on it too
            outside = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(outside)
            with torch.cuda.stream(self._stream):
                self._marks = [("", self._now())]
                try:
                    yield
                finally:
                    outside.wait_stream(self._stream)

    def run(self, name: str, key: Hashable | None, stage: Stage) -> None:
        """Run a stage. ``key`` contains everything that its captured form depends on; with None the stage is
        not captured.
        """
        if self.on_cuda and key is not None:
            self._run_on_cuda((name, key), stage)
        else:
            stage()
        self._marks.append((name, self._now()))

    def _run_on_cuda(self, key: Hashable, stage: Stage) -> None:
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
        elif self._is_settled:
            stage()
            self.late_runs += 1
            if self.late_runs == 1:
                Log(__name__).warning("a stage ran without a graph", key=str(key))
        elif key not in self._graphs:
            stage()
            self._graphs[key] = None
        else:
            graph = torch.cuda.CUDAGraph()
            # The outer block makes the current stream current again even if ending a capture raises.
            # "thread_local": another thread's calls to CUDA do not disturb this capture.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                stage()
            self._graphs[key] = graph
            graph.replay()

    def finish(self) -> dict[str, float]:
        """Wait for the device; returns milliseconds by stage."""
        if self.on_cuda:
            # Not for the whole device: that is an error while another model's thread captures on it.
            torch.cuda.current_stream(self._device).synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return {name: _elapsed_ms(start, end) for (_, start), (name, end) in pairs}

    def settle(self) -> None:
        """Stop capturing, once every shape of a tick has been run."""
        self._is_settled = True

    def forget(self) -> None:
        """Drop every captured graph, after a change of values that were captured.

        Graphs must be dropped all at once: those captured on one stream share cuBLAS's workspace, which torch
        may free with any of them.
        """
        self._graphs.clear()
        self._is_settled = False
        self._pool = self._new_pool()  # torch rejects a pool that no graph uses any more

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.on_cuda else None

    def _now(self) -> float | torch.cuda.Event:
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _elapsed_ms(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(start.elapsed_time(end))
    assert isinstance(start, float)
    assert isinstance(end, float)
    return 1000.0 * (end - start)


WHOLE_RING = 1 << 30
"""A bound above the length of every ring. Kernels bound the reads of each row separately, so one captured
form serves calls of any age.
"""


_FEW_ROWS = (1, 2, 4, 8)


_ROWS_APART = 16


class LayoutKind(Enum):
    """The layout of a tick's rows.

    EAGER: exactly the named rows; nothing is captured. PADDED: kernels take the list of rows, whose length is
    rounded up so that few shapes are captured.
    """

    EAGER = "eager"
    PADDED = "padded"


def row_buckets(slots: int) -> tuple[int, ...]:
    """The numbers of rows to prepare for: 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, ... and the number of
    slots.
    """
    sizes, size = list(_FEW_ROWS), _ROWS_APART
    while size < slots:
        sizes += [size, size + size // 2]
        size *= 2
    return (*(size for size in sizes if size < slots), slots)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The places of one stage: the indices at which its rows are computed.

    ``rows`` int32 ``[n]`` is the row at each place, or NO_ROW. ``at`` ``[m]`` is the place of each named row,
    in the order in which the rows were named. ``runs``, ``filled`` and ``is_padded``: see
    :class:`antiphon.backends.torch.state.PackedStep`.
    """

    rows: IntArray
    at: NDArray[np.intp]
    runs: tuple[Run, ...]
    filled: int
    is_padded: bool

    @property
    def count(self) -> int:
        """The number n of places."""
        return int(self.rows.size)


def place_rows(
    layout: LayoutKind, slots: int, rows: IntArray, frames: NDArray[np.int64], *, is_fixed: bool = False
) -> BatchLayout:
    """Lay out rows int32 ``[m]``, each of which has received ``frames [m]`` frames before the current frame.

    With ``is_fixed`` each row is in its own place among all rows, and attention without kernels processes it
    separately.
    """
    count = planned_rows(layout, slots, rows.size, is_fixed=is_fixed)
    at = rows.astype(np.intp) if is_fixed else np.arange(rows.size)
    placed, filled = np.full(count, NO_ROW, np.int32), np.zeros(count, np.int64)
    placed[at], filled[at] = rows, frames + 1
    if layout is LayoutKind.PADDED:
        return BatchLayout(placed, at, (), WHOLE_RING, is_padded=True)
    runs = runs_of(placed.tolist(), filled.tolist(), apart=is_fixed)
    return BatchLayout(placed, at, runs, int(filled.max()), is_padded=count > rows.size)


def planned_rows(layout: LayoutKind, slots: int, count: int, *, is_fixed: bool) -> int:
    """The number of places of a tick over ``count`` rows."""
    if is_fixed:
        return slots
    if layout is LayoutKind.EAGER:
        return count
    return next(bucket for bucket in row_buckets(slots) if bucket >= count)


ROW_COLUMNS, ROW, EMITTING = 2, -2, -1
"""The columns of ``Buffers.arrived`` after the PCM: their number and their indices."""

FRESH, FORGOTTEN = 0, 1
"""The lines of ``Buffers.chosen``."""

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""

ENCODER = "encoder"
"""The prefix of the encoder's state names."""


def write_inputs(
    host: FloatArray, places: BatchLayout, pcm: FloatArray | None, decoded: BatchLayout | None
) -> None:
    """Write a tick's inputs into ``host`` float32 ``[n, samples + ROW_COLUMNS]``: its rows, those that are
    decoded (None: all), and their PCM ``[m, samples]``.

    Only numpy writes: torch would share the work among threads, which wait for each other.
    """
    lists = host[:, -ROW_COLUMNS:].view(np.int32)
    lists[:, ROW] = lists[:, EMITTING] = places.rows
    if decoded is not None:
        lists[:, EMITTING] = NO_ROW
        lists[: decoded.count, EMITTING] = decoded.rows
    if pcm is not None:
        host[places.rows == NO_ROW, :-ROW_COLUMNS] = 0
        host[places.at, :-ROW_COLUMNS] = pcm


def codec_specs(mimi: Mimi, kind: PipelineKind) -> Iterator[TensorSpec]:
    """The codec's state for a kind of pipeline: the state of the encoder, of the decoder, or of both."""
    unused = UNUSED_STATE.get(kind)
    return (spec for spec in mimi.specs() if unused is None or not spec.name.startswith(unused))


@dataclass(frozen=True, slots=True)
class Buffers:
    """A tick's data on the device, at the same addresses in every tick.

    Indexed by place: ``arrived`` float32 ``[S, frame_samples + 2]`` has the PCM and, as the bits of int32,
    the row that is encoded and advances there and the row that is decoded there. ``codes`` int64 ``[S, K]``
    has the input codes. ``leaving`` float32 ``[S, frame_samples + 1 + heads]`` has the PCM, the text token as
    the bits of an int32 (float32 would round a token that combines two texts), and pause probabilities. There
    is one transfer in each direction. Indexed by row: ``voice`` int64 ``[S + 1, L]`` has output codes,
    ``chosen`` bool ``[2, S]`` the rows to be reset.
    """

    arrived: Tensor
    codes: Tensor
    voice: Tensor
    leaving: Tensor
    chosen: Tensor

    @classmethod
    def make(cls, spec: ModelSpec, rows: int, device: torch.device) -> Buffers:
        """Allocate the buffers for ``rows`` rows."""
        heads, voice = 0, spec.mimi.codebooks
        if spec.lm is not None:
            heads = spec.heads
            voice = spec.lm.dep_q
        samples = spec.frame_samples
        return cls(
            torch.zeros(rows, samples + ROW_COLUMNS, device=device),
            torch.zeros(rows, spec.mimi.codebooks, dtype=torch.int64, device=device),
            torch.zeros(rows + 1, voice, dtype=torch.int64, device=device),
            torch.zeros(rows, samples + 1 + heads, device=device),
            torch.zeros(2, rows, dtype=torch.bool, device=device),
        )


class Pipeline:
    """The modules of one model, their state for S rows, and the stages over them."""

    def __init__(
        self,
        spec: ModelSpec,
        mimi: Mimi,
        generator: Generator | None,
        *,
        rows: int,
        overcommit: float = 1.0,
    ) -> None:
        """Take ownership of loaded modules and allocate ``rows`` fresh rows for them.

        With ``overcommit`` above 1 the rows share the pages of keys and values that ``rows / overcommit``
        rows would need.
        """
        self._is_paged = overcommit > 1
        self.spec, self.mimi, self.generator = spec, mimi, generator
        self.device = mimi.device
        self.sampler: Sampler | None = None
        if spec.lm is not None:
            by_kernels = generator is not None and generator.model.is_fused(self.device)
            self.sampler = Sampler(spec.lm, rows, self.device, is_fused=by_kernels)
            self._is_paged |= by_kernels
        self.state = State(self.specs(), rows, self.device, overcommit=overcommit)
        self.buffers = Buffers.make(spec, rows, self.device)
        self.input_codebooks = spec.mimi.codebooks if spec.lm is None else spec.lm.n_q - spec.lm.dep_q

    @property
    def is_fused(self) -> bool:
        """Whether kernels run all attention of a frame, for a list of rows."""
        is_model_fused = self.generator is None or self.generator.model.is_fused(self.device)
        return is_model_fused and self.mimi.is_fused(self.device)

    @property
    def layout(self) -> LayoutKind:
        """The layout of a tick's rows. On a GPU without kernels it is EAGER, because a graph of a tick would
        have about 20,000 launches.
        """
        is_captured = self.device.type == "cuda" and self.is_fused
        return LayoutKind.PADDED if is_captured else LayoutKind.EAGER

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the pipeline."""
        yield from codec_specs(self.mimi, self.spec.kind)
        if self.generator is not None and self.sampler is not None:
            for spec in self.generator.specs():
                yield spec.pooled() if self._is_paged and spec.position is not None else spec
            yield from self.sampler.specs()

    def step(self, places: BatchLayout, column: int = ROW) -> PackedStep:
        """A stage's view of the state; the list of rows is a column of ``Buffers.arrived``."""
        rows = self.buffers.arrived[: places.count, column].view(torch.int32).long()
        return PackedStep(
            self.state.tensors,
            rows,
            places.runs,
            small_rows=self.state.rows + 1,
            filled=places.filled,
            is_padded=places.is_padded,
            is_fused=self.is_fused,
            table=self.state.table,
        )

    def reset_rows(self) -> None:
        """Reset the rows that the tick chooses; rings are hidden, not erased."""
        self.state.reset_rows(self.buffers.chosen[FRESH])

    def reset_encoders(self) -> None:
        """Reset the encoders of the rows that the tick chooses."""
        self.state.reset_rows(self.buffers.chosen[FORGOTTEN], ENCODER)

    def encode(self, places: BatchLayout) -> None:
        """Map PCM to codes."""
        step = self.step(places)
        pcm = self.buffers.arrived[: places.count, : self.spec.frame_samples]
        codes = self.mimi.encode(pcm, step)[:, :, 0]
        self.buffers.codes[: places.count].copy_(codes)
        if self.generator is None:
            self.buffers.voice.index_copy_(0, step.at, codes)

    def run_lm(self, places: BatchLayout) -> None:
        """Map input codes to the text token, pause probabilities, and the output codes."""
        assert self.sampler is not None
        self.write_text(self.generate(places, self.sampler)[:, 0])

    def generate(self, places: BatchLayout, chooser: TokenChooser, *, is_silent: bool = False) -> Tensor:
        """Run a step of the language model: return tokens int64 ``[n, 1 + dep_q]``, and write the audio
        tokens to the buffer.
        """
        assert self.generator is not None
        step, heard = self.step(places), self.buffers.codes[: places.count, : self.input_codebooks]
        out = self.generator.step(heard, step, chooser, is_silent=is_silent)
        if self.generator.dep_q:
            self.buffers.voice.index_copy_(0, step.at, out.tokens[:, 1:].clamp(min=0))
        first = self.spec.frame_samples + 1
        if self.buffers.leaving.shape[1] > first:
            heads = self.generator.model.pause_heads(out.hidden)
            self.buffers.leaving[: places.count, first:].copy_(heads[:, :, PAUSE_INDEX])
        return out.tokens

    def write_text(self, tokens: Tensor) -> None:
        """Write text tokens int64 ``[n]``, with all their bits, to the buffer for the host."""
        bits = tokens.to(torch.int32).view(torch.float32)
        self.buffers.leaving[: len(tokens), self.spec.frame_samples].copy_(bits)

    def decode(self, places: BatchLayout) -> None:
        """Map codes to PCM."""
        step = self.step(places, EMITTING)
        pcm = self.mimi.decode(self.buffers.voice.index_select(0, step.at)[:, :, None], step)
        self.buffers.leaving[: places.count, : self.spec.frame_samples].copy_(pcm)
