"""Evaluates a model: its free replies, its logits for forced replies, and its answers to questions.

A folder of spoken questions has ``*.npz`` shards. Each has ``codes`` int16 ``[K, frames]``, the codes of all
questions in order; ``ends``, the end of each; ``sizes``, the number of questions in each scene; ``strips``
``[scenes, K, frames]``, the codes of the noise of each scene; and ``told``, JSON: ``[start, end, question,
answer]`` for each question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import Backend, FloatArray
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.models.tokenizer import Tokenizer

Codes: TypeAlias = NDArray[np.int64]
T = TypeVar("T")

KINDS: Final = (PipelineKind.CODEC, PipelineKind.DUPLEX, PipelineKind.STT, PipelineKind.TTS)
BACKENDS: Final = ("torch", "onnx", "mlx")


@dataclass(frozen=True, slots=True)
class Logits:
    """The float32 logits of a model, by the frame that they predict.

    ``text [n, F, text_card]``, ``voice [n, F, dep_q, card]``, and ``pauses [n, F, heads]``, probabilities.
    """

    text: FloatArray
    voice: FloatArray
    pauses: FloatArray

    def streams(self) -> Iterator[tuple[str, FloatArray]]:
        """The logits of each stream, ``[n, F, V]``, by its name in a report."""
        yield "text", self.text
        for index in range(self.voice.shape[2]):
            yield stream_name(1 + index), self.voice[:, :, index]


def known(part: T | None) -> T:
    """Return ``part``, which this model must have; raise AssertionError if it is None."""
    assert part is not None
    return part


def stream_name(stream: int) -> str:
    """The name of an output stream: "text" for 0, "semantic" for 1, then "acoustic 2" and so on."""
    return ("text", "semantic")[stream] if stream < 2 else f"acoustic {stream}"


class EvalModel(Protocol):
    """A loaded model of up to ``backend.info.slots`` rows. Every call begins with fresh rows."""

    @property
    def backend(self) -> Backend:
        """The backend that runs the model."""

    def encode(self, pcm: FloatArray) -> Codes:
        """Map PCM ``[n, T * frame_samples]`` to codes ``[n, T, codebooks]``."""

    def decode(self, codes: Codes) -> FloatArray:
        """Map codes ``[n, T, K]`` to PCM ``[n, T * frame_samples]``."""

    def answer(self, input_codes: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """The sampled reply to input codes ``[n, T, n_q - dep_q]``: ``[n, T - max_delay, 1 + dep_q]``, text
        first.
        """

    def forced_logits(self, input_codes: Codes, forced_tokens: Codes) -> Logits:
        """The model's logits (F frames) for the input ``[n, T, n_q - dep_q]`` if its output is forced to be
        ``forced_tokens`` ``[n, F, 1 + dep_q]``.
        """


class StepCollector:
    """Collects logits step by step, and orders them by frame: each stream lags by its delay."""

    def __init__(self, spec: LMSpec) -> None:
        """Start without a step."""
        self._spec = spec
        self._steps: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def forced(self, forced_tokens: Codes, step: int) -> Codes:
        """The forced tokens ``[n, 1 + dep_q]`` of a step, delayed by this model's delays."""
        rows, frames, streams = forced_tokens.shape
        tokens = np.zeros((rows, streams), np.int64)
        for stream in range(streams):
            frame = step - self._spec.delays[stream]
            if 0 <= frame < frames:
                tokens[:, stream] = forced_tokens[:, frame, stream]
        return tokens

    def add(self, text: FloatArray, voice: FloatArray, pauses: FloatArray) -> None:
        """Add a step's logits ``[n, text_card]`` and ``[n, dep_q, card]``, and its pauses ``[n, heads]``."""
        self._steps.append((text, voice, pauses))

    def logits(self) -> Logits:
        """The logits by frame; the last frames, which are incomplete in some stream, are dropped."""
        text, voice, pauses = (np.stack(parts, axis=1) for parts in zip(*self._steps, strict=True))
        frames = text.shape[1] - self._spec.max_delay
        begins = self._spec.delays[: 1 + self._spec.dep_q]
        aligned = [voice[:, d : d + frames, k] for k, d in enumerate(begins[1:])]
        return Logits(
            text[:, begins[0] : begins[0] + frames],
            np.stack(aligned, axis=2) if aligned else voice[:, :frames],
            pauses[:, :frames],
        )


def why_not(spec: ModelSpec, backend: str) -> str | None:
    """The reason why a model on a backend cannot be judged, or None if it can be."""
    if spec.kind not in KINDS:
        return f"the gate judges {', '.join(KINDS)} models, {spec.name} is {spec.kind}"
    if spec.kind is PipelineKind.TTS and (backend != "torch" or spec.lm is None):
        return f"the gate judges tts models with a word-by-word script, on torch, not on {backend}"
    if backend not in BACKENDS:
        return f"the gate reads the logits of {', '.join(BACKENDS)}, not of {backend}"
    return None


