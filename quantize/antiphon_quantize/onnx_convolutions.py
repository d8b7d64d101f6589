"""A codec's convolutions as products of INT8 over windows, for exported graphs; positions first.

A row's frame is rounded to bytes with a scale of its own, which no other row has a part in, and windows are
copied as bytes. Sums of integers are exact, so that a row's results do not depend on how many rows there are.
A transposed convolution whose kernel is two strides is a product over windows of two positions, which gives
all positions of a stride side by side: nothing is overlapped and added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.conv import CausalConv1d, CausalConvTranspose1d, StreamingConv
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.modules.seanet import ResidualBlock, Seanet
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step

LARGEST: Final = 127.0
"""Of a rounded number, on either side of nothing."""
MIDDLE: Final = 128
"""The byte that stands for nothing."""
SMALLEST: Final = 1e-20
"""A scale is no smaller; that of a row of zeros is this."""


@torch.library.custom_op("antiphon::round_by_row", mutates_args=())
def round_by_row(values: Tensor, scale: Tensor) -> Tensor:
    """Numbers ``[n, T, C]`` as bytes around ``MIDDLE``, a step of row r being ``scale [n]`` of r."""
    return ((values / scale[:, None, None]).round() + MIDDLE).clamp(0, 2 * MIDDLE - 1).to(torch.uint8)


@round_by_row.register_fake
def _(values: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG001
    return values.to(torch.uint8)


@torch.library.custom_op("antiphon::multiply_rounded", mutates_args=())
def multiply_rounded(values: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Bytes around ``MIDDLE`` ``[n, T, K]`` times ``weight`` int8 ``[K, N]`` times ``scale [N]``: float32."""
    return torch.matmul(values.int() - MIDDLE, weight.int()).float() * scale


@multiply_rounded.register_fake
def _(values: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return torch.matmul(values.float(), weight.float()) * scale


class IntegerConv(StreamingConv):
    """A convolution, or a transposed one, of positions first: ``[n, T, in]`` to ``[n, T', out]``.

    A window is ``parts`` strides of inputs, a window's product ``places`` positions of the output. State, row
    first: ``{name}.past`` float32 ``[positions, in]``, the inputs that the first window looks back to.
    """

    def __init__(self, layer: CausalConv1d | CausalConvTranspose1d) -> None:
        """Round the weights of a layer that was loaded, and not prepared yet."""
        super().__init__()
        matrix, self.name = _matrix(layer), layer.name
        if isinstance(layer, CausalConv1d):
            self.stride, self.places = layer.stride, 1
            self.parts, self.past_positions = layer.kernel // layer.stride, layer.past_positions
        else:
            self.stride, self.places, self.parts, self.past_positions = 1, layer.stride, 2, 1
        self.in_channels, self.out_channels = layer.in_channels, matrix.shape[1] // self.places
        scale = matrix.abs().amax(dim=0).clamp_min(SMALLEST) / LARGEST
        self.weight = nn.Parameter((matrix / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        bias = torch.zeros(self.out_channels) if layer.bias is None else layer.bias.data
        self.bias = nn.Parameter(bias.repeat(self.places), requires_grad=False)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.past_positions, self.in_channels), torch.float32)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """See the class."""
        if self.past_positions:
            x = torch.cat([step.read(f"{self.name}.past"), x], dim=1)
            step.write(f"{self.name}.past", x[:, -self.past_positions :])
        loudest = torch.maximum(x.amax(dim=(1, 2)), -x.amin(dim=(1, 2)))
        scale = (loudest / LARGEST).clamp_min(SMALLEST)
        count, width = x.shape[1] // self.stride, self.stride * self.in_channels
        strides = round_by_row(x, scale).reshape(-1, count, width)
        positions = count - self.parts + 1
        windows = [strides[:, part : part + positions] for part in range(self.parts)]
        joined = windows[0] if self.parts == 1 else torch.cat(windows, dim=2)
        out = multiply_rounded(joined, self.weight, self.scale) * scale[:, None, None] + self.bias
        found: Tensor = out.reshape(-1, positions * self.places, self.out_channels)
        return found


def _matrix(layer: CausalConv1d | CausalConvTranspose1d) -> Tensor:
    """The weights as a window meets them, ``[window, places * out]``."""
    weight = layer.weight.data
    if isinstance(layer, CausalConv1d):
        return weight.permute(2, 1, 0).flatten(0, 1)
    own, owed = weight.split(layer.stride, dim=2)
    return torch.cat([part.transpose(1, 2).flatten(1) for part in (owed, own)])


class Turn(nn.Module):
    """Between layers that take channels first and such that take positions first."""

    def forward(self, x: Tensor, step: Step) -> Tensor:  # noqa: ARG002
        """``[n, a, b]`` to ``[n, b, a]``."""
        return x.transpose(1, 2)


def round_convolutions(mimi: Mimi, least_weights: int | None) -> None:
    """Let convolutions of a loaded codec, not prepared yet, multiply in INT8.

    Those that have ``least_weights`` or more; none, where that is None. A residual block's are rounded all or
    none.
    """
    if least_weights is not None:
        for network in (mimi.encoder, mimi.decoder):
            round_network(network, least_weights)


def round_network(network: Seanet, least_weights: int) -> None:
    """See :func:`round_convolutions`."""
    layers: list[nn.Module] = []
    is_turned = False
    for layer in network.model:
        rounded = _rounded(layer, least_weights)
        if not isinstance(layer, nn.ELU) and is_turned != (rounded is not None):
            layers.append(Turn())
            is_turned = not is_turned
        layers.append(layer if rounded is None else rounded)
    network.model = nn.Sequential(*layers, *([Turn()] if is_turned else []))


def _rounded(layer: nn.Module, least_weights: int) -> nn.Module | None:
    """What takes a layer's place; None where it stays."""
    if isinstance(layer, CausalConv1d | CausalConvTranspose1d):
        return IntegerConv(layer) if layer.is_whole and layer.weight.numel() >= least_weights else None
    if isinstance(layer, ResidualBlock):
        inner = [c if isinstance(c, nn.ELU) else _rounded(c, least_weights) for c in layer.block]
        if None not in inner:
            layer.block = nn.Sequential(*(child for child in inner if child is not None))
            return layer
    return None
