"""The specification of a model without its weights: shapes, rates, delays, and its pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class PipelineKind(StrEnum):
    """What goes in and what comes out of one row, once a frame."""

    CODEC = "codec"  # PCM in, PCM out: an echo through Mimi
    DUPLEX = "duplex"  # PCM in, PCM and text tokens out
    STT = "stt"  # PCM in, text tokens and pause probabilities out
    TTS = "tts"  # text in, PCM out


@dataclass(frozen=True, slots=True)
class MimiSpec:
    """Shape of a Mimi codec.

    ``codebooks`` is how many of its RVQ levels are used; ``config`` is the whole Mimi configuration
    in upstream's own layout (``seanet``, ``quantizer``, ``transformer``).
    """

    sample_rate: int
    frame_rate: float
    codebooks: int
    cardinality: int
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frame_samples(self) -> int:
        """Samples in one frame: 1920 at 24 kHz and 12.5 Hz."""
        return round(self.sample_rate / self.frame_rate)


@dataclass(frozen=True, slots=True)
class LMSpec:
    """Shape of a Moshi-family language model.

    Stream 0 is text, streams ``1 .. dep_q`` are the model's own voice, the remaining
    ``n_q - dep_q`` are what it hears. ``delays`` has ``n_q + 1`` entries, in frames. ``config`` holds
    the published LM arguments, corrected where the weights say otherwise: a model is built from them.
    """

    dim: int
    num_layers: int
    num_heads: int
    context: int
    n_q: int
    dep_q: int
    card: int
    text_card: int
    delays: tuple[int, ...]
    text_padding_id: int = 3
    extra_heads: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def max_delay(self) -> int:
        """Frames between a token's sampling and its being heard: the largest delay."""
        return max(self.delays)

    @property
    def depformer_steps(self) -> int:
        """Depformer steps the weights hold: ``dep_q``, or more (PersonaPlex: 16, of which 8 are used)."""
        return int(self.config.get("dep_q", self.dep_q))

    @property
    def text_end_padding_id(self) -> int:
        """The token that marks the last padding step before a word."""
        return int(self.config.get("existing_text_end_padding_id", 0))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the engine and its callers see it. ``lm`` is None for a plain codec."""

    name: str
    kind: PipelineKind
    family: str
    mimi: MimiSpec
    lm: LMSpec | None = None
    parameters: int = 0
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return self.mimi.sample_rate

    @property
    def frame_samples(self) -> int:
        """Samples in one frame."""
        return self.mimi.frame_samples

    @property
    def frame_ms(self) -> float:
        """Milliseconds in one frame: 80 at 12.5 Hz."""
        return 1000.0 / self.mimi.frame_rate

    @property
    def delay_frames(self) -> int:
        """Input frames at the start of a session that have no reply, by design."""
        return self.lm.max_delay if self.lm is not None and self.kind is PipelineKind.DUPLEX else 0
