"""Layers without state, and the reader that gives them a file's tensors.

Affine groups: along each row, ``group_size`` numbers share a scale and a bias, value = scale * q + bias with
``q`` of ``bits`` bits, packed into uint32. The format is that of ``mx.quantize``, in which ``moshi_mlx``
publishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import mlx.core as mx

from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.architecture import gated_hidden
from antiphon.models.delays import ZERO


def load_arrays(path: Path) -> dict[str, mx.array]:
    """Every tensor of a safetensors file by its name; each is read when it is first evaluated.

    Raises:
        CheckpointFormatError: it is no safetensors file.
    """
    try:
        loaded = mx.load(str(path), format="safetensors")
    except RuntimeError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    assert isinstance(loaded, dict)
    return loaded


GROUP_SIZES = (32, 64, 128)
BITS = (2, 3, 4, 5, 6, 8)
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix ``[rows, columns]``; ``scales`` None means that ``weight`` is the matrix itself.

    Otherwise ``weight`` is uint32 ``[rows, columns * bits / 32]``, ``scales`` and ``biases``
    ``[rows, columns / group_size]``.
    """

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group_size: int = 0
    bits: int = 0

    def product(self, x: mx.array) -> mx.array:
        """``x W^T``: ``[..., columns]`` to ``[..., rows]``."""
        if self.scales is None:
            return x @ self.weight.T
        return mx.quantized_matmul(x, self.weight, self.scales, self.biases, True, self.group_size, self.bits)

    def rows(self, index: mx.array) -> mx.array:
        """The rows with the numbers ``index [...]``, as ``[..., columns]``."""
        if self.scales is None or self.biases is None:
            return self.weight[index]
        parts = (self.weight[index], self.scales[index], self.biases[index])
        return mx.dequantize(*parts, self.group_size, self.bits)

    def with_row(self, row: int, source: int) -> Matrix:
        """The same matrix with one row replaced by a copy of another."""
        order = mx.arange(self.weight.shape[0])
        order[row] = source
        if self.scales is None or self.biases is None:
            return replace(self, weight=self.weight[order])
        return replace(self, weight=self.weight[order], scales=self.scales[order], biases=self.biases[order])

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of the matrix."""
        return [part for part in (self.weight, self.scales, self.biases) if part is not None]


def stack(matrices: Sequence[Matrix]) -> Matrix:
    """One matrix whose rows are the rows of all ``matrices``, which have equal width.

    Raises:
        CheckpointFormatError: they are quantised in different ways.
    """
    first = matrices[0]
    kinds = {(matrix.bits, matrix.group_size) for matrix in matrices}
    if len(kinds) > 1:
        raise CheckpointFormatError(f"tables that are read together have (bits, group size) {sorted(kinds)}")
    parts = [mx.concatenate(list(same)) for same in zip(*(m.arrays for m in matrices), strict=True)]
    scales, biases = parts[1:] if len(parts) > 1 else (None, None)
    return replace(first, weight=parts[0], scales=scales, biases=biases)


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer: ``y = x W^T (+ b)``."""

    matrix: Matrix
    bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        """Map ``[..., in]`` to ``[..., out]``."""
        out = self.matrix.product(x)
        return out if self.bias is None else out + self.bias


