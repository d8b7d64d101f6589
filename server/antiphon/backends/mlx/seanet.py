"""SEANet, the convolutional encoder and decoder around Mimi's latent space.

Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the causal form of
Défossez et al. 2022 and 2024. Names agree with the published Mimi files once ``.conv.conv`` is shortened
(:mod:`antiphon.backends.mlx.mimi_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from antiphon.backends.mlx.conv import CausalConv1d, CausalConvTranspose1d, ConvShape
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.state import Layer, Packed, TensorSpec
from antiphon.backends.published import SeanetConfig


class Seanet:
    """A chain of convolutions with ELU between them; ``name`` is "encoder" or "decoder"."""

    def __init__(self, name: str, config: SeanetConfig, weights: Weights) -> None:
        """Take the weights."""
        self._name, self._config, self._weights = name, config, weights
        self._convolutions: list[CausalConv1d | CausalConvTranspose1d] = []
        self._layers: list[Layer] = list(self._encoder() if name == "encoder" else self._decoder())

    def specs(self) -> Iterator[TensorSpec]:
        """The state of every convolution."""
        for convolution in self._convolutions:
            yield from convolution.specs()

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """``[n, positions, channels]`` through every layer."""
        for layer in self._layers:
            x = layer(x, step)
        return x

    def _encoder(self) -> Iterator[Layer]:
        """PCM to latents: ``[n, frame_samples, 1]`` to ``[n, positions, dimension]``."""
        config, index, width = self._config, 1, self._config.n_filters
        yield self._conv("0", ConvShape(config.channels, width, config.kernel_size))
        for ratio in reversed(config.ratios):
            for level in range(config.n_residual_layers):
                yield self._residual(index, width, config.dilation_base**level)
                index += 1
            yield self._elu
            yield self._conv(f"{index + 1}", ConvShape(width, 2 * width, 2 * ratio, ratio))
            index, width = index + 2, 2 * width
        yield self._elu
        yield self._conv(f"{index + 1}", ConvShape(width, config.dimension, config.last_kernel_size))

    def _decoder(self) -> Iterator[Layer]:
        """Latents to PCM: ``[n, positions, dimension]`` to ``[n, frame_samples, 1]``."""
        config, index = self._config, 1
        width = config.n_filters * 2 ** len(config.ratios)
        yield self._conv("0", ConvShape(config.dimension, width, config.kernel_size))
        for ratio in config.ratios:
            yield self._elu
            shape, place = ConvShape(width, width // 2, 2 * ratio, ratio), f"{index + 1}"
            transposed = CausalConvTranspose1d(
                f"{self._name}.{place}", shape, self._weights, f"{self._name}.model.{place}"
            )
            self._convolutions.append(transposed)
            yield transposed
            index, width = index + 2, width // 2
            for level in range(config.n_residual_layers):
                yield self._residual(index, width, config.dilation_base**level)
                index += 1
        yield self._elu
        yield self._conv(f"{index + 1}", ConvShape(width, config.channels, config.last_kernel_size))

    def _conv(self, place: str, shape: ConvShape) -> CausalConv1d:
        name = f"{self._name}.{place}"
        convolution = CausalConv1d(name, shape, self._weights, f"{self._name}.model.{place}")
        self._convolutions.append(convolution)
        return convolution

    def _residual(self, index: int, channels: int, dilation: int) -> Layer:
        """``x + conv1(elu(conv3(elu(x))))`` with a narrower middle."""
        config, hidden = self._config, channels // self._config.compress
        first = self._conv(
            f"{index}.block.1", ConvShape(channels, hidden, config.residual_kernel_size, dilation=dilation)
        )
        second = self._conv(f"{index}.block.3", ConvShape(hidden, channels, 1))

        def block(x: mx.array, step: Packed) -> mx.array:
            return x + second(self._elu(first(self._elu(x, step), step), step), step)

        return block

    def _elu(self, x: mx.array, step: Packed) -> mx.array:  # noqa: ARG002  (a layer like the others)
        return mx.where(x > 0, x, self._config.alpha * mx.expm1(x))
