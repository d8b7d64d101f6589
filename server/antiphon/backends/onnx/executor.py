"""The onnx backend's executors: exported graphs over the rows that are named, state in numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.backends.arrays import HostArrays
from antiphon.backends.base import NO_TOKEN, FloatArray, IntArray, Progress
from antiphon.backends.executor import ExecutorFacts, Result, TextResult, TextStep, Work
from antiphon.backends.host import HostBackend
from antiphon.backends.machine import give_back_memory
from antiphon.backends.onnx.language import Language
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.snapshots import Form, check_tensors
from antiphon.backends.stopwatch import Stopwatch
from antiphon.models.delays import ZERO
from antiphon.models.graphs import Array
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import NEW_WORD, ScriptRules
from antiphon.models.spec import ModelSpec


class OnnxRows(HostArrays):
    """S rows of the stages of a model; see :class:`antiphon.backends.executor.Rows`.

    ``stages`` are those that have S rows, by kind: "encode", "lm", "depformer", "decode".
    """

    def __init__(self, spec: ModelSpec, stages: Mapping[str, Stage], facts: ExecutorFacts) -> None:
        """Take over the stages of loaded graphs."""
        self.facts, self.stages = facts, dict(stages)
        self._most_weight_bytes = facts.memory["weights"]
        self._spec = spec
        self.language: Language | None = None
        if spec.lm is not None:
            self.language = Language(spec.lm, stages["lm"], stages.get("depformer"))

    def allocate(self, slots: int) -> None:
        """See the protocol."""
        for rows in (0, slots):  # all former rows go before the first new one comes
            for stage in self.stages.values():
                stage.allocate(rows)
        if self.language is not None:
            self.language.allocate(slots)

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The rows of the stage that runs the most."""
        stages = self.stages.values()
        return max(sum(map(len, stage.windows(rows, is_fixed=is_fixed))) for stage in stages)

    def warm_up(self, progress: Progress) -> None:
        """Run each stage at several sizes, which allocates what it needs and measures what runs cost."""
        for done, (name, stage) in enumerate(self.stages.items()):
            progress(done, len(self.stages), name)
            stage.warm_up(row_counts(stage.slots))
        progress(len(self.stages), len(self.stages), "ready")
        weights = self._most_weight_bytes - sum(stage.spare_bytes for stage in self.stages.values())
        give_back_memory()  # sessions that were only timed
        threads = thread_words(self.stages) if self.facts.device == "cpu" else ""
        self.facts = replace(self.facts, memory={**self.facts.memory, "weights": weights}, threads=threads)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """See the protocol; voices stay."""
        for stage in self.stages.values():
            stage.state.reset(rows)
        if self.language is not None:
            self.language.reset(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """See the protocol."""
        if self.language is not None:
            self.language.sampler.set_parameters(row, parameters)

    def snapshot(self, row: int) -> dict[str, Any]:
        """See the protocol."""
        tensors: dict[str, Any] = {} if self.language is None else self.language.snapshot(row)
        for stage in self.stages.values():
            tensors |= stage.state.snapshot(row)
        return tensors

    def check(self, tensors: Mapping[str, Any]) -> None:
        """See the protocol."""
        wanted: dict[str, Form] = {} if self.language is None else self.language.forms()
        for stage in self.stages.values():
            wanted |= stage.state.forms(tensors)
        check_tensors(tensors, wanted)

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """See the protocol."""
        for stage in self.stages.values():
            stage.state.restore(row, tensors)
        if self.language is not None:
            self.language.restore(row, tensors)

    def state_bytes(self) -> int:
        """See the protocol."""
        language = 0 if self.language is None else self.language.bytes
        return language + sum(stage.bytes for stage in self.stages.values())

    def close(self) -> None:
        """Let go of the sessions, their threads and their state."""
        for stage in self.stages.values():
            stage.close()
        self.stages.clear()
        self.language = None

    def _decode(self, rows: IntArray, codes: Array, *, is_fixed: bool) -> FloatArray:
        """Codes ``[e, codebooks]`` to PCM float32 ``[e, frame_samples]``."""
        return self.stages["decode"].run(rows, {"codes": codes}, is_fixed=is_fixed)["pcm"]


class OnnxFrames(OnnxRows):
    """Codec, duplex and stt models; see :class:`antiphon.backends.executor.FrameExecutor`."""

    def choose_threads(self) -> None:
        """Choose how stages that have a choice run, with as many rows as there are."""
        for stage in self.stages.values():
            if stage.has_choice:
                stage.warm_up(row_counts(stage.slots))

    def run(self, work: Work) -> Result:
        """See the protocol."""
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


class OnnxTexts(OnnxRows):
    """Tts models; see :class:`antiphon.backends.executor.TextExecutor`. ``voice`` has one row."""

    def __init__(
        self, spec: ModelSpec, stages: Mapping[str, Stage], facts: ExecutorFacts, voice: Stage | None = None
    ) -> None:
        """Take over the stages of loaded graphs; ``voice`` turns voices into state of "lm"."""
        super().__init__(spec, stages, facts)
        self._voice = voice
        assert spec.lm is not None
        self._first = np.array(spec.lm.delays[1 : 1 + spec.lm.dep_q]) + ScriptRules.of(spec).audio_delay

    def renew(self, rows: IntArray) -> None:
        """The graphs bound nothing that a mask hides, so rings are erased."""
        self.reset(rows)

    def advance(self, step: TextStep) -> TextResult:
        """See the protocol."""
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
        """Keys and values of cross-attention."""
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
        """See the protocol."""
        for name, array in tensors.items():
            self.stages["lm"].state.arrays[name][row] = array


class OnnxBackend(HostBackend):
    """The host of a codec, duplex or stt model; see :class:`antiphon.backends.base.ThreadChoosing`."""

    def __init__(self, spec: ModelSpec, executor: OnnxFrames, *, slots: int) -> None:
        """Give an executor ``slots`` fresh rows."""
        super().__init__(spec, executor, slots=slots)
        self._stages = executor

    def choose_threads(self) -> None:
        """See the protocol."""
        self._stages.choose_threads()


def row_counts(slots: int) -> tuple[int, ...]:
    """1, 2, 4, 8, ... and the number of slots itself."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)


def thread_words(stages: Mapping[str, Stage]) -> str:
    """The threads of a step, how they wait for one another, and which stages run parts of it side by side."""
    count = max((stage.threads for stage in stages.values()), default=1)
    if count == 1:
        return "1 thread"
    spinning = [name for name, stage in stages.items() if stage.is_spinning]
    waiting = "spinning" if len(spinning) == len(stages) else f"spinning in {', '.join(spinning)}"
    apart = [
        name if stage.apart_from == 1 else f"{name} from {stage.apart_from} rows on"
        for name, stage in stages.items()
        if stage.apart_from is not None
    ]
    parts = f"in parts: {', '.join(apart)}" if apart else "no stage in parts"
    return f"{count} threads, {waiting if spinning else 'sleeping'}; {parts}"
