"""Matrices, plain or rounded to groups, and the reader that hands a file's tensors to the modules.

Affine groups: along each row, ``group_size`` numbers share a scale and a bias, value = scale * q + bias with
``q`` of ``bits`` bits, packed into uint32. This is ``mx.quantize``, and what ``moshi_mlx`` publishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from antiphon.errors import CheckpointFormatError

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
        """The rows of an index ``[...]``, as ``[..., columns]``."""
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
        """What it is made of."""
        return [part for part in (self.weight, self.scales, self.biases) if part is not None]


def stack(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices of equal width below each other.

    Raises:
        CheckpointFormatError: they are rounded in different ways.
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
    """``y = x W^T (+ b)``."""

    matrix: Matrix
    bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        """``[..., in]`` to ``[..., out]``."""
        out = self.matrix.product(x)
        return out if self.bias is None else out + self.bias


class Weights:
    """A file's tensors under our names, in the dtype to compute in; each is taken once, or several times.

    ``where`` says in errors what file this is.
    """

    def __init__(self, arrays: Mapping[str, mx.array], where: str, dtype: mx.Dtype) -> None:
        """Hand out ``arrays``."""
        self._arrays, self._where, self.dtype = arrays, where, dtype
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._arrays

    def array(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """A tensor of plain numbers.

        Raises:
            CheckpointFormatError: there is none, or it has another shape.
        """
        found = self._take(name)
        if tuple(found.shape) != shape:
            raise CheckpointFormatError(
                f"{self._where}: {name} is {tuple(found.shape)}, the configuration says {shape}"
            )
        return found.astype(self.dtype)

    def matrix(self, name: str, rows: int | None, columns: int) -> Matrix:
        """The matrix ``{name}.weight``, rounded or not; ``rows`` None leaves their number to the file.

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
        """Check that nothing is left over but names that begin with ``ignored``.

        Raises:
            CheckpointFormatError: with how many there are, and three of their names.
        """
        left = sorted(n for n in self._arrays if n not in self._taken and not n.startswith(ignored))
        if left:
            raise CheckpointFormatError(f"{self._where}: {len(left)} tensors unknown {left[:3]}")

    def _take(self, name: str) -> mx.array:
        if name not in self._arrays:
            raise CheckpointFormatError(f"{self._where}: tensor missing: {name}")
        self._taken.add(name)
        return self._arrays[name]
