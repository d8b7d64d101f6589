"""The shapes of networks, read from published configurations. Every framework builds its modules from these
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from antiphon.errors import UnsupportedError
from antiphon.models.spec import PipelineKind

_TEMPORAL: Final = {"causal": True, "norm_emb": False, "skip_self_attn": False}


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a streaming transformer.

    ``context`` is the window in positions, and the ring's capacity. ``frame_positions`` is the number of
    positions per frame (1 for the language model, 2 for Mimi). ``cross_positions`` is the length of the
    cross-attention source; 0 means no cross-attention. ``rope`` is "rope" (interleaved pairs), "rope_concat"
    (halves) or "none".
    """

    dim: int
    heads: int
    layers: int
    context: int
    feed_forward: int
    kv_repeat: int = 1
    frame_positions: int = 1
    gating: str = "none"
    norm: str = "layer_norm"
    rope: str = "rope"
    max_period: float = 10000.0
    layer_scale: bool = False
    cross_positions: int = 0

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values; if there are fewer than ``heads``, queries share them in groups
        (GQA).
        """
        return self.heads // self.kv_repeat

    @property
    def kv_dim(self) -> int:
        """Width of one position's keys over all heads."""
        return self.kv_heads * self.head_dim

    @classmethod
    def of_codec(cls, table: Mapping[str, Any], frame_positions: int) -> TransformerConfig:
        """The shape of Mimi's transformer, from its published table.

        Raises:
            UnsupportedError: its inner width is larger than its outer width.
        """
        dim, inputs, outputs = table["d_model"], table["input_dimension"], table["output_dimensions"]
        if dim != inputs or list(outputs) != [dim]:
            raise UnsupportedError(
                f"a Mimi transformer of width {dim} between {inputs} and {outputs}: "
                "all of them have to be equal"
            )
        return cls(
            dim,
            table["num_heads"],
            table["num_layers"],
            table["context"],
            table["dim_feedforward"],
            kv_repeat=table.get("kv_repeat", 1),
            frame_positions=frame_positions,
            gating=table.get("gating", "none"),
            norm=table["norm"],
            rope=table["positional_embedding"],
            max_period=table["max_period"],
            layer_scale=table.get("layer_scale") is not None,
        )

    @classmethod
    def of_language(cls, config: Mapping[str, Any], cross_positions: int = 0) -> TransformerConfig:
        """The shape of a language model's transformer, from its published arguments.

        Raises:
            UnsupportedError: an option that no published model uses, or voices without cross-attention.
        """
        for key, wanted in _TEMPORAL.items():
            if config.get(key, wanted) != wanted:
                raise UnsupportedError(f"{key} is {config[key]!r}; only {wanted!r} can be run")
        rope = config.get("positional_embedding", "sin")
        if rope not in ("rope", "rope_concat", "none"):
            raise UnsupportedError(f"positional_embedding is {rope!r}; it can be rope, rope_concat or none")
        if bool(config.get("cross_attention")) != bool(cross_positions):
            raise UnsupportedError(
                f"cross_attention is {config.get('cross_attention')!r}, "
                f"but there are {cross_positions} positions of voices"
            )
        return cls(
            config["dim"],
            config["num_heads"],
            config["num_layers"],
            config["context"],
            int(config.get("hidden_scale", 4) * config["dim"]),
            kv_repeat=config.get("kv_repeat", 1),
            gating=config.get("gating", "none"),
            norm=config.get("norm", "layer_norm"),
            rope=rope,
            max_period=config.get("max_period", 10000),
            layer_scale=config.get("layer_scale") is not None,
            cross_positions=cross_positions,
        )


