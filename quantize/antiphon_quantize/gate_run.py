"""Runs the measurements: a baseline answers freely, then a candidate gives logits for the same tokens."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from antiphon.backends.base import Backend, FloatArray, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.errors import MissingExtraError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import TextEntry
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon_quantize.gate_measures import (
    SPEED,
    Measure,
    measure_arguments,
    measure_logits,
    measure_weights,
    not_measured,
    same_codec,
)
from antiphon_quantize.gate_sound import CodecOutput, Sound, built_in_clips, load_sound, measure_codec
from antiphon_quantize.gate_subject import (
    Codes,
    EvalModel,
    Logits,
    Questions,
    check_comparable,
    read_questions,
    why_not,
)

WARM_UP_TICKS = 5


WORD = TextEntry((5,), "word")


class Ticker:
    """Steps one row of a backend through a recording, repeatedly; a tts row repeats a word."""

    def __init__(self, backend: Backend, pcm: FloatArray, clock: Callable[[], float]) -> None:
        """``pcm`` is ``[N]``, whole frames; ``clock`` returns seconds."""
        self._backend, self._clock, self._ticks = backend, clock, 0
        self._is_told = backend.info.spec.kind is PipelineKind.TTS
        self._frames = pcm.reshape(-1, backend.info.spec.frame_samples)

    def tick_ms(self) -> float:
        """Run one step, and return its duration in milliseconds."""
        frame = self._frames[self._ticks % len(self._frames)][None]
        row, is_first = np.zeros(1, np.int32), np.array([self._ticks == 0])
        inputs = StepInputs(row, is_first, frame)
        if self._is_told:
            inputs = StepInputs(row, is_first, None, ((WORD,),))
        start_s = self._clock()
        self._backend.step(inputs)
        self._ticks += 1
        return 1000 * (self._clock() - start_s)


def tick_times_ms(tickers: Sequence[Ticker], turns: int) -> list[float]:
    """The median time of a step of each ticker, measured alternately after a few uncounted steps."""
    times: list[list[float]] = [[] for _ in tickers]
    for turn in range(WARM_UP_TICKS + turns):
        for ticker, own in zip(tickers, times, strict=True):
            took_ms = ticker.tick_ms()
            if turn >= WARM_UP_TICKS:
                own.append(took_ms)
    return [statistics.median(own) for own in times]


def measure_size(name: str, a: float, b: float, detail: str) -> Measure:
    """Measure the ratio of the candidate's size to the baseline's size; smaller is better."""
    return Measure(name, b / a if a else math.inf, a, b, detail)


def memory_bytes(backend: Backend) -> int:
    """Bytes of a loaded model's weights and of the state of one row."""
    memory = backend.info.memory
    return memory.get("weights", 0) + memory.get("state_per_row", 0)


def disk_bytes(checkpoint: Checkpoint, backend: str) -> int:
    """Bytes of the files that a backend reads."""
    form = checkpoint.backends.get(backend)
    roles = ("lm", "mimi") if form is None else form.files
    return sum(checkpoint.files[role].stat().st_size for role in roles if role in checkpoint.files)


