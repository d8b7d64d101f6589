"""The published models: licences, languages, and sizes computed from their shapes.

Sizes follow the architecture of Moshi (Kyutai, 2024): gated feed-forward layers of 4.125 times the width, and
a depformer with separate weights for each step or each set of steps. GB is 10^9 bytes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from typing import ClassVar, Final, TypeAlias

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.models.costs import TICK_ROW_BYTES, TickWork
from antiphon.models.spec import PipelineKind
from antiphon.models.strict import read_record

CARD: Final = 2048
"""Number of entries in a codebook of Mimi."""

DEPFORMER_DIM: Final = 1024
LAYER_WEIGHTS: Final = 12.25
"""Weights of one layer, in squares of its width: 4 for attention, 8.25 for the feed-forward part."""

MIMI_PARAMETERS: Final = 96_100_000
MIMI_BYTES: Final = 4 * MIMI_PARAMETERS
"""Bytes of the codec, which remains in float32."""

MIMI_STATE_BYTES: Final = 8_200_000
"""Codec state of one session and direction: keys and values of a transformer, in float32."""

INT8_SCALES: Final = 1.002
"""Bytes of an INT8 weight, with its share of the scale of its row."""

HEAD_DIM: Final = 128
"""Head width of the large transformer: one scale of 4 bytes for this number of INT8 keys, or values."""

PRECISIONS: Final = ("bf16", "int8")

CHUNK_TOKENS: Final = 50
CHUNK_FRAMES: Final = 234
VOICE_FRAMES: Final = 126
CODEC_STEPS: Final = 16
"""Constants of Pocket-TTS: the length of a chunk and its limit, the length of a voice, and the codec's steps
per frame.
"""

TRANSLATION: Final = "translation"
"""Speech translation."""


@dataclass(frozen=True, slots=True)
class DepformerShape:
    """The shape of a depformer, the small transformer that generates the audio tokens of a frame.

    ``rank`` is the rank of its embeddings; 0 means full rank.
    """

    layers: int
    hidden: int
    sets: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class SpeechFamily:
    """One published checkpoint of the Moshi family."""

    precisions: ClassVar = PRECISIONS
    backend: ClassVar = "torch"
    codec: ClassVar = "Mimi, float32"
    codec_bytes: ClassVar = MIMI_BYTES

    name: str
    repository: str
    modality: str
    languages: tuple[str, ...]
    licence: str
    is_commercial: bool
    dim: int
    layers: int
    context: int
    n_q: int
    text_card: int
    dep_q: int = 0
    cross_context: int = 0
    is_gated: bool = False
    depformer: DepformerShape | None = None

    @property
    def kind(self) -> PipelineKind:
        """The pipeline that serves this checkpoint: a translation model runs as a duplex model."""
        return PipelineKind.DUPLEX if self.modality == TRANSLATION else PipelineKind(self.modality)

    def model(self, _language: str | None = None) -> str:
        """The value of ``antiphon serve --model`` for this checkpoint."""
        return f"hf://{self.repository}"

    def languages_of_model(self, _language: str | None = None) -> tuple[str, ...]:
        """The languages of the model that :meth:`model` names: all languages of the checkpoint."""
        return self.languages

    @property
    def temporal_parameters(self) -> int:
        """Number of parameters of the large transformer, with its attention to a voice, if any."""
        weights = LAYER_WEIGHTS + (4 if self.cross_context else 0)
        return round(weights * self.dim**2 * self.layers)

    @property
    def depformer_parameters(self) -> int:
        """Number of parameters of the small transformer, including embeddings and output heads."""
        if self.depformer is None:
            return 0
        dep, wide = self.depformer, DEPFORMER_DIM
        layers = (4 * wide**2 + 3 * wide * dep.hidden) * dep.layers * dep.sets
        inputs = self.dim * wide * dep.sets
        heads = self.dep_q * wide * CARD
        embeddings = _embedding(self.text_card + 1, dep) + (self.dep_q - 1) * _embedding(CARD + 1, dep)
        return layers + inputs + heads + embeddings

    @property
    def embedding_parameters(self) -> int:
        """Number of parameters of the large transformer's embeddings: text in and out, codebooks in."""
        return (2 * self.text_card + 1 + self.n_q * (CARD + 1)) * self.dim

    @property
    def parameters(self) -> int:
        """Number of parameters of the whole language model."""
        return self.temporal_parameters + self.depformer_parameters + self.embedding_parameters

    def weight_bytes(self, precision: str) -> int:
        """Bytes of the language model's weights. INT8 is for the transformers; embeddings stay in bf16."""
        if precision == "bf16":
            return 2 * self.parameters
        inner = self.temporal_parameters + self.depformer_parameters
        return round(INT8_SCALES * inner) + 2 * self.embedding_parameters

    def kv_bytes(self, precision: str) -> int:
        """Bytes of one session's keys and values in whole pages, including the voice's keys and values, which
        stay in bf16.
        """
        per_position, pages = 2 * self.dim * self.layers, -(-self.context // PAGE_SLOTS)
        kept = pages * PAGE_SLOTS * _kept_bytes(precision)
        return round(per_position * (kept + self.cross_context * 2))

    def row_bytes(self, precision: str) -> int:
        """Bytes of one session: keys and values, the codec's state, and the session's part of a tick's
        memory.
        """
        return self.kv_bytes(precision) + self.kind.codec_passes * MIMI_STATE_BYTES + TICK_ROW_BYTES

    def work(self, precision: str) -> TickWork:
        """The work of a tick on a GPU. A tick reads one row of each embedding, and all sets of weights that
        its steps use.
        """
        is_int8 = precision == "int8"
        size, dep = INT8_SCALES if is_int8 else 2.0, self.depformer
        inner, plain = float(self.temporal_parameters), float(self.text_card * self.dim)
        if dep is not None:
            inner += (4 * DEPFORMER_DIM**2 + 3 * DEPFORMER_DIM * dep.hidden) * dep.layers * self.dep_q
            plain += self.dim * DEPFORMER_DIM * dep.sets + self.dep_q * DEPFORMER_DIM * CARD
        return TickWork(
            weights_bytes=round(size * inner + 2 * plain) + self.codec_bytes,
            frame_bytes=round(2 * self.dim * self.layers * _kept_bytes(precision)),
            context=self.context,
            row_bytes=4 * self.dim * self.layers * self.cross_context,
            passes=self.kind.codec_passes,
            layers=self.layers,
            cross_layers=self.layers if self.cross_context else 0,
            steps=0 if dep is None else self.dep_q,
            step_layers=0 if dep is None else dep.layers,
            weight_bits=8 if is_int8 else 16,
        )


@dataclass(frozen=True, slots=True)
class TextFamily:
    """A text model for a voice agent; the active parameters are the parameters used for one token."""

    name: str
    repository: str
    licence: str
    is_commercial: bool
    parameters_b: float
    active_b: float
    kv_bytes_per_token: int

    def weight_bytes(self, precision: str) -> int:
        """Bytes of the weights in bf16 or int4."""
        return round(1e9 * self.parameters_b * {"bf16": 2.0, "int4": 4.5 / 8}[precision])


@dataclass(frozen=True, slots=True)
class PocketFamily:
    """Pocket-TTS models of one shape, in float32 on a CPU: ``configs`` are the models' names in the package
    ``pocket-tts``.

    They are sorted by language. ``parameters`` is the published number. It excludes the encoder, which makes
    voices from recordings and is loaded too.
    """

    precisions: ClassVar = ("float32",)
    backend: ClassVar = "pocket"
    codec: ClassVar = "its encoder, which makes voices of recordings"
    modality: ClassVar = "tts"
    kind: ClassVar = PipelineKind.TTS
    is_gated: ClassVar = False

    name: str
    licence: str
    is_commercial: bool
    parameters: int
    encoder_parameters: int
    layers: int
    kv_width: int
    codec_layers: int
    codec_dim: int
    configs: Mapping[str, tuple[str, ...]]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of all its models."""
        return tuple(self.configs)

    @property
    def codec_bytes(self) -> int:
        """Bytes of the encoder's weights."""
        return 4 * self.encoder_parameters

    def model(self, language: str | None = None) -> str:
        """The value of ``antiphon serve --model``: the first model of ``language`` (default: the first)."""
        return f"pocket://{self.configs[language or self.languages[0]][0]}"

    def languages_of_model(self, language: str | None = None) -> tuple[str, ...]:
        """The language of the model that :meth:`model` names."""
        return (language or self.languages[0],)

    def weight_bytes(self, _precision: str) -> int:
        """Bytes of the model's weights without the encoder."""
        return 4 * self.parameters

    def kv_bytes(self, _precision: str) -> int:
        """Bytes of one session's keys and values, for a chunk of 50 tokens (234 frames) and a voice of ten
        seconds.
        """
        return 2 * 4 * self.layers * self.kv_width * (CHUNK_FRAMES + CHUNK_TOKENS + VOICE_FRAMES)

    def row_bytes(self, precision: str) -> int:
        """Bytes of one session: keys and values, and the decoder's state of the chunk."""
        decoder = 2 * 4 * self.codec_layers * self.codec_dim * CODEC_STEPS * CHUNK_FRAMES
        return self.kv_bytes(precision) + decoder


AudioFamily: TypeAlias = SpeechFamily | PocketFamily
"""Families of speech models."""


@dataclass(frozen=True, slots=True)
class ModelFamilies:
    """All known families, in the order of ``families.toml``.

    ``read_on`` is the date on which the owners' model cards were read.

    """

    read_on: date
    speech: tuple[SpeechFamily, ...]
    text: tuple[TextFamily, ...]
    pocket: tuple[PocketFamily, ...]

    @property
    def audio(self) -> tuple[AudioFamily, ...]:
        """All families of speech models."""
        return (*self.speech, *self.pocket)


def load_families() -> ModelFamilies:
    """The content of the package's ``families.toml``."""
    text = resources.files("antiphon_quantize.advice").joinpath("families.toml").read_text(encoding="utf-8")
    return read_record(ModelFamilies, tomllib.loads(text), "families.toml")


def _kept_bytes(precision: str) -> float:
    """Bytes of a key or a value, with its share of a scale."""
    return 1 + 4 / HEAD_DIM if precision == "int8" else 2.0


def _embedding(rows: int, depformer: DepformerShape) -> int:
    if depformer.rank:
        return rows * depformer.rank + depformer.rank * DEPFORMER_DIM
    return rows * DEPFORMER_DIM
