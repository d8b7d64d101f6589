"""Mimi, the streaming codec: one frame of PCM to codes and back.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.conv import CausalConv1d, CausalConvTranspose1d
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.quantizer import SplitQuantizer
from antiphon.backends.mlx.seanet import Seanet
from antiphon.backends.mlx.state import Layer, Packed, Step, TensorSpec, fused
from antiphon.backends.mlx.transformer import StreamingTransformer
from antiphon.models.codec_architecture import MimiConfig


class Mimi:
    """The codec for the first ``codebooks`` levels. Its state names begin with ``encoder`` or ``decoder``."""

    def __init__(self, config: Mapping[str, Any], codebooks: int, weights: Weights) -> None:
        """Take the weights."""
        shape = MimiConfig.from_published(config)
        self.codebooks, self.frame_samples = codebooks, shape.frame_samples
        self.encoder, self.decoder = (Seanet(name, shape.seanet, weights) for name in ("encoder", "decoder"))
        self.encoder_transformer, self.decoder_transformer = (
            StreamingTransformer(name, shape.transformer, weights, name)
            for name in ("encoder_transformer", "decoder_transformer")
        )
        tables, width = (shape.cardinality, shape.code_width), shape.seanet.dimension
        self.quantizer = SplitQuantizer(weights, codebooks, shape.semantic, tables, width)
        down, up = (shape.resampling(is_transposed=back) for back in (False, True))
        self.downsample = CausalConv1d("encoder.downsample", down, weights, "downsample", replicate=True)
        self.upsample = CausalConvTranspose1d("decoder.upsample", up, weights, "upsample", depthwise=True)

        self._analyse: Layer = self.encoder
        self._to_codes: Layer = self._quantize
        self._to_latents: Layer = self._look_up
        self._synthesise: Layer = self.decoder

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the codec."""
        for part in (
            self.encoder,
            self.decoder,
            self.encoder_transformer,
            self.decoder_transformer,
            self.downsample,
            self.upsample,
        ):
            yield from part.specs()

    def compile(self) -> None:
        """Have mlx fuse operations, from the next call on."""
        parts = (self.encoder, self.encoder.specs()), (self.decoder, self.decoder.specs())
        self._analyse, self._synthesise = (fused(layer, specs) for layer, specs in parts)
        self._to_codes = fused(self._to_codes, self.downsample.specs())
        self._to_latents = fused(self._to_latents, self.upsample.specs())
        for transformer in (self.encoder_transformer, self.decoder_transformer):
            transformer.compile()

    def encode(self, pcm: mx.array, step: Step) -> mx.array:
        """PCM float32 ``[n, frame_samples]`` to codes int32 ``[n, codebooks]``."""
        x = self.encoder_transformer(self._analyse(pcm[:, :, None], step), step)
        return self._to_codes(x, step)

    def decode(self, codes: mx.array, step: Step) -> mx.array:
        """Codes int32 ``[n, codebooks]`` to PCM float32 ``[n, frame_samples]``."""
        x = self.decoder_transformer(self._to_latents(codes, step), step)
        return self._synthesise(x, step)[:, :, 0]

    def _quantize(self, x: mx.array, step: Packed) -> mx.array:
        return self.quantizer.encode(self.downsample(x, step)[:, 0])

    def _look_up(self, codes: mx.array, step: Packed) -> mx.array:
        return self.upsample(self.quantizer.decode(codes)[:, None], step)
