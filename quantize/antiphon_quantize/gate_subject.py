"""A model under evaluation: it answers freely, and gives its logits under forced answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import Backend, FloatArray
from antiphon.errors import ConfigError
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind

Codes: TypeAlias = NDArray[np.int64]

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
        """The logits of each stream, ``[n, F, V]``, by what it is called in a report."""
        yield "text", self.text
        for index in range(self.voice.shape[2]):
            yield stream_name(1 + index), self.voice[:, :, index]


def stream_name(stream: int) -> str:
    """ "text", "semantic", "acoustic 2", ... for the streams of a model's own voice, text being 0."""
    return ("text", "semantic")[stream] if stream < 2 else f"acoustic {stream}"


class EvalModel(Protocol):
    """A loaded model of up to ``backend.info.slots`` rows. Every call begins with fresh rows."""

    @property
    def backend(self) -> Backend:
        """What serves it."""
        ...

    def encode(self, pcm: FloatArray) -> Codes:
        """PCM ``[n, T * frame_samples]`` to codes ``[n, T, codebooks]``."""
        ...

    def decode(self, codes: Codes) -> FloatArray:
        """Codes ``[n, T, K]`` to PCM ``[n, T * frame_samples]``."""
        ...

    def answer(self, heard: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """Hear ``[n, T, n_q - dep_q]``; what is said, ``[n, T - max_delay, 1 + dep_q]``, text first."""
        ...

    def think(self, heard: Codes, said: Codes) -> Logits:
        """Hear the same and be made to say ``said``: what would have been said in its place (F frames)."""
        ...


class StepCollector:
    """Logits collected step by step and put in the order of frames: a stream is its delay late."""

    def __init__(self, spec: LMSpec) -> None:
        """Begin with no step."""
        self._spec = spec
        self._steps: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def forced(self, said: Codes, step: int) -> Codes:
        """The tokens ``[n, 1 + dep_q]`` to be said in a step, by this model's own delays."""
        rows, frames, streams = said.shape
        tokens = np.zeros((rows, streams), np.int64)
        for stream in range(streams):
            frame = step - self._spec.delays[stream]
            if 0 <= frame < frames:
                tokens[:, stream] = said[:, frame, stream]
        return tokens

    def add(self, text: FloatArray, voice: FloatArray, pauses: FloatArray) -> None:
        """A step's ``[n, text_card]``, ``[n, dep_q, card]`` and ``[n, heads]``."""
        self._steps.append((text, voice, pauses))

    def thoughts(self) -> Logits:
        """By frame; the last frames, of which not every stream has been thought of, are left out."""
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
    """Why a model on a backend cannot be judged, or None if it can."""
    if spec.kind not in KINDS:
        return f"the gate judges {', '.join(KINDS)} models, {spec.name} is {spec.kind}"
    if spec.kind is PipelineKind.TTS and (backend != "torch" or spec.lm is None):
        return f"the gate judges tts models with a word-by-word script, on torch, not on {backend}"
    if backend not in BACKENDS:
        return f"the gate reads the logits of {', '.join(BACKENDS)}, not of {backend}"
    return None


def check_comparable(a: ModelSpec, b: ModelSpec) -> None:
    """Raise ConfigError unless logits of one can be held against those of the other."""
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
