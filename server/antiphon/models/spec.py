"""The specification of a model, without its weights: shapes, rates, delays, and the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self


class PipelineKind(StrEnum):
    """The kinds of models, each with the inputs and outputs of a row in each frame.

    ``takes_audio``: the input is PCM, not text; ``gives_audio``: the output has PCM. ``is_live``: late audio
    is useless, so full queues drop their oldest entry, in both directions. Other kinds drop no audio: a full
    input queue rejects audio (the caller stops reading its socket), and a full output queue excludes the
    session from the tick. ``has_deadlines``: a frame must be answered before the next one is due.
    ``has_heads``: the output has pause probabilities.
    """

    takes_audio: bool
    gives_audio: bool
    is_live: bool
    has_deadlines: bool
    has_heads: bool

    CODEC = "codec", True, True, True, True, False  # an echo through Mimi
    DUPLEX = "duplex", True, True, True, True, False  # the output has text tokens, too
    STT = "stt", True, False, False, True, True  # the output has text tokens
    TTS = "tts", False, True, False, False, False

    def __new__(cls, name: str, *traits: bool) -> Self:
        """A kind, by its row of the table."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.takes_audio, kind.gives_audio, kind.is_live, kind.has_deadlines, kind.has_heads = traits
        return kind

    @property
    def codec_passes(self) -> int:
        """Number of Mimi's directions (encode, decode) that a row runs."""
        return self.takes_audio + self.gives_audio


LIVE_KINDS: Final = tuple(kind for kind in reversed(PipelineKind) if kind.is_live)
"""The kinds that hold a conversation; duplex language models come first."""


@dataclass(frozen=True, slots=True)
class MimiSpec:
    """Shape of a Mimi codec.

    ``codebooks`` is the number of its RVQ levels in use; ``config`` is the whole Mimi configuration in
    upstream's own layout (``seanet``, ``quantizer``, ``transformer``).
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

    Stream 0 is text, streams ``1 .. dep_q`` are the model's own voice, the remaining ``n_q - dep_q`` are its
    input. ``delays`` has ``n_q + 1`` entries, in frames. ``config`` has the published LM arguments, corrected
    if the weights differ from them; backends build the model from it.
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
        """Number of frames between the sampling of a token and its audio: the largest delay."""
        return max(self.delays)

    @property
    def depformer_steps(self) -> int:
        """Depformer steps in the weights: ``dep_q``, or more (PersonaPlex: 16, of which 8 are used)."""
        return int(self.config.get("dep_q", self.dep_q))

    @property
    def text_end_padding_id(self) -> int:
        """The token that marks the last padding step before a word."""
        return int(self.config.get("existing_text_end_padding_id", 0))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The specification of a model for the engine and its callers. ``lm`` is None for a plain codec."""

    name: str
    kind: PipelineKind
    family: str
    mimi: MimiSpec
    lm: LMSpec | None = None
    parameters: int = 0
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sample_rate(self) -> int:
        """Samples of audio a second."""
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
    def conditioners(self) -> Mapping[str, Any]:
        """The language model's published conditions, by name."""
        return {} if self.lm is None else self.lm.config.get("conditioners") or {}

    @property
    def heads(self) -> int:
        """Number of pause probabilities of each frame."""
        return self.lm.extra_heads if self.kind.has_heads and self.lm is not None else 0

    @property
    def delay_frames(self) -> int:
        """Number of input frames at the start of a session that by design have no reply."""
        return self.lm.max_delay if self.lm is not None and self.kind is PipelineKind.DUPLEX else 0
