"""SEANet, the convolutional encoder and decoder around Mimi's latent space.

Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the causal form of
Défossez et al. 2022 and 2024. Parameter names agree with the published Mimi files once ``.conv.conv``
is shortened (:mod:`antiphon.backends.torch.weights.mimi_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from antiphon.backends.published import SeanetConfig
from antiphon.backends.torch.modules.conv import CausalConv1d, CausalConvTranspose1d
from antiphon.backends.torch.step import Step


class ResidualBlock(nn.Module):
    """``x + conv1(elu(conv3(elu(x))))`` with a narrower middle."""

    def __init__(self, name: str, config: SeanetConfig, channels: int, dilation: int, positions: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        hidden = channels // config.compress
        self.block = nn.Sequential(
            nn.ELU(config.alpha),
            CausalConv1d(
                f"{name}.block.1",
                channels,
                hidden,
                config.residual_kernel_size,
                dilation=dilation,
                positions=positions,
            ),
            nn.ELU(config.alpha),
            CausalConv1d(f"{name}.block.3", hidden, channels, 1, positions=positions),
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, channels, T]`` to the same."""
        return x + _run(self.block, x, step)


def _run(layers: nn.Sequential, x: Tensor, step: Step) -> Tensor:
    for layer in layers:
        x = layer(x) if isinstance(layer, nn.ELU) else layer(x, step)
    return x


def _encoder_layers(name: str, config: SeanetConfig, positions: int) -> Iterator[nn.Module]:
    index, width = 1, config.n_filters
    yield CausalConv1d(f"{name}.0", config.channels, width, config.kernel_size, positions=positions)
    for ratio in reversed(config.ratios):
        for level in range(config.n_residual_layers):
            dilation = config.dilation_base**level
            yield ResidualBlock(f"{name}.{index}", config, width, dilation, positions)
            index += 1
        yield nn.ELU(config.alpha)
        yield CausalConv1d(
            f"{name}.{index + 1}", width, 2 * width, 2 * ratio, stride=ratio, positions=positions
        )
        index, width, positions = index + 2, 2 * width, positions // ratio
    yield nn.ELU(config.alpha)
    yield CausalConv1d(
        f"{name}.{index + 1}", width, config.dimension, config.last_kernel_size, positions=positions
    )


def _decoder_layers(name: str, config: SeanetConfig, positions: int) -> Iterator[nn.Module]:
    index, width = 1, config.n_filters * 2 ** len(config.ratios)
    yield CausalConv1d(f"{name}.0", config.dimension, width, config.kernel_size, positions=positions)
    for ratio in config.ratios:
        yield nn.ELU(config.alpha)
        yield CausalConvTranspose1d(
            f"{name}.{index + 1}", width, width // 2, 2 * ratio, stride=ratio, positions=positions
        )
        index, width, positions = index + 2, width // 2, positions * ratio
        for level in range(config.n_residual_layers):
            dilation = config.dilation_base**level
            yield ResidualBlock(f"{name}.{index}", config, width, dilation, positions)
            index += 1
    yield nn.ELU(config.alpha)
    yield CausalConv1d(
        f"{name}.{index + 1}", width, config.channels, config.last_kernel_size, positions=positions
    )


class SeanetEncoder(nn.Module):
    """PCM to latents: ``[n, 1, frame_samples]`` to ``[n, dimension, positions]``."""

    def __init__(self, name: str, config: SeanetConfig, frame_samples: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.model = nn.Sequential(*_encoder_layers(name, config, frame_samples))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """See the class."""
        return _run(self.model, x, step)


class SeanetDecoder(nn.Module):
    """Latents to PCM: ``[n, dimension, positions]`` to ``[n, 1, frame_samples]``."""

    def __init__(self, name: str, config: SeanetConfig, frame_positions: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.model = nn.Sequential(*_decoder_layers(name, config, frame_positions))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """See the class."""
        return _run(self.model, x, step)
