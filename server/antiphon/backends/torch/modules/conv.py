"""Causal convolutions that keep their past in explicit tensors.

Layout is ``[n, channels, positions]``. A convolution of few positions is a matrix product whose cost is
reading the weight, and is done as one; long ones use the library's convolution, which wins there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.models.codec_architecture import ConvShape

SHORT_POSITIONS = 16
"""Up to so many output positions a frame, a convolution runs as a matrix product (measured on CPU)."""


def _dtype(layer: CausalConv1d | CausalConvTranspose1d) -> torch.dtype:
    return layer.weight.dtype if layer.linear is None else layer.linear.weight.dtype


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class StreamingConv(nn.Module):
    """A convolution that keeps as state what the next frame needs of this one."""

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        raise NotImplementedError

    def prepare(self) -> None:
        """After loading: derive what is computed from the weights."""


class CausalConv1d(StreamingConv):
    """Causal convolution. State ``{name}.past``: the last ``kernel - stride`` inputs.

    With ``replicate`` the first frame of a row is preceded by copies of its first input instead of
    zeros, and ``{name}.started`` says whether that frame has come.
    """

    bias: Tensor | None

    def __init__(
        self,
        name: str,
        shape: ConvShape,
        *,
        positions: int,
        replicate: bool = False,
    ) -> None:
        """Shape the layer for frames of so many positions; its weights come with the checkpoint."""
        super().__init__()
        kernel, stride, dilation = shape.kernel, shape.stride, shape.dilation
        self.name, self.stride, self.dilation, self.replicate = name, stride, dilation, replicate
        self.in_channels, self.kernel = shape.inputs, kernel
        self.past_positions = (kernel - 1) * dilation + 1 - stride
        self.weight = _parameter(shape.outputs, shape.inputs, kernel)
        self.bias = _parameter(shape.outputs) if shape.bias else None
        self.positions, self.is_whole = positions // stride, dilation == 1 and kernel % stride == 0
        self.is_short = self.positions <= SHORT_POSITIONS and self.is_whole
        self.linear: Linear | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.in_channels, self.past_positions), _dtype(self))
        if self.replicate:
            yield TensorSpec(f"{self.name}.started", (), torch.bool)

    def prepare(self) -> None:
        """After loading: turn a short convolution into a linear layer over windows.

        A long one of several taps gets a second axis, of one position: the same sums, for which ONNX Runtime
        has a faster layout (decision 0010).
        """
        if self.is_short and self.linear is None:
            out_channels = self.weight.shape[0]
            self.linear = Linear(
                self.in_channels * self.kernel,
                out_channels,
                bias=self.bias is not None,
                dtype=self.weight.dtype,
            )
            taps_first = self.weight.data.transpose(1, 2).reshape(out_channels, -1)
            self.linear.weight = nn.Parameter(taps_first, requires_grad=False)
            self.linear.bias = self.bias
            del self.weight
        if self.linear is None and self.kernel > 1 and self.weight.dim() == 3:
            self.weight = nn.Parameter(self.weight.data[:, :, None], requires_grad=False)

    def _with_past(self, x: Tensor, step: Step) -> Tensor:
        if not self.replicate:
            return step.extend(f"{self.name}.past", x)
        past, started = step.read(f"{self.name}.past"), step.read(f"{self.name}.started")
        past = torch.where(started.view(-1, 1, 1), past, x[..., :1])
        step.write(f"{self.name}.started", torch.ones_like(started))
        joined = torch.cat([past, x], dim=-1)
        step.write(f"{self.name}.past", joined[..., -self.past_positions :])
        return joined

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, in_channels, T]`` to ``[n, out_channels, T / stride]``; T is a multiple of the stride."""
        if self.past_positions:
            x = self._with_past(x, step)
        if self.linear is None:
            return self._slide(x)
        out: Tensor = self.linear(self._windows(x)).transpose(1, 2)
        return out

    def _slide(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 3:
            return functional.conv1d(x, self.weight, self.bias, stride=self.stride, dilation=self.dilation)
        stride, dilation = (1, self.stride), (1, self.dilation)
        wide = functional.conv2d(x[:, :, None], self.weight, self.bias, stride=stride, dilation=dilation)
        return wide[:, :, 0]

    def _windows(self, x: Tensor) -> Tensor:
        """``[n, positions, kernel * in_channels]``, by copying whole strides: the kernel is some of them."""
        strides = x.transpose(1, 2).reshape(x.shape[0], -1, self.stride * self.in_channels)
        parts = self.kernel // self.stride
        positions = strides.shape[1] - parts + 1
        return torch.cat([strides[:, part : part + positions] for part in range(parts)], dim=2)


class CausalConvTranspose1d(StreamingConv):
    """Transposed convolution. State ``{name}.tail``: the overlap owed to the next frame, without bias."""

    bias: Tensor | None

    def __init__(
        self,
        name: str,
        shape: ConvShape,
        *,
        positions: int,
        depthwise: bool = False,
    ) -> None:
        """Shape the layer for frames of so many positions; ``depthwise``: no channel sees another."""
        super().__init__()
        kernel, stride, groups = shape.kernel, shape.stride, shape.inputs if depthwise else 1
        self.name, self.kernel, self.stride, self.groups = name, kernel, stride, groups
        self.in_channels, self.out_channels = shape.inputs, shape.outputs
        self.tail_positions = kernel - stride
        self.weight = _parameter(shape.inputs, shape.outputs // groups, kernel)
        self.bias = _parameter(shape.outputs) if shape.bias else None
        self.positions, self.is_whole = positions, groups == 1 and kernel == 2 * stride
        self.is_short = positions <= SHORT_POSITIONS and self.is_whole
        self.linear: Linear | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.tail_positions:
            yield TensorSpec(f"{self.name}.tail", (self.out_channels, self.tail_positions), _dtype(self))

    def prepare(self) -> None:
        """After loading: turn a short transposed convolution into a linear layer and an overlap-add."""
        if self.is_short and self.linear is None:
            self.linear = Linear(self.in_channels, self.out_channels * self.kernel, dtype=self.weight.dtype)
            self.linear.weight = nn.Parameter(
                self.weight.data.flatten(1).t().contiguous(), requires_grad=False
            )
            del self.weight

    def _spread(self, x: Tensor) -> Tensor:
        """Overlap-add without the bias: ``[n, in, T]`` to ``[n, out, T * stride + tail]``."""
        if x.shape[-1] == 1 and self.groups == self.in_channels == self.out_channels:
            return x * self.weight[:, 0]  # which ONNX Runtime takes for a convolution of many groups
        if self.linear is None:
            return functional.conv_transpose1d(x, self.weight, stride=self.stride, groups=self.groups)
        blocks = self.linear(x.transpose(1, 2)).view(*x.shape[::2], self.out_channels, 2, self.stride)
        first, second = blocks.permute(3, 0, 2, 1, 4).flatten(3)
        pad = self.stride
        return functional.pad(first, (0, pad)) + functional.pad(second, (pad, 0))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, in_channels, T]`` to ``[n, out_channels, T * stride]``."""
        out = self._spread(x)
        if self.tail_positions:
            tail = step.read(f"{self.name}.tail")
            end = out.shape[-1] - self.tail_positions
            head = out[..., : self.tail_positions] + tail
            joined = torch.cat([head, out[..., self.tail_positions :]], dim=-1)
            step.write(f"{self.name}.tail", joined[..., end:])
            out = joined[..., :end]
        return out if self.bias is None else out + self.bias.view(-1, 1)
