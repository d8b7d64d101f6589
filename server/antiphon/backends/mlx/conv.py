"""Causal convolutions that keep their past in explicit arrays.

Layout is ``[n, positions, channels]``, mlx's own. Published weights are ``[out, in, kernel]``.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.state import Packed, TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.codec_architecture import ConvShape


class CausalConv1d:
    """Causal convolution. State ``{name}.past`` ``[kernel - stride, inputs]``: the last inputs.

    With ``replicate`` the first frame of a row is preceded by copies of its first input instead of
    zeros, and ``{name}.started`` says whether that frame has come.
    """

    def __init__(
        self, name: str, shape: ConvShape, weights: Weights, prefix: str, *, replicate: bool = False
    ) -> None:
        """Take the layer's weights."""
        self.name, self.shape, self.replicate = name, shape, replicate
        self.past_positions = (shape.kernel - 1) * shape.dilation + 1 - shape.stride
        published = weights.array(f"{prefix}.weight", (shape.outputs, shape.inputs, shape.kernel))
        self.weight = mx.contiguous(published.swapaxes(1, 2))
        self.bias = weights.array(f"{prefix}.bias", (shape.outputs,)) if shape.bias else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.past_positions, self.shape.inputs), self.weight.dtype)
        if self.replicate:
            yield TensorSpec(f"{self.name}.started", (), mx.bool_)

    def _with_past(self, x: mx.array, step: Packed) -> mx.array:
        past = step.read(f"{self.name}.past")
        if self.replicate:
            started = step.read(f"{self.name}.started")
            past = mx.where(started[:, None, None], past, x[:, :1])
            step.write(f"{self.name}.started", mx.ones_like(started))
        joined = mx.concatenate([past, x], axis=1)
        step.write(f"{self.name}.past", joined[:, -self.past_positions :])
        return joined

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """``[n, T, inputs]`` to ``[n, T / stride, outputs]``; T is a multiple of the stride."""
        if self.past_positions:
            x = self._with_past(x, step)
        out = mx.conv1d(x, self.weight, self.shape.stride, 0, self.shape.dilation)
        return out if self.bias is None else out + self.bias


class CausalConvTranspose1d:
    """Transposed convolution whose kernel is twice its stride: a product, then an overlap-add of blocks.

    State ``{name}.tail`` ``[stride, outputs]``: the overlap owed to the next frame, without bias. With
    ``depthwise`` each channel has its own kernel and no other input.
    """

    def __init__(
        self, name: str, shape: ConvShape, weights: Weights, prefix: str, *, depthwise: bool = False
    ) -> None:
        """Take the layer's weights.

        Raises:
            UnsupportedError: another kernel, which no published Mimi has.
        """
        if shape.kernel != 2 * shape.stride:
            raise UnsupportedError(
                f"{prefix} has a kernel of {shape.kernel} over a stride of {shape.stride}; "
                "only twice the stride can be run"
            )
        self.name, self.shape, self.depthwise = name, shape, depthwise
        width = 1 if depthwise else shape.outputs
        published = weights.array(f"{prefix}.weight", (shape.inputs, width, shape.kernel))
        if depthwise:
            self.weight = mx.contiguous(published[:, 0].T)  # [kernel, channels]
        else:
            self.weight = mx.contiguous(published.swapaxes(1, 2).reshape(shape.inputs, -1))
        self.bias = weights.array(f"{prefix}.bias", (shape.outputs,)) if shape.bias else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield TensorSpec(f"{self.name}.tail", (self.shape.stride, self.shape.outputs), self.weight.dtype)

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """``[n, T, inputs]`` to ``[n, T * stride, outputs]``."""
        rows, count, _ = x.shape
        spread = x[:, :, None] * self.weight if self.depthwise else x @ self.weight
        blocks = spread.reshape(rows, count, 2, self.shape.stride, self.shape.outputs)
        owed = mx.concatenate([step.read(f"{self.name}.tail")[:, None], blocks[:, :, 1]], axis=1)
        step.write(f"{self.name}.tail", owed[:, -1])
        out = (blocks[:, :, 0] + owed[:, :-1]).reshape(rows, count * self.shape.stride, -1)
        return out if self.bias is None else out + self.bias