def check_comparable(a: ModelSpec, b: ModelSpec) -> None:
    """Raise ConfigError if the logits of the two models cannot be compared."""
    if a.kind is not b.kind:
        raise ConfigError(f"{a.name} is {a.kind}, {b.name} is {b.kind}: they cannot be compared")
    for what in ("n_q", "dep_q", "card", "text_card"):
        one, other = (getattr(spec.lm, what, None) for spec in (a, b))
        if one != other:
            raise ConfigError(f"{a.name} has {what} {one}, {b.name} {other}: they cannot be compared")
    if a.mimi.frame_samples != b.mimi.frame_samples:
        raise ConfigError(
            f"frames of {a.name} have {a.mimi.frame_samples} samples, those of {b.name} "
            f"{b.mimi.frame_samples}: they cannot be compared"
        )


BEFORE_FRAMES: Final = 20
AFTER_FRAMES: Final = 60
"""Minimum number of frames of the scene's noise before and after a question."""

GREEDY: Final = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)


@dataclass(frozen=True, slots=True)
class SpokenQuestion:
    """A question and its noise, codes ``[frames, K]`` each, and the tokens of its answer."""

    codes: Codes
    strip: Codes
    answer: tuple[int, ...]


class Questions:
    """Spoken questions with one right answer each, asked at once and answered greedily."""

    def __init__(self, questions: Sequence[SpokenQuestion], lm: LMSpec) -> None:
        """Prepare these questions for models of this shape."""
        self._questions, self._lm = questions, lm

    def __len__(self) -> int:
        """The number of questions."""
        return len(self._questions)

    def part(self, index: int, parts: int) -> Questions:
        """One of ``parts`` parts of the questions, which can be asked separately."""
        return Questions(self._questions[index::parts], self._lm)

    def mark(self, judged: EvalModel) -> float:
        """The share of right answers, 0 to 1."""
        return sum(self.right(judged)) / len(self._questions)

    def right(self, judged: EvalModel) -> list[bool]:
        """Whether each answer is right, in order."""
        rows, right = judged.backend.info.slots, list[bool]()
        for first in range(0, len(self._questions), rows):
            asked = self._questions[first : first + rows]
            right += [said == one.answer for said, one in zip(self._ask(judged, asked), asked, strict=True)]
        return right

    def _ask(self, judged: EvalModel, asked: Sequence[SpokenQuestion]) -> list[tuple[int, ...]]:
        frames = BEFORE_FRAMES + max(len(one.codes) for one in asked) + AFTER_FRAMES
        input_codes = np.stack([np.take(one.strip, np.arange(frames), axis=0, mode="wrap") for one in asked])
        for row, one in enumerate(asked):
            input_codes[row, BEFORE_FRAMES : BEFORE_FRAMES + len(one.codes)] = one.codes
        said = judged.answer(input_codes, [GREEDY] * len(asked))[:, :, 0]
        silent = (self._lm.text_padding_id, self._lm.text_end_padding_id)
        return [tuple(int(token) for token in row if token not in silent) for row in said]


def read_questions(folder: Path, lm: LMSpec, tokenizer: Tokenizer, most: int) -> Questions:
    """At most ``most`` questions of a folder, chosen at random with a fixed seed.

    Raises:
        ConfigError: the folder has no questions.
        CheckpointFormatError: a malformed shard.
    """
    found = [one for path in sorted(folder.glob("*.npz")) for one in _read_shard(path, lm, tokenizer)]
    if not found:
        raise ConfigError(f"{folder} holds no questions (*.npz)")
    order = np.random.default_rng(0).permutation(len(found))[:most]
    return Questions([found[index] for index in sorted(order)], lm)


def _read_shard(path: Path, lm: LMSpec, tokenizer: Tokenizer) -> list[SpokenQuestion]:
    try:
        with np.load(path) as shard:
            codes, strips = shard["codes"].astype(np.int64), shard["strips"].astype(np.int64)
            parts = np.split(codes, shard["ends"][:-1], axis=1)
            scenes = np.repeat(np.arange(len(shard["sizes"])), shard["sizes"])
            answers = [answer for *_, answer in json.loads(str(shard["told"]))]
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointFormatError(f"{path} is no shard of questions: {error}") from error
    heard = lm.n_q - lm.dep_q
    if len(codes) != heard:
        raise CheckpointFormatError(f"{path} has {len(codes)} codebooks, the model takes {heard}")
    return [
        SpokenQuestion(part.T, strips[scene].T, tuple(tokenizer.encode(answer)))
        for part, scene, answer in zip(parts, scenes, answers, strict=True)
    ]
