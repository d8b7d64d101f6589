"""SEANet, the convolutional encoder and decoder around Mimi's latent space.

Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the causal form of
Défossez et al. 2022 and 2024. Names agree with the published Mimi files once ``.conv.conv`` is shortened
(:mod:`antiphon.backends.mlx.mimi_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from antiphon.backends.mlx.conv import CausalConv1d, CausalConvTranspose1d
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.state import Layer, Packed, TensorSpec
from antiphon.models.codec_architecture import ConvShape, SeanetConfig, SeanetLayer


class Seanet:
    """The "encoder", ``[n, frame_samples, 1]`` to ``[n, positions, dimension]``, or the "decoder", back."""

    def __init__(self, name: str, config: SeanetConfig, weights: Weights) -> None:
        """Take the weights."""
        self._name, self._alpha, self._weights = name, config.alpha, weights
        self._convolutions: list[CausalConv1d | CausalConvTranspose1d] = []
        layers = config.encoder() if name == "encoder" else config.decoder()
        self._layers = [self._make(str(place), layer) for place, layer in enumerate(layers)]

    def specs(self) -> Iterator[TensorSpec]:
        """The state of every convolution."""
        for convolution in self._convolutions:
            yield from convolution.specs()

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """``[n, positions, channels]`` through every layer."""
        for layer in self._layers:
            x = layer(x, step)
        return x

    def _make(self, place: str, shape: SeanetLayer) -> Layer:
        if shape is None:
            return self._elu
        if isinstance(shape, ConvShape):
            return self._conv(place, shape)
        first = self._conv(f"{place}.block.1", shape.first)
        second = self._conv(f"{place}.block.3", shape.second)

        def block(x: mx.array, step: Packed) -> mx.array:
            return x + second(self._elu(first(self._elu(x, step), step), step), step)

        return block

    def _conv(self, place: str, shape: ConvShape) -> Layer:
        kind = CausalConvTranspose1d if shape.is_transposed else CausalConv1d
        name = f"{self._name}.{place}"
        convolution = kind(name, shape, self._weights, f"{self._name}.model.{place}")
        self._convolutions.append(convolution)
        return convolution

    def _elu(self, x: mx.array, step: Packed) -> mx.array:  # noqa: ARG002  (a layer like the others)
        return mx.where(x > 0, x, self._alpha * mx.expm1(x))