class Weights:
    """A file's tensors under this package's names, in the compute dtype; each may be used several times.

    ``where`` names the file in errors.
    """

    def __init__(self, arrays: Mapping[str, mx.array], where: str, dtype: mx.Dtype) -> None:
        """Use ``arrays``."""
        self._arrays, self._where, self.dtype = arrays, where, dtype
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self._arrays

    def array(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """The unquantised tensor ``name``.

        Raises:
            CheckpointFormatError: the tensor is missing, or has another shape.
        """
        found = self._take(name)
        if tuple(found.shape) != shape:
            raise CheckpointFormatError(
                f"{self._where}: {name} is {tuple(found.shape)}, the configuration says {shape}"
            )
        return found.astype(self.dtype)

    def matrix(self, name: str, rows: int | None, columns: int) -> Matrix:
        """The matrix ``{name}.weight``, quantised or not; if ``rows`` is None, the file determines the number
        of rows.

        Raises:
            CheckpointFormatError: as :meth:`array`.
        """
        if rows is None:
            rows = self._take(f"{name}.weight").shape[0]
        if not self.has(f"{name}.scales"):
            return Matrix(self.array(f"{name}.weight", (rows, columns)))
        weight, scales, biases = (self._take(f"{name}.{part}") for part in ("weight", "scales", "biases"))
        bits, bits_rest = divmod(weight.shape[-1] * _WORD_BITS, columns)
        group_size, group_rest = divmod(columns, scales.shape[-1])
        shapes_fit = weight.shape[0] == rows and scales.shape == biases.shape == (rows, scales.shape[-1])
        if bits_rest or group_rest or not shapes_fit or bits not in BITS or group_size not in GROUP_SIZES:
            raise CheckpointFormatError(
                f"{self._where}: {name} is {tuple(weight.shape)} with scales {tuple(scales.shape)}, "
                f"the configuration says {(rows, columns)}, in groups of {', '.join(map(str, GROUP_SIZES))}"
            )
        return Matrix(weight, scales.astype(self.dtype), biases.astype(self.dtype), group_size, bits)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        """The linear layer ``name``. Raises CheckpointFormatError as :meth:`array`."""
        added = self.array(f"{name}.bias", (outputs,)) if bias else None
        return Linear(self.matrix(name, outputs, inputs), added)

    def finish(self, ignored: tuple[str, ...] = ()) -> None:
        """Check that every tensor was used, except for names that begin with ``ignored``.

        Raises:
            CheckpointFormatError: some were not; the message has their number and three names.
        """
        left = sorted(n for n in self._arrays if n not in self._taken and not n.startswith(ignored))
        if left:
            raise CheckpointFormatError(f"{self._where}: {len(left)} tensors unknown {left[:3]}")

    def _take(self, name: str) -> mx.array:
        if name not in self._arrays:
            raise CheckpointFormatError(f"{self._where}: tensor missing: {name}")
        self._taken.add(name)
        return self._arrays[name]


_EPS: Final[Mapping[str, float]] = {
    "layer_norm": 1e-5,
    "layer_norm_f32": 1e-8,
    "rms_norm": 1e-5,
    "rms_norm_f32": 1e-8,
}


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation, or root-mean-square normalisation if ``bias`` is None; mlx computes both in
    float32."""

    weight: mx.array
    bias: mx.array | None
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        """Map ``[n, T, dim]`` to the same shape."""
        if self.bias is None:
            return mx.fast.rms_norm(x, self.weight, self.eps)
        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)


def load_norm(kind: str, weights: Weights, name: str, dim: int) -> Norm:
    """The normalisation layer for ``kind``, the value of a configuration's ``norm``.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if kind not in _EPS:
        raise UnsupportedError(f"norm is {kind!r}; it can be one of {', '.join(_EPS)}")
    bias = weights.array(f"{name}.bias", (dim,)) if kind.startswith("layer") else None
    return Norm(weights.array(f"{name}.weight", (dim,)), bias, _EPS[kind])


def rotation(positions: mx.array, head_dim: int, max_period: float) -> tuple[mx.array, mx.array]:
    """The cosines and sines of the rotary embedding, float32 ``[n, T, 1, D / 2]``, for int ``positions [n,
    T]``.
    """
    steps = mx.arange(head_dim // 2, dtype=mx.float32)
    frequencies = mx.exp(steps * (-math.log(max_period) * 2 / head_dim))
    angles = frequencies * positions.astype(mx.float32)[:, :, None, None]
    return mx.cos(angles), mx.sin(angles)


def rotate(x: mx.array, cos: mx.array, sin: mx.array, *, interleaved: bool) -> mx.array:
    """Apply the rotary embedding to ``x [n, T, H, D]``."""
    wide = x.astype(mx.float32)
    if interleaved:
        even, odd = wide[..., 0::2], wide[..., 1::2]
    else:
        even, odd = mx.split(wide, 2, axis=-1)
    turned = [even * cos - odd * sin, even * sin + odd * cos]
    if interleaved:
        return mx.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)
    return mx.concatenate(turned, axis=-1).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class TokenEmbedding:
    """One stream's table ``[entries, width]``, with a projection to ``dim`` if the width is lower.

    With ``pair`` a token combines two tokens: ``first + entries * (second + 1)``. Both use the table, each
    with its own projection. A second token of -1 adds nothing (tts-1.6b's text of two voices).
    """

    table: Matrix
    low_rank: Linear | None = None
    pair: tuple[Linear, Linear] | None = None

    def __call__(self, tokens: mx.array) -> mx.array:
        """Int32 ``[...]`` to ``[..., dim]``."""
        is_zero, tokens = (tokens == ZERO)[..., None], mx.maximum(tokens, 0)
        if self.pair is not None:
            entries = self.table.weight.shape[0]
            second = tokens // entries - 1
            left, right = self.table.rows(tokens % entries), self.table.rows(mx.maximum(second, 0))
            left, right = (project(part) for project, part in zip(self.pair, (left, right), strict=True))
            nothing = mx.array(0, left.dtype)
            return mx.where(is_zero, nothing, left + mx.where((second < 0)[..., None], nothing, right))
        found = self.table.rows(tokens)
        found = mx.where(is_zero, mx.array(0, found.dtype), found)
        return found if self.low_rank is None else self.low_rank(found)


def load_embedding(
    weights: Weights, name: str, entries: int, dim: int, low_rank: int | None = None, *, demux: bool = False
) -> TokenEmbedding:
    """The embedding ``name``; with ``demux`` each token combines two.

    Raises:
        CheckpointFormatError: the file has another shape.
    """
    width = low_rank or dim
    projection = weights.linear(f"{name}.low_rank", low_rank, dim) if low_rank else None
    pair = None
    if demux:
        pair = weights.linear(f"{name}.out1", width, dim), weights.linear(f"{name}.out2", width, dim)
    return TokenEmbedding(weights.matrix(name, entries, width), projection, pair)


class StreamEmbeddings:
    """The embedding tables of all audio streams in one array; the entries of a frame are added up."""

    def __init__(self, weights: Weights, prefix: str, streams: int, entries: int, dim: int) -> None:
        """Take the tables ``{prefix}.0`` and so on."""
        self._first = mx.arange(streams) * entries
        self.table = stack([weights.matrix(f"{prefix}.{i}", entries, dim) for i in range(streams)])

    def __call__(self, tokens: mx.array) -> mx.array:
        """Int32 ``[n, streams]`` to ``[n, dim]``."""
        found = self.table.rows(mx.maximum(tokens, 0) + self._first)
        return mx.where((tokens == ZERO)[..., None], mx.array(0, found.dtype), found).sum(axis=1)


Activation: TypeAlias = Callable[[mx.array], mx.array]


def gelu(x: mx.array) -> mx.array:
    """The exact GELU, with the error function; ``moshi_mlx`` uses an approximation, so its Mimi differs
    slightly.
    """
    return x * (1 + mx.erf(x * math.sqrt(0.5))) * 0.5


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": lambda x: x * mx.sigmoid(x),
    "gelu": gelu,
    "relu": lambda x: mx.maximum(x, 0),
    "sigmoid": mx.sigmoid,
    "tanh": mx.tanh,
}


