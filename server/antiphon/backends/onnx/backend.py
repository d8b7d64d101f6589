"""The onnx backend: S rows of exported graphs, run over prefixes of their state."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    FloatArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.language import Language
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.graphs import Array
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind

_FAILURES_IN_A_ROW = 3  # one step may fail by its input; three in a row are nobody's input


@dataclass(frozen=True, slots=True)
class Build:
    """What a backend was made of, for its report."""

    device: str
    dtype: str
    quantization: str
    weight_bytes: int


def row_buckets(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, ... and the number of slots itself."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)


class OnnxBackend:
    """Graphs over ``slots`` rows of explicit state; see :class:`antiphon.backends.base.Backend`."""

    def __init__(self, spec: ModelSpec, graphs: Mapping[str, Graph], *, slots: int, build: Build) -> None:
        """Take over loaded graphs (by kind "encode", "lm", "depformer", "decode") of ``slots`` rows."""
        self._graphs, self._build = dict(graphs), build
        self._codecs = [graphs[name] for name in ("encode", "decode") if name in graphs]
        self._failures = 0
        self._take_rows(spec, slots)

    def _take_rows(self, spec: ModelSpec, slots: int) -> None:
        """Be a backend of as many rows as the graphs have been given."""
        build = self._build
        self._language: Language | None = None
        if spec.lm is not None:
            self._language = self._make_language(spec, spec.lm, slots)
        self._info = BackendInfo(
            name="onnx",
            device=build.device,
            spec=spec,
            slots=slots,
            buckets=row_buckets(slots),
            dtype=build.dtype,
            quantization=build.quantization,
            can_snapshot=True,
            versions={"onnxruntime": onnxruntime.__version__},
            memory={"weights": build.weight_bytes, "state_per_row": self.state_bytes() // slots},
        )

    def _make_language(self, spec: ModelSpec, lm: LMSpec, slots: int) -> Language:  # noqa: ARG002
        return Language(lm, self._graphs["lm"], self._graphs.get("depformer"), slots)

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change while the backend lives."""
        return self._info

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """The graphs and their state, for tools that look inside while nothing is being served."""
        return self._graphs

    def warm_up(self, progress: Progress) -> None:
        """Run every bucket once, which allocates what it needs, then make all rows fresh."""
        buckets = self._info.buckets
        for done, rows in enumerate(buckets):
            progress(done, len(buckets), f"{rows} rows")
            self._try(np.ones(rows, dtype=np.bool_))
        self._reset(np.ones(self._info.slots, dtype=np.bool_))
        progress(len(buckets), len(buckets), "ready")

    def _try(self, everyone: BoolArray) -> None:
        """Run whatever a tick of so many rows can run."""
        silence = np.zeros((len(everyone), self._info.spec.frame_samples), dtype=np.float32)
        for frame in range(self._info.spec.silent_frames + 1):
            self.step(StepInputs(everyone, everyone & (frame == 0), silence))

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        check_row(self._info, row)
        if self._language is not None:
            self._language.set_parameters(row, parameters)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the executed rows by one frame; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        try:
            self._reset(inputs.reset)
            outputs = self._step(inputs)
        except Exception as error:  # onnxruntime's exceptions share no base but this one
            raise self._judge(error, inputs.exec | inputs.reset) from error
        self._failures = 0
        return outputs

    def _judge(self, error: Exception, touched: BoolArray) -> StepError | DeviceLostError:
        self._failures += 1
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if self._failures >= _FAILURES_IN_A_ROW:
            return DeviceLostError(f"{self._failures} steps in a row failed, the last with {words}")
        rows = np.flatnonzero(touched).tolist()
        return StepError(f"a step over rows {rows} failed: {words}", rows=rows)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Graphs of one frame cannot force a row's tokens. Raises UnsupportedError."""
        check_row(self._info, row)
        raise UnsupportedError(
            f"the onnx backend takes no prompts (this one has {prompt.count} frames); torch does"
        )

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state."""
        check_row(self._info, row)
        tensors: dict[str, Array] = {}
        for graph in self._codecs:
            tensors |= graph.state.snapshot(row)
        if self._language is not None:
            tensors |= self._language.snapshot(row)
        return RowSnapshot(self._info.name, tensors, sum(tensor.nbytes for tensor in tensors.values()))

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model; the row is then as it was.
        """
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        for graph in self._codecs:
            graph.state.check(snapshot.tensors)
        if self._language is not None:
            self._language.check(snapshot.tensors)
            self._language.restore(row, snapshot.tensors)
        for graph in self._codecs:
            graph.state.restore(row, snapshot.tensors)

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        check_row(self._info, source)
        check_row(self._info, target)
        for graph in self._codecs:
            graph.state.move(source, target)
        if self._language is not None:
            self._language.move(source, target)

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        language = 0 if self._language is None else self._language.state_bytes()
        return language + sum(graph.bytes for graph in self._codecs)

    def resize(self, slots: int) -> None:
        """Have ``slots`` fresh rows instead; see :class:`antiphon.backends.base.Resizable`."""
        check_slots(slots)
        for rows in (0, slots):  # all former rows go before the first new one comes
            for graph in self._graphs.values():
                graph.allocate(rows)
        self._take_rows(self._info.spec, slots)

    def close(self) -> None:
        """Let go of the sessions and their state."""
        self._codecs.clear()
        self._graphs.clear()
        del self._language

    def _reset(self, mask: BoolArray) -> None:
        if not mask.any():
            return
        rows: Sequence[int] = np.flatnonzero(mask).tolist()
        for graph in self._codecs:
            graph.state.reset(rows)
        if self._language is not None:
            self._language.reset(mask)

    def _step(self, inputs: StepInputs) -> StepOutputs:
        spec, rows, executed, watch = self._info.spec, inputs.rows, inputs.exec, Stopwatch()
        emitted, tokens, pauses = executed.copy(), None, None
        assert inputs.pcm is not None
        codes = self._graphs["encode"].outputs["codes"][:rows]
        if executed.any():
            self._hear(inputs.pcm, executed)
        watch.lap("encode")
        if self._language is not None:
            first = executed & (self._language.steps[:rows] == 0)
            emitted = executed & (self._language.steps[:rows] >= spec.silent_frames)
            if executed.any():
                spoken = self._language.step(codes, executed, watch.lap)
                tokens, codes, pauses = spoken.text_tokens, spoken.codes, spoken.pauses
                self._begin_again(first)
            else:
                tokens = np.full(rows, NO_TOKEN, dtype=np.int32)
        out = None
        if "decode" in self._graphs:
            out = self._speak(codes, emitted)
            watch.lap("decode")
        return StepOutputs(executed.copy(), emitted, out, tokens, pauses, stage_ms=watch.stage_ms)

    def _hear(self, pcm: FloatArray, executed: BoolArray) -> None:
        """PCM to codes. Rows that do not execute are silent, whatever they hold."""
        rows, graph = len(executed), self._graphs["encode"]
        graph.inputs["pcm"][:rows] = 0
        graph.inputs["pcm"][:rows][executed] = pcm[executed]
        graph.inputs["exec"][:rows] = executed
        graph.run(rows)

    def _begin_again(self, first: BoolArray) -> None:
        """Let the codec forget a duplex session's first frame, after the model has been given its codes.

        Upstream does so (``skip_frames`` of ``moshi/server.py``), and the next frame's codes depend on it.
        """
        if self._info.kind is PipelineKind.DUPLEX:
            self._graphs["encode"].state.reset(np.flatnonzero(first).tolist())

    def _speak(self, codes: Array, emitted: BoolArray) -> FloatArray:
        """Codes int64 ``[n, codebooks]`` to PCM ``[n, samples]``, for the rows that emit."""
        graph, rows = self._graphs["decode"], len(emitted)
        if emitted.any():
            graph.inputs["codes"][:rows] = codes
            graph.inputs["exec"][:rows] = emitted
            graph.run(rows)
        pcm: FloatArray = graph.outputs["pcm"][:rows].copy()
        return pcm


class Stopwatch:
    """Milliseconds by stage, laps of the same stage added up."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._lap_s = time.perf_counter()

    def lap(self, stage: str) -> None:
        """The time since the last lap was this stage's."""
        now_s = time.perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000.0 * (now_s - self._lap_s)
        self._lap_s = now_s
