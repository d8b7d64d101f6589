"""SEANet, the convolutional encoder and decoder around Mimi's latent space.

Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the causal form of
Défossez et al. 2022 and 2024. Parameter names agree with the published Mimi files once ``.conv.conv``
is shortened (:mod:`antiphon.backends.torch.weights.mimi_weights`).
"""

from __future__ import annotations

from torch import Tensor, nn

from antiphon.backends.torch.modules.conv import CausalConv1d, CausalConvTranspose1d
from antiphon.backends.torch.step import Step
from antiphon.models.codec_architecture import ResidualShape, SeanetConfig, SeanetLayer


class ResidualBlock(nn.Module):
    """``x + conv1(elu(conv3(elu(x))))`` with a narrower middle."""

    def __init__(self, name: str, shape: ResidualShape, alpha: float, positions: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(alpha),
            CausalConv1d(f"{name}.block.1", shape.first, positions=positions),
            nn.ELU(alpha),
            CausalConv1d(f"{name}.block.3", shape.second, positions=positions),
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, channels, T]`` to the same."""
        return x + _run(self.block, x, step)


def _run(layers: nn.Sequential, x: Tensor, step: Step) -> Tensor:
    for layer in layers:
        x = layer(x) if isinstance(layer, nn.ELU) else layer(x, step)
    return x


class Seanet(nn.Module):
    """The "encoder", ``[n, 1, frame_samples]`` to ``[n, dimension, positions]``, or the "decoder", back."""

    def __init__(self, name: str, config: SeanetConfig, positions: int) -> None:
        """Shape the network for frames of so many positions; its weights come with the checkpoint."""
        super().__init__()
        self._positions, self._alpha = positions, config.alpha
        layers = config.encoder() if name == "encoder" else config.decoder()
        made = [self._make(f"{name}.{place}", layer) for place, layer in enumerate(layers)]
        self.model = nn.Sequential(*made)

    def _make(self, name: str, shape: SeanetLayer) -> nn.Module:
        positions = self._positions
        if shape is None:
            return nn.ELU(self._alpha)
        if isinstance(shape, ResidualShape):
            return ResidualBlock(name, shape, self._alpha, positions)
        if shape.is_transposed:
            self._positions = positions * shape.stride
            return CausalConvTranspose1d(name, shape, positions=positions)
        self._positions = positions // shape.stride
        return CausalConv1d(name, shape, positions=positions)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """See the class."""
        return _run(self.model, x, step)
