"""Shapes of the codec's networks, as :mod:`antiphon.models.architecture` has those of transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from antiphon.errors import UnsupportedError
from antiphon.models.architecture import TransformerConfig
from antiphon.models.spec import PipelineKind

_SEANET: Final = {
    "activation": "ELU",
    "norm": "none",
    "pad_mode": "constant",
    "causal": True,
    "true_skip": True,
}

UNUSED_STATE: Final = MappingProxyType({PipelineKind.STT: "decoder", PipelineKind.TTS: "encoder"})
"""What the names of codec state begin with that rows of a pipeline have no use for."""


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A causal convolution. A transposed one gives ``stride`` positions for each that it takes."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    bias: bool = True
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class ResidualShape:
    """Two convolutions with an ELU before each; their sum with the input goes on."""

    first: ConvShape
    second: ConvShape


SeanetLayer: TypeAlias = ConvShape | ResidualShape | None
"""None is an ELU. A layer's index in its list is the number that its weights' names have."""


@dataclass(frozen=True, slots=True)
class SeanetConfig:
    """The part of a published ``seanet`` table that shapes the network. ``ratios`` is in decoder order."""

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
        """Read a published table.

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
    """Shape of a Mimi: ``frame_positions`` latents of the SEANet are one frame of codes."""

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
        """From the transformer's rate to the codes' rate; transposed, the way back, each channel alone."""
        width, stride = self.seanet.dimension, self.frame_positions
        return ConvShape(width, width, 2 * stride, stride, bias=False, is_transposed=is_transposed)
