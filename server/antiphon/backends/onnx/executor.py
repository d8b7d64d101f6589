"""The onnx backend: exported graphs over the named rows, with state in numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    FloatArray,
    IntArray,
    Progress,
    Result,
    TextResult,
    TextStep,
    Work,
    row_counts,
)
from antiphon.backends.machine import trim_memory
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.snapshots import HostArrays, TensorSpec, check_state, part
from antiphon.backends.stopwatch import StepClock, Stopwatch
from antiphon.models.delays import ZERO, DelayRings
from antiphon.models.manifest import Array
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import RowSampler, SamplingParameters
from antiphon.models.script import NEW_WORD, ScriptRules
from antiphon.models.spec import LMSpec, ModelSpec

_DELAYS, _SAMPLER = "delays.", "sampler."

TRIAL_ROWS, TRIAL_FRAMES = 4, 4


class Language:
    """A Moshi-family language model over S rows; a step calls :meth:`read`, :meth:`speak` and
    :meth:`DelayRings.outputs`.

    Each call names the rows of the step, int32 ``[m]``; all arrays are in their order.
    """

    def __init__(self, spec: LMSpec, lm: Stage, depformer: Stage | None) -> None:
        """Take ownership of the graphs; ``depformer`` is None for a model without audio output."""
        self._lm, self._depformer = lm, depformer
        self.spec = spec
        self.allocate(lm.slots)

    def allocate(self, rows: int) -> None:
        """Allocate ``rows`` fresh rows with default parameters; the graphs allocate their own state."""
        self.delays = DelayRings(self.spec, rows)
        self.sampler = RowSampler(self.spec, rows)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Reset rows, except for the graphs' own state."""
        self.delays.reset(rows)
        self.sampler.reset(rows)

    def read(
        self, rows: IntArray, heard: IntArray, watch: Stopwatch, *, is_fixed: bool = False
    ) -> tuple[IntArray, dict[str, Array]]:
        """Map codes int32 ``[m, codebooks]`` to the sampled text, int32 ``[m]``, and outputs of "lm"."""
        outputs = self._lm.run(rows, {"tokens": self.delays.inputs(rows, heard)}, is_fixed=is_fixed)
        watch.lap("lm")
        text = self.sampler.text(rows, outputs["logits"], self.delays.offsets[rows])
        watch.lap("sample")
        return text, outputs

    def speak(
        self, rows: IntArray, text: IntArray, hidden: Array, watch: Stopwatch, *, is_fixed: bool = False
    ) -> IntArray:
        """Choose a frame's audio tokens int32 ``[m, dep_q]``, all in one run of the depformer's graph."""
        if self._depformer is None:
            return np.empty((rows.size, 0), dtype=np.int32)
        noise = np.empty((rows.size, self.spec.dep_q, self.spec.card), np.float32)
        inverse, topk = self.sampler.voice_race(rows, self.delays.offsets[rows], noise)
        inputs: dict[str, Array] = {
            "noise": noise,
            "inverse_temperature": inverse,
            "topk": topk,
            "hidden": hidden,
            "text": text,
        }
        watch.lap("sample")
        codes = self._depformer.run(rows, inputs, is_fixed=is_fixed)["codes"]
        watch.lap("depformer")
        return codes.astype(np.int32)

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy a row's state outside of the graphs, by name, without the row axis."""
        parts = {_DELAYS + name: np.asarray(array) for name, array in self.delays.snapshot(row).items()}
        return parts | {_SAMPLER + name: np.asarray(a) for name, a in self.sampler.snapshot(row).items()}

    def specs(self) -> list[TensorSpec]:
        """The names, shapes and dtypes of the state outside of the graphs, as in a snapshot."""
        return [TensorSpec(name, array.shape, array.dtype) for name, array in self.snapshot(0).items()]

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a row."""
        self.delays.restore(row, part(snapshot, _DELAYS))
        self.sampler.restore(row, part(snapshot, _SAMPLER))

    @property
    def bytes(self) -> int:
        """Bytes of the state outside of the graphs, for all rows."""
        return self.delays.state_bytes + self.sampler.state_bytes


class OnnxRows:
    """S rows of the stages of a model; see :class:`antiphon.backends.base.DeviceRows`.

    ``stages`` are the graphs that have S rows, by kind: "encode", "lm", "depformer", "decode".
    """

    def __init__(self, spec: ModelSpec, stages: Mapping[str, Stage], facts: BackendInfo) -> None:
        """Take ownership of the stages of loaded graphs."""
        self.facts, self.stages = facts, dict(stages)
        self._most_weight_bytes = facts.memory["weights"]
        self._spec = spec
        self.language: Language | None = None
        if spec.lm is not None:
            self.language = Language(spec.lm, stages["lm"], stages.get("depformer"))

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
        for rows in (0, slots):  # all former rows are freed before the first new one
            for stage in self.stages.values():
                stage.allocate(rows)
        if self.language is not None:
            self.language.allocate(slots)

    def time_row(self, frame: Callable[[IntArray], object]) -> float:
        """Milliseconds of a ``frame`` of several rows, divided by the number of rows: the minimum of some
        trials.

        Afterwards there is one fresh row.
        """
        self.allocate(TRIAL_ROWS)
        step, clock = partial(frame, np.arange(TRIAL_ROWS, dtype=np.int32)), StepClock()
        times_s = [clock.seconds(step, self.facts.cpu_threads) for _ in range(TRIAL_FRAMES)]
        self.allocate(1)
        return 1000.0 * min(times_s) / TRIAL_ROWS

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The number of rows that a tick over ``rows`` computes in its largest stage."""
        stages = self.stages.values()
        return max(sum(map(len, stage.windows(rows, is_fixed=is_fixed))) for stage in stages)

    def warm_up(self, progress: Progress) -> None:
        """Run each stage at several sizes, which allocates its memory, and measure costs that are used."""
        for done, (name, stage) in enumerate(self.stages.items()):
            progress(done, len(self.stages), name)
            stage.warm_up(row_counts(stage.slots))
        progress(len(self.stages), len(self.stages), "ready")
        weights = self._most_weight_bytes - sum(stage.spare_bytes for stage in self.stages.values())
        trim_memory()  # sessions that were only timed
        threads = describe_threads(self.stages) if self.facts.device == "cpu" else ""
        self.facts = replace(self.facts, memory={**self.facts.memory, "weights": weights}, threads=threads)

    def choose_threads(self) -> None:
        """Choose how each stage runs with the current number of rows, and measure the cost of its runs."""
        for stage in self.stages.values():
            if stage.is_timed:
                stage.warm_up(row_counts(stage.slots))

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Reset rows bit for bit: rings are erased too; parameters and voices are kept."""
        for stage in self.stages.values():
            stage.state.reset(rows)
        if self.language is not None:
            self.language.reset(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""
        if self.language is not None:
            self.language.sampler.set_parameters(row, parameters)

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row: named tensors, each ring cut to the part that its position marks as filled."""
        tensors: dict[str, Any] = {} if self.language is None else self.language.snapshot(row)
        for stage in self.stages.values():
            tensors |= stage.state.snapshot(row)
        return tensors

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""
        specs = [] if self.language is None else self.language.specs()
        for stage in self.stages.values():
            specs += stage.state.specs.values()
        check_state(tensors, specs)

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked tensors into a row; its other tensors are as in a fresh row."""
        for stage in self.stages.values():
            stage.state.restore(row, tensors)
        if self.language is not None:
            self.language.restore(row, tensors)

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        language = 0 if self.language is None else self.language.bytes
        return language + sum(stage.bytes for stage in self.stages.values())

    def close(self) -> None:
        """Free the sessions, their threads and their state."""
        for stage in self.stages.values():
            stage.close()
        self.stages.clear()
        self.language = None

    def _decode(self, rows: IntArray, codes: Array, *, is_fixed: bool) -> FloatArray:
        """Map codes ``[e, codebooks]`` to PCM float32 ``[e, frame_samples]``."""
        return self.stages["decode"].run(rows, {"codes": codes}, is_fixed=is_fixed)["pcm"]


class OnnxFrames(OnnxRows, HostArrays):
    """Runs codec, duplex and stt models; implements :class:`antiphon.backends.base.FrameExecutor`."""

    def run(self, work: Work) -> Result:
        """Run one tick."""
        rows, is_fixed, watch = work.rows, work.is_fixed, Stopwatch()
        self.reset(rows[work.is_fresh])
        encode = self.stages["encode"]
        codes = encode.run(rows, {"pcm": work.pcm}, is_fixed=is_fixed)["codes"]
        watch.lap("encode")
        text, vad, language = None, None, self.language
        if language is not None:
            chosen, outputs = language.read(rows, codes.astype(np.int32), watch, is_fixed=is_fixed)
            voice = language.speak(rows, chosen, outputs["hidden"], watch, is_fixed=is_fixed)
            tokens, is_complete = language.delays.outputs(rows, chosen, voice)
            text = np.where(is_complete, tokens[:, 0], np.int32(NO_TOKEN))
            codes, vad = tokens[:, 1:], outputs.get("pauses")
            encode.state.reset(rows[work.is_forgotten])
        pcm = None
        if "decode" in self.stages:
            pcm = np.zeros((rows.size, self._spec.frame_samples), np.float32)
            if work.is_emitting.any():
                heard = work.is_emitting
                pcm[heard] = self._decode(rows[heard], codes[heard], is_fixed=is_fixed)
            watch.lap("decode")
        return Result(pcm, text, vad, watch.stage_ms)


class OnnxTexts(OnnxRows, HostArrays):
    """Runs tts models; see :class:`antiphon.backends.base.TextExecutor`. The stage ``voice`` has one row."""

    def __init__(
        self, spec: ModelSpec, stages: Mapping[str, Stage], facts: BackendInfo, voice: Stage | None = None
    ) -> None:
        """Take ownership of the stages of loaded graphs; ``voice`` makes state of "lm" from voices."""
        super().__init__(spec, stages, facts)
        self._voice = voice
        assert spec.lm is not None
        self._first = np.array(spec.lm.delays[1 : 1 + spec.lm.dep_q]) + ScriptRules.of(spec).audio_delay
        if facts.splits_rows:  # the threads share the rows of the trial, too
            self.allocate(TRIAL_ROWS)
            self.choose_threads()
        if facts.cpu_threads:
            self.facts = replace(facts, row_ms=self.time_row(self._frame))

    def _frame(self, rows: IntArray) -> None:
        """Compute a frame of all rows, for its time."""
        frames, choices = np.zeros(rows.size, np.int64), np.zeros((rows.size, 2), np.int32)
        is_emitting = np.ones(rows.size, np.bool_)
        self.advance(TextStep(rows, frames, choices, is_emitting, is_silent=False))

    def reset_rows(self, rows: IntArray) -> None:
        """Reset rows and erase their rings: hiding old content is not enough for a graph, which reads whole
        rings.
        """
        self.reset(rows)

    def advance(self, step: TextStep) -> TextResult:
        """Run one step of the rows of ``step``."""
        language, rows, is_fixed, watch = self.language, step.rows, step.is_fixed, Stopwatch()
        assert language is not None
        asked, outputs = language.read(rows, np.empty((rows.size, 0), np.int32), watch, is_fixed=is_fixed)
        text = np.where(asked == NEW_WORD, step.choices[:, 0], step.choices[:, 1])
        voice: IntArray = np.full((rows.size, self._first.size), ZERO, np.int32)
        if not step.is_silent:
            is_audible = language.delays.offsets[rows, None] >= self._first
            spoken = language.speak(rows, text, outputs["hidden"], watch, is_fixed=is_fixed)
            voice = np.where(is_audible, spoken, voice)
        tokens, _ = language.delays.outputs(rows, text, voice)
        pcm, heard = None, step.is_emitting
        if heard.any():
            pcm = self._decode(rows[heard], tokens[heard, 1:].clip(min=0), is_fixed=is_fixed)
            watch.lap("decode")
        return TextResult(asked, pcm, watch.stage_ms)

    def compute_voice(self, prompt: Prompt | None) -> dict[str, Any]:
        """The keys and values of cross-attention for a voice; None means no voice."""
        assert self._voice is not None
        speakers = self._voice.graph.inputs["speakers"]
        given = np.zeros_like(speakers)
        count = 0
        if prompt is not None and prompt.speakers is not None:
            count = len(prompt.speakers)
            given[0, :count] = prompt.speakers
        found = self._voice.run(np.zeros(1, np.int32), {"count": count, "speakers": given})
        return {name: array[0] for name, array in found.items()}

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write a computed voice into a row."""
        for name, array in tensors.items():
            self.stages["lm"].state.arrays[name][row] = array


def describe_threads(stages: Mapping[str, Stage]) -> str:
    """A description of how a step uses threads: their number, how they wait, and the stages that run in
    parts.
    """
    count = max((stage.threads for stage in stages.values()), default=1)
    if count == 1:
        return "1 thread"
    spinning = [name for name, stage in stages.items() if stage.is_spinning]
    waiting = "spinning" if len(spinning) == len(stages) else f"spinning in {', '.join(spinning)}"
    split = [
        name if stage.split_from == 1 else f"{name} from {stage.split_from} rows on"
        for name, stage in stages.items()
        if stage.split_from is not None
    ]
    parts = f"in parts: {', '.join(split)}" if split else "no stage in parts"
    return f"{count} threads, {waiting if spinning else 'sleeping'}; {parts}"