@dataclass(frozen=True, slots=True)
class DepformerConfig:
    """Shape of a depth transformer.

    ``steps`` is the number of generated codebooks. ``schedule`` maps a step to its set of weights, and
    ``feed_forward`` has one width per set. ``hidden_dim`` is the width of the main transformer. ``demux``:
    each text token combines two.
    """

    steps: int
    schedule: tuple[int, ...]
    hidden_dim: int
    dim: int
    heads: int
    layers: int
    feed_forward: tuple[int, ...]
    card: int
    text_card: int
    multi_linear: bool
    kv_repeat: int = 1
    gating: str = "silu"
    norm: str = "rms_norm_f32"
    output_norm: str | None = None
    low_rank: int | None = None
    demux: bool = False
    bias: bool = False
    layer_scale: bool = False

    @property
    def sets(self) -> int:
        """Number of sets of weights; steps may share a set."""
        return max(self.schedule) + 1

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def kv_dim(self) -> int:
        """Width of one step's keys over all heads."""
        return self.head_dim * (self.heads // self.kv_repeat)

    @classmethod
    def of_language(cls, config: Mapping[str, Any], steps: int) -> DepformerConfig:
        """The shape of the first ``steps`` steps of a language model's depformer, from its published
        arguments.

        Raises:
            UnsupportedError: an option that no published model uses.
        """
        position = config.get("depformer_pos_emb", "sin")
        if position != "none":
            raise UnsupportedError(f"depformer_pos_emb is {position!r}; only 'none' is supported")
        gating = config.get("depformer_gating", config.get("gating", "none"))
        if gating == "none":
            raise UnsupportedError("depformer_gating is 'none'; a depformer without gating cannot be run")
        schedule, width = weight_sets(config, steps), config.get("depformer_dim_feedforward")
        if width is None:
            width = int(config.get("hidden_scale", 4) * config["depformer_dim"])
        sets = max(schedule) + 1
        return cls(
            steps,
            schedule,
            config["dim"],
            config["depformer_dim"],
            config["depformer_num_heads"],
            config["depformer_num_layers"],
            tuple(width)[:sets] if isinstance(width, list | tuple) else (width,) * sets,
            config["card"],
            config["text_card"],
            multi_linear=config.get("depformer_multi_linear", False),
            kv_repeat=config.get("depformer_kv_repeat", config.get("kv_repeat", 1)),
            gating=gating,
            norm=config.get("norm", "layer_norm"),
            output_norm=config.get("depformer_norm"),
            low_rank=config.get("depformer_low_rank_embeddings"),
            demux=_demuxes(config),
            bias=config.get("bias_proj", False),
            layer_scale=config.get("depformer_layer_scale", config.get("layer_scale")) is not None,
        )


def weight_sets(config: Mapping[str, Any], steps: int) -> tuple[int, ...]:
    """The number of the set of weights that each of ``steps`` depformer steps uses."""
    if not config.get("depformer_weights_per_step", False):
        return (0,) * steps
    return tuple(config.get("depformer_weights_per_step_schedule") or range(steps))[:steps]


def stored_sets(config: Mapping[str, Any]) -> int:
    """Number of sets of depformer weights in a file in PyTorch's layout."""
    return max(weight_sets(config, config["dep_q"]), default=0) + 1


def _demuxes(config: Mapping[str, Any]) -> bool:
    return bool(config.get("demux_second_text_stream", config.get("demux_second_stream", False)))


@dataclass(frozen=True, slots=True)
class LanguageConfig:
    """Shape of a Moshi-family language model that generates the first ``steps`` audio streams.

    ``streams`` is the number of audio streams that it receives, ``text_out`` the number of text logits. It
    has ``pause_heads`` extra heads, each ``pause_width`` wide. ``demux``: each text token combines two. If
    ``steps`` is 0, there is no depformer.
    """

    dim: int
    streams: int
    card: int
    text_card: int
    text_out: int
    steps: int
    transformer: TransformerConfig
    depformer: DepformerConfig | None
    bias: bool = False
    demux: bool = False
    pause_heads: int = 0
    pause_width: int = 6

    @classmethod
    def from_published(
        cls, config: Mapping[str, Any], steps: int, cross_positions: int = 0
    ) -> LanguageConfig:
        """Read published arguments.

        ``steps`` may be lower than ``dep_q``: PersonaPlex's weights contain steps that no reply uses.

        Raises:
            UnsupportedError: an option no published model uses.
        """
        return cls(
            config["dim"],
            config["n_q"],
            config["card"],
            config["text_card"],
            config.get("text_card_out") or config["text_card"],
            steps,
            TransformerConfig.of_language(config, cross_positions),
            DepformerConfig.of_language(config, steps) if steps else None,
            bias=config.get("bias_proj", False),
            demux=_demuxes(config),
            pause_heads=config.get("extra_heads_num_heads", 0),
            pause_width=config.get("extra_heads_dim", 6),
        )


def gated_hidden(dim: int, feed_forward: int) -> int:
    """Hidden width of a gated block: two thirds of the nominal width, or 21/8 of ``dim`` if the nominal width
    is 4 ``dim``.
    """
    return 21 * dim // 8 if feed_forward == 4 * dim else 2 * feed_forward // 3


_SEANET: Final = {
    "activation": "ELU",
    "norm": "none",
    "pad_mode": "constant",
    "causal": True,
    "true_skip": True,
}

UNUSED_STATE: Final = MappingProxyType({PipelineKind.STT: "decoder", PipelineKind.TTS: "encoder"})
"""Prefix of codec state that the rows of a pipeline do not use."""


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The shape of a causal convolution. A transposed one outputs ``stride`` positions per input position."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    bias: bool = True
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class ResidualShape:
    """The shape of a residual block: two convolutions, with an ELU before each, whose output is added to the
    input.
    """

    first: ConvShape
    second: ConvShape


SeanetLayer: TypeAlias = ConvShape | ResidualShape | None
"""A layer of the list; None is an ELU. The index of a layer in the list is the number in its weights' names.
"""


@dataclass(frozen=True, slots=True)
class SeanetConfig:
    """The part of a published ``seanet`` table that determines the network's shape. ``ratios`` is in decoder
    order."""

    channels: int
    dimension: int
    n_filters: int
    n_residual_layers: int
    ratios: tuple[int, ...]
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    dilation_base: int
    compress: int
    alpha: float

    @classmethod
    def from_published(cls, table: Mapping[str, Any]) -> SeanetConfig:
        """Read a published ``seanet`` table.

        Raises:
            UnsupportedError: an option no published Mimi uses.
        """
        for key, wanted in _SEANET.items():
            if table.get(key, wanted) != wanted:
                raise UnsupportedError(f"seanet option {key} is {table[key]!r}; only {wanted!r} can be run")
        keys = [name for name in cls.__dataclass_fields__ if name not in ("ratios", "alpha")]
        alpha = table.get("activation_params", {}).get("alpha", 1.0)
        return cls(ratios=tuple(table["ratios"]), alpha=alpha, **{key: table[key] for key in keys})

    def encoder(self) -> Iterator[SeanetLayer]:
        """The layers from PCM to latents."""
        width = self.n_filters
        yield ConvShape(self.channels, width, self.kernel_size)
        for ratio in reversed(self.ratios):
            yield from self._residuals(width)
            yield None
            yield ConvShape(width, 2 * width, 2 * ratio, ratio)
            width *= 2
        yield None
        yield ConvShape(width, self.dimension, self.last_kernel_size)

    def decoder(self) -> Iterator[SeanetLayer]:
        """The layers from latents to PCM."""
        width = self.n_filters * 2 ** len(self.ratios)
        yield ConvShape(self.dimension, width, self.kernel_size)
        for ratio in self.ratios:
            yield None
            yield ConvShape(width, width // 2, 2 * ratio, ratio, is_transposed=True)
            width //= 2
            yield from self._residuals(width)
        yield None
        yield ConvShape(width, self.channels, self.last_kernel_size)

    def _residuals(self, width: int) -> Iterator[ResidualShape]:
        hidden = width // self.compress
        for level in range(self.n_residual_layers):
            dilation = self.dilation_base**level
            first = ConvShape(width, hidden, self.residual_kernel_size, dilation=dilation)
            yield ResidualShape(first, ConvShape(hidden, width, 1))


@dataclass(frozen=True, slots=True)
class MimiConfig:
    """Shape of a Mimi: ``frame_positions`` latents of the SEANet become one frame of codes."""

    seanet: SeanetConfig
    transformer: TransformerConfig
    frame_samples: int
    frame_positions: int
    semantic: int
    cardinality: int
    code_width: int

    @classmethod
    def from_published(cls, config: Mapping[str, Any]) -> MimiConfig:
        """Read a published configuration.

        Raises:
            UnsupportedError: an option no published Mimi uses.
        """
        seanet, quantizer = SeanetConfig.from_published(config["seanet"]), config["quantizer"]
        samples = round(config["sample_rate"] / config["frame_rate"])
        positions = samples // math.prod(seanet.ratios)
        return cls(
            seanet,
            TransformerConfig.of_codec(config["transformer"], positions),
            samples,
            positions,
            quantizer.get("n_q_semantic", 1),
            quantizer["bins"],
            quantizer["dimension"],
        )

    def resampling(self, *, is_transposed: bool) -> ConvShape:
        """The convolution from the transformer's rate to the rate of codes; with ``is_transposed`` the
        reverse, in which each channel is separate.
        """
        width, stride = self.seanet.dimension, self.frame_positions
        return ConvShape(width, width, 2 * stride, stride, bias=False, is_transposed=is_transposed)