def open_eval_model(
    checkpoint: Checkpoint,
    backend: str,
    *,
    rows: int,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> EvalModel:
    """Load a checkpoint into a backend for evaluation.

    Raises:
        UnsupportedError: the pipeline or the backend has no readable logits. MissingExtraError: the package
        that opens graphs is not installed. BackendError, CheckpointError, ConfigError: as
        :func:`antiphon.backends.registry.make_backend`.
    """
    if (reason := why_not(checkpoint.spec, backend)) is not None:
        raise UnsupportedError(reason)
    if backend == "onnx" and find_spec("onnx") is None:
        raise MissingExtraError("antiphon gate", extra="quantize", module="onnx")
    made = make_backend(backend, checkpoint, slots=rows, device=device, options=options)
    if checkpoint.spec.kind is PipelineKind.TTS:
        from antiphon_quantize.gate_torch import TtsEvalModel

        return TtsEvalModel(checkpoint, made)
    if backend == "torch":
        from antiphon_quantize.gate_torch import TorchEvalModel

        return TorchEvalModel(made)
    if backend == "mlx":
        from antiphon_quantize.gate_mlx import MlxEvalModel

        return MlxEvalModel(made)
    from antiphon_quantize.gate_onnx import OnnxEvalModel

    return OnnxEvalModel(checkpoint, made)


Note = Callable[[str], None]
"""A callback for progress notes."""

TOGETHER_BYTES: Final = 4_000_000_000
"""Bytes on disk up to which two models are loaded at once and timed alternately; larger models are loaded one
after the other.
"""
FLOAT32_BYTES: Final = 6_000_000_000
"""Bytes on disk above which a language model is judged in bfloat16, unless options override it."""

NOTHING_TO_ASK = "the baseline has no language model, or no tokenizer for its answers"


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint, and the backend for its evaluation."""

    checkpoint: Checkpoint
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the model and of the backend, as text."""
        return f"{self.checkpoint.spec.name} on {self.backend}"

    @property
    def bytes(self) -> int:
        """Bytes of the side's files on disk."""
        return disk_bytes(self.checkpoint, self.backend)


@dataclass(frozen=True, slots=True)
class Material:
    """The material of a comparison: recordings, of each at most ``frames`` frames; questions; timed steps.

    The model has ``rows`` rows, for questions in parallel; or one row for each recording if there are more
    recordings.
    """

    recordings: Sequence[Path] = ()
    frames: int = 100
    questions: Path | None = None
    most_questions: int = 200
    rows: int = 1
    turns: int = 40
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The results of one side of a comparison."""

    heard: CodecOutput | None
    said: Codes | None
    logits: Logits | None
    accuracy: float | None
    memory_bytes: int
    tick_ms: float | None


def in_one_dtype(*sides: Side) -> tuple[Side, ...]:
    """Return both sides in bfloat16 on torch if either side needs it, because of its size or its options.

    Otherwise a difference in dtype would count as the recipe's rounding.
    """

    def is_narrow(side: Side) -> bool:
        lm = side.checkpoint.files.get("lm")
        is_large = lm is not None and lm.stat().st_size > FLOAT32_BYTES
        own = "bfloat16" if is_large else "float32"
        return bool(side.backend == "torch" and side.options.get("dtype", own) == "bfloat16")

    if not any(map(is_narrow, sides)):
        return sides
    return tuple(
        replace(side, options={"dtype": "bfloat16", **side.options}) if side.backend == "torch" else side
        for side in sides
    )


class Observer:
    """Runs both sides on the same material."""

    def __init__(self, baseline: Side, candidate: Side, material: Material, note: Note) -> None:
        """Read the recordings and questions.

        Raises:
            AntiphonError: the two models cannot be compared, or recordings or questions cannot be read.
        """
        spec = baseline.checkpoint.spec
        for side in (baseline, candidate):
            if (reason := why_not(side.checkpoint.spec, side.backend)) is not None:
                raise UnsupportedError(reason)
        check_comparable(spec, candidate.checkpoint.spec)
        baseline, candidate = in_one_dtype(baseline, candidate)
        self._sides, self._material, self._note = (baseline, candidate), material, note
        paths = list(material.recordings) or built_in_clips()
        self._sound: Sound = load_sound(paths, spec.mimi, max(material.frames, spec.delay_frames + 2))
        self._same_codec = baseline.backend == candidate.backend and same_codec(
            baseline.checkpoint, candidate.checkpoint, baseline.backend
        )
        self._questions: Questions | None = None
        tokenizer = baseline.checkpoint.text_tokenizer()
        if material.questions is not None and spec.lm is not None and tokenizer is not None:
            self._questions = read_questions(material.questions, spec.lm, tokenizer, material.most_questions)

    @property
    def description(self) -> str:
        """A description of the material: the number of recordings and questions, and the seconds of sound."""
        if self._sides[0].checkpoint.spec.kind is PipelineKind.TTS:
            rows, samples = self._sound.pcm.shape
            return f"{rows} texts, {rows * samples / self._sound.rate:.0f} s"
        speech_s = self._sound.frames.sum() * self._sound.frame_samples / self._sound.rate
        asked = "" if self._questions is None else f", {len(self._questions)} questions"
        return f"{len(self._sound.pcm)} recordings, {speech_s:.0f} s{asked}"

    def measures(self) -> Iterator[Measure]:
        """Run both sides; yield all measures."""
        a, b = (side.checkpoint for side in self._sides)
        yield from measure_arguments(a, b)
        yield from self._weights(a, b)
        together = sum(side.bytes for side in self._sides) <= TOGETHER_BYTES
        with ExitStack() as stack:
            one = self._open(self._sides[0])
            stack.callback(lambda: one.backend.close())
            before = self._observe(one, None, times=not together)
            if not together:
                stack.close()
            other = self._open(self._sides[1])
            stack.callback(lambda: other.backend.close())
            after = self._observe(other, before, times=not together)
            if together:
                self._note("speed, alternately")
                times = tick_times_ms([self._ticker(one), self._ticker(other)], self._material.turns)
                before, after = (replace(o, tick_ms=ms) for o, ms in zip((before, after), times, strict=True))
        yield from self._compare(a.spec, before, after, "alternately" if together else "one after the other")

    def _weights(self, a: Checkpoint, b: Checkpoint) -> Iterator[Measure]:
        graphs = [side.name for side in self._sides if side.backend != "torch"]
        if a.spec.lm is None:
            return
        if graphs:
            why = f"read from torch's files only, not from the graphs of {' and '.join(graphs)}"
            yield from (not_measured(f"weights {what}", why) for what in ("nonfinite", "change"))
        else:
            self._note("weights")
            yield from measure_weights(a.file("lm"), b.file("lm"))

    def _open(self, side: Side) -> EvalModel:
        asked = 0 if self._questions is None else min(len(self._questions), self._material.rows)
        self._note(f"loading {side.name}")
        return open_eval_model(
            side.checkpoint,
            side.backend,
            rows=max(len(self._sound.pcm), asked),
            device=self._material.device,
            options=side.options,
        )

    def _ticker(self, judged: EvalModel) -> Ticker:
        return Ticker(judged.backend, self._sound.joined(self._sound.pcm), time.perf_counter)

    def _observe(self, judged: EvalModel, before: Observed | None, *, times: bool) -> Observed:
        """Run the codec and the logits on the material; ``before`` is the result of the baseline, if there is
        one."""
        spec, name = judged.backend.info.spec, judged.backend.info.spec.name
        heard = before.heard if before is not None else None
        if spec.kind is PipelineKind.TTS:
            rows, frames = len(self._sound.pcm), self._sound.pcm.shape[1] // self._sound.frame_samples
            heard = CodecOutput(np.zeros((rows, frames, 0), np.int64), None, None)
        elif before is None or not self._same_codec:
            self._note(f"{name}: the codec")
            heard = self._hear(judged, spec, None if before is None else before.heard)
        said, logits, accuracy = None, None, None
        if spec.lm is not None:
            self._note(f"{name}: the language model")
            given = heard if before is None else before.heard
            assert given is not None
            codes = given.codes[:, :, : spec.lm.n_q - spec.lm.dep_q]
            own = SamplingParameters.from_generation(spec.generation)
            seeded = [replace(own, text_seed=row, audio_seed=row) for row in range(len(self._sound.pcm))]
            said = before.said if before is not None else judged.answer(codes, seeded)
            assert said is not None
            logits = judged.forced_logits(codes, said)
        if self._questions is not None:
            self._note(f"{name}: {len(self._questions)} questions")
            accuracy = self._questions.mark(judged)
        tick_ms = tick_times_ms([self._ticker(judged)], self._material.turns)[0] if times else None
        return Observed(heard, said, logits, accuracy, memory_bytes(judged.backend), tick_ms)

    def _hear(self, judged: EvalModel, spec: ModelSpec, before: CodecOutput | None) -> CodecOutput:
        codes = judged.encode(self._sound.pcm)
        if spec.kind is PipelineKind.STT or self._same_codec:
            return CodecOutput(codes, None, None)
        levels = codes.shape[2] if spec.lm is None else spec.lm.dep_q
        spoken = judged.decode(codes[:, :, :levels])
        repeated = spoken if before is None else judged.decode(before.codes[:, :, :levels])
        return CodecOutput(codes, spoken, repeated)

    def _compare(self, spec: ModelSpec, a: Observed, b: Observed, how: str) -> Iterator[Measure]:
        if spec.lm is not None and a.logits and b.logits and a.said is not None:
            yield from measure_logits(a.logits, b.logits, a.said, spec.lm)
        if spec.kind is PipelineKind.TTS and not self._same_codec:
            yield not_measured("codec", "a text-to-speech model takes no recording")
        elif self._same_codec:
            yield not_measured("codec", "one codec for both, byte for byte, on one backend")
        elif a.heard is not None and b.heard is not None:
            yield from measure_codec(self._sound, a.heard, b.heard)
        if a.accuracy is None or b.accuracy is None:
            why = "no --questions given" if self._material.questions is None else NOTHING_TO_ASK
            yield not_measured("answers loss", why)
        else:
            yield Measure("answers loss", a.accuracy - b.accuracy, a.accuracy, b.accuracy)
        if a.tick_ms is not None and b.tick_ms is not None:
            yield measure_size(SPEED, a.tick_ms, b.tick_ms, f"ms a step of one row, {how}")
        held = "MB of weights and one row's state"
        yield measure_size("memory ratio", a.memory_bytes / 1e6, b.memory_bytes / 1e6, held)
        one, other = self._sides
        yield measure_size("size ratio", one.bytes / 1e6, other.bytes / 1e6, "MB on disk")
