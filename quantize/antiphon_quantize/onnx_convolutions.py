"""A codec's convolutions behind an ELU as products of INT8 over windows, positions first, for exports.

Nothing behind an ELU is below -1 (where its alpha is 1 or less; behind another one a convolution stays as
it is): in an encoder bytes count from there upwards, which leaves more codes as they were. In a decoder
they are symmetric, so that what is quiet is rounded finely. A window has a scale of its own: no other row
has a part in it. Sums of integers are exact, so that a row's results do not depend on how many rows there
are. A transposed convolution whose kernel is two strides is a product over windows of two positions, which
gives all positions of a stride side by side: nothing is overlapped and added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.conv import CausalConv1d, CausalConvTranspose1d, StreamingConv
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.modules.seanet import ResidualBlock, Seanet
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step

LARGEST: Final = 127.0
"""Of a rounded weight, and of an input on either side of a middle."""
TOP: Final = 255.0
"""Of an input that counts from the least."""
MIDDLE: Final = 128
"""The byte that stands for zero in a decoder."""
SMALLEST: Final = 1e-20
"""A scale is no smaller."""


@torch.library.custom_op("antiphon::round_by_row", mutates_args=())
def round_by_row(values: Tensor, scale: Tensor, middle: int) -> Tensor:
    """Numbers ``[r, A, B]`` as bytes, ``middle`` being 0 and a step of row r being ``scale [r]`` of r."""
    return ((values / scale[:, None, None]).round() + middle).clamp(0, TOP).to(torch.uint8)


@round_by_row.register_fake
def _(values: Tensor, scale: Tensor, middle: int) -> Tensor:  # noqa: ARG001
    return values.to(torch.uint8)


@torch.library.custom_op("antiphon::multiply_rounded", mutates_args=())
def multiply_rounded(values: Tensor, weight: Tensor, scale: Tensor, middle: int) -> Tensor:
    """Bytes ``[n, T, K]``, less ``middle``, times ``weight`` int8 ``[K, N]`` times ``scale [N]``: float32."""
    return torch.matmul(values.int() - middle, weight.int()).float() * scale


@multiply_rounded.register_fake
def _(values: Tensor, weight: Tensor, scale: Tensor, middle: int) -> Tensor:  # noqa: ARG001
    return torch.matmul(values.float(), weight.float()) * scale


class IntegerConv(StreamingConv):
    """A convolution behind an ELU, or a transposed one, positions first: ``[n, T, in]`` to ``[n, T', out]``.

    A window is ``parts`` strides of inputs, a window's product ``places`` positions of the output. State, row
    first: ``{name}.past`` float32 ``[positions, in]``, the inputs that the first window looks back to.
    """

    def __init__(self, layer: CausalConv1d | CausalConvTranspose1d, *, middle: int) -> None:
        """Round the weights of a layer that was loaded, and not prepared yet; ``middle`` 0: bytes from -1."""
        super().__init__()
        matrix, self.name, self.middle = _matrix(layer), layer.name, middle
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
        bias = bias.repeat(self.places)
        if not middle:
            bias -= (self.weight.float() * scale).sum(dim=0)  # what inputs from -1 make too much
        self.bias = nn.Parameter(bias, requires_grad=False)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.past_positions, self.in_channels), torch.float32)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """See the class."""
        if self.past_positions:
            x = torch.cat([step.read(f"{self.name}.past"), x], dim=1)
            step.write(f"{self.name}.past", x[:, -self.past_positions :])
        count, width = x.shape[1] // self.stride, self.stride * self.in_channels
        positions = count - self.parts + 1
        strides = (x if self.middle else x + 1).reshape(-1, count, width)
        windows = self._windows(strides, positions)
        scale = self._scale(windows)
        rows = windows.reshape(-1, 1, self.parts * width)
        rounded = round_by_row(rows, scale.reshape(-1), self.middle)
        rounded = rounded.reshape(-1, positions, self.parts * width)
        out = multiply_rounded(rounded, self.weight, self.scale, self.middle) * scale[:, :, None] + self.bias
        found: Tensor = out.reshape(-1, positions * self.places, self.out_channels)
        return found

    def _scale(self, windows: Tensor) -> Tensor:
        """The step of bytes that just hold a window, ``[n, positions]``."""
        most = windows.amax(dim=2)
        step = torch.maximum(most, -windows.amin(dim=2)) / LARGEST if self.middle else most / TOP
        return step.clamp_min(SMALLEST)

    def _windows(self, strides: Tensor, positions: int) -> Tensor:
        """``[n, count, width]`` to ``[n, positions, parts * width]``."""
        if self.parts == 1:
            return strides
        return torch.cat([strides[:, part : part + positions] for part in range(self.parts)], dim=2)


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


def round_convolutions(mimi: Mimi, most_positions: Mapping[str, int]) -> None:
    """Let convolutions of a loaded codec, not prepared yet, multiply in INT8.

    Those behind an ELU of at most these positions a frame, of the ``encoder`` and of the ``decoder``, 0
    where one is not named; of a transposed convolution those that it takes. A residual block's are rounded
    all or none.
    """
    round_network(mimi.encoder, most_positions.get("encoder", 0), middle=0)
    round_network(mimi.decoder, most_positions.get("decoder", 0), middle=MIDDLE)


def round_network(network: Seanet, most_positions: int, *, middle: int) -> None:
    """See :func:`round_convolutions`; bytes count from -1 where ``middle`` is 0, else are symmetric."""
    layers: list[nn.Module] = []
    is_turned = False
    for layer in network.model:
        is_behind = bool(layers) and _is_bounded(layers[-1])
        rounded = _rounded(layer, most_positions, middle, is_behind=is_behind)
        if not isinstance(layer, nn.ELU) and is_turned != (rounded is not None):
            layers.append(Turn())
            is_turned = not is_turned
        layers.append(layer if rounded is None else rounded)
    network.model = nn.Sequential(*layers, *([Turn()] if is_turned else []))


def _is_bounded(layer: nn.Module) -> bool:
    """Whether a layer is an ELU that gives nothing below -1."""
    return isinstance(layer, nn.ELU) and layer.alpha <= 1


def _rounded(layer: nn.Module, most_positions: int, middle: int, *, is_behind: bool) -> nn.Module | None:
    """What takes a layer's place, which ``is_behind`` an ELU or not; None where it stays."""
    if isinstance(layer, CausalConv1d | CausalConvTranspose1d):
        is_chosen = is_behind and layer.is_whole and layer.positions <= most_positions
        return IntegerConv(layer, middle=middle) if is_chosen else None
    if isinstance(layer, ResidualBlock):
        is_behind = all(_is_bounded(child) for child in layer.block if isinstance(child, nn.ELU))
        inner = [
            child
            if isinstance(child, nn.ELU)
            else _rounded(child, most_positions, middle, is_behind=is_behind)
            for child in layer.block
        ]
        if None not in inner:
            layer.block = nn.Sequential(*(child for child in inner if child is not None))
            return layer
    return None