@dataclass(frozen=True, slots=True)
class PlainFeedForward:
    """A feed-forward block without gate: ``linear2(gelu(linear1(x)))``."""

    linear1: Linear
    linear2: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """Map ``[..., dim]`` to the same shape."""
        return self.linear2(gelu(self.linear1(x)))


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """A gated feed-forward block (Shazeer 2020): ``linear_out(act(a) * b)``, with ``a, b`` the halves of
    ``linear_in(x)``.
    """

    activation: Activation
    linear_in: Linear
    linear_out: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """Map ``[..., dim]`` to the same shape."""
        gate, value = mx.split(self.linear_in(x), 2, axis=-1)
        return self.linear_out(self.activation(gate) * value)


FeedForward: TypeAlias = PlainFeedForward | GatedFeedForward


def load_feed_forward(gating: str, weights: Weights, name: str, dim: int, feed_forward: int) -> FeedForward:
    """The feed-forward block for ``gating``, the value of a configuration.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if gating == "none":
        return PlainFeedForward(
            weights.linear(f"{name}.linear1", dim, feed_forward),
            weights.linear(f"{name}.linear2", feed_forward, dim),
        )
    if gating not in ACTIVATIONS:
        raise UnsupportedError(f"gating is {gating!r}; it can be none, {', '.join(ACTIVATIONS)}")
    hidden = gated_hidden(dim, feed_forward)
    return GatedFeedForward(
        ACTIVATIONS[gating],
        weights.linear(f"{name}.linear_in", dim, 2 * hidden),
        weights.linear(f"{name}.linear_out", hidden, dim),
    )
