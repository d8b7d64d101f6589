"""Tensors of ONNX graphs: rounded to 4 or 8 bits in blocks, and stored in data files one at a time.

A graph's large tensors are in one file next to it; https://onnx.ai/onnx/repo-docs/ExternalData.html.

Blocks have the format of ONNX Runtime's MatMulNBits. A row ``[in]`` of a weight ``[out, in]`` is cut into
blocks of a power of two, or is a single block. Each block has one float32 scale, and its integers are centred
at ``2^(bits - 1)``, so that no zero points are stored. Operator:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from antiphon.arrays import FloatArray
from antiphon.errors import CheckpointFormatError

ByteArray = NDArray[np.uint8]

SMALLEST_BLOCK = 16
"""Smallest block of the operator."""

SEARCH_FACTORS = np.linspace(0.75, 1.05, 9, dtype=np.float32)
"""Scales that are tried for a block, relative to the smallest scale that holds its largest weight."""

_ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Blocks:
    """A rounded matrix ``[out, in]``.

    ``integers`` uint8 ``[out, in / block, block * bits / 8]``, with 4 bits the even element is in the lower
    half of a byte; ``scales`` float32 ``[out, in / block]``. If ``block`` does not divide ``in``, the last
    block is padded with zeros. ``error`` is the relative error of the values (a ratio of norms).
    """

    integers: ByteArray
    scales: FloatArray
    bits: int
    block: int
    columns: int
    error: float

    def values(self) -> FloatArray:
        """The values that the integers represent: float32 ``[out, in]``."""
        found = self.integers
        if self.bits == 4:
            found = np.stack([found & 15, found >> 4], axis=-1).reshape(*found.shape[:2], self.block)
        middle = 1 << (self.bits - 1)
        wide = (found.astype(np.float32) - middle) * self.scales[..., None]
        return wide.reshape(len(wide), -1)[:, : self.columns]

    def signed(self) -> NDArray[np.int8]:
        """The integers of rows of one block with 8 bits: int8 ``[in, out]``, centred at 0."""
        return np.ascontiguousarray((self.integers[:, 0] ^ 128).view(np.int8).T)


def fitting_block(columns: int, block: int) -> int:
    """The length of blocks for rows of ``columns`` weights: ``block``, or for shorter rows the smallest
    length that holds a whole row.
    """
    return min(block, max(SMALLEST_BLOCK, 1 << (columns - 1).bit_length()))


def round_matrix(weight: FloatArray, bits: int, block: int | None, *, search: bool) -> Blocks:
    """Round ``weight [out, in]`` to ``bits`` (4 or 8) in blocks of at most ``block``; None: a row is one
    block.

    Without ``search`` a block's scale is just large enough for its largest weight; the sign of that weight
    gets the extra integer (as in GGUF's Q4_0). With ``search`` some smaller and larger scales are tried, each
    refitted to its integers, and the one with the least squared error is used (as in GGUF's K quants). The
    function takes memory for a few hundred rows in addition to the result.
    """
    rows, columns = weight.shape
    block = columns if block is None else fitting_block(columns, block)
    count = -(-columns // block)
    integers = np.empty((rows, count, block * bits // 8), np.uint8)
    scales = np.empty((rows, count), np.float32)
    wrong = whole = 0.0
    for first in range(0, rows, _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        padded = np.zeros((len(weight[part]), count * block), np.float32)
        padded[:, :columns] = weight[part]
        blocks = padded.reshape(-1, count, block)
        whole += float(np.square(blocks, dtype=np.float64).sum())
        found, scale = _search(blocks, bits) if search else _nearest(blocks, _widest(blocks, bits), bits)
        wrong += float(np.square(found * scale - blocks, dtype=np.float64).sum())
        unsigned = (found + (1 << (bits - 1))).astype(np.uint8)
        integers[part] = unsigned if bits == 8 else unsigned[..., 0::2] | (unsigned[..., 1::2] << np.uint8(4))
        scales[part] = scale[..., 0]
    error = (wrong / whole) ** 0.5 if whole else 0.0
    return Blocks(integers, scales, bits, block, columns, error)


def _widest(blocks: FloatArray, bits: int) -> FloatArray:
    """The scales ``[..., 1]`` (of either sign) that put each block's largest weight on the lowest integer."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scale: FloatArray = largest / np.float32(-(1 << (bits - 1)))
    return np.where(scale == 0, np.float32(1), scale)


def _nearest(blocks: FloatArray, scale: FloatArray, bits: int) -> tuple[FloatArray, FloatArray]:
    limit = 1 << (bits - 1)
    return np.clip(np.rint(blocks / scale), -limit, limit - 1), scale


def _search(blocks: FloatArray, bits: int) -> tuple[FloatArray, FloatArray]:
    widest = _widest(blocks, bits)
    best, best_scale = _nearest(blocks, widest, bits)
    least = np.square(best * best_scale - blocks).sum(axis=-1, keepdims=True)
    for factor in SEARCH_FACTORS:
        found, scale = _nearest(blocks, widest * factor, bits)
        squares = np.square(found).sum(axis=-1, keepdims=True)
        fitted = (found * blocks).sum(axis=-1, keepdims=True) / np.maximum(squares, 1)
        found, scale = _nearest(blocks, np.where(fitted == 0, scale, fitted), bits)
        wrong = np.square(found * scale - blocks).sum(axis=-1, keepdims=True)
        better = wrong < least
        best, best_scale = np.where(better, found, best), np.where(better, scale, best_scale)
        least = np.minimum(least, wrong)
    return best, best_scale


Array = NDArray[Any]

_SMALLEST_BYTES = 1024
"""Bytes below which tensors are stored in the graph itself."""
_ALIGNMENT_BYTES = 65536
"""Alignment of tensors, so that runtimes can map them into memory on every system."""


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in a separate file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def tensor_bytes(tensor: TensorProto) -> int:
    """The size of a tensor's data."""
    elements = int(np.prod(tensor.dims, dtype=np.int64))
    return elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def read_tensor(tensor: TensorProto, folder: Path) -> Array:
    """A tensor's values; values in a data file become a memory-mapped view.

    Raises:
        CheckpointFormatError: the data file is missing, too short, or not next to the graph.
    """
    if not is_external(tensor):
        found: Array = numpy_helper.to_array(tensor)
        return found
    where = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / where.get("location", "")
    if path.parent != folder or not path.is_file():
        raise CheckpointFormatError(f"{tensor.name} should be in {path}, and there is no such file")
    offset, size = int(where.get("offset", 0)), path.stat().st_size
    if offset + tensor_bytes(tensor) > size:
        raise CheckpointFormatError(
            f"{tensor.name} should be {tensor_bytes(tensor):,} bytes at {offset:,} of {path}, "
            f"which has {size:,} bytes"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(tensor.dims))


class TensorWriter:
    """Makes tensors; their data is appended to ``file``, or stored in the tensors if ``file`` is None."""

    def __init__(self, file: BinaryIO | None, location: str) -> None:
        """Write to ``file``, which the graph refers to as ``location``."""
        self._file, self._location = file, location

    def put(self, name: str, values: Array) -> TensorProto:
        """Make a tensor of these values."""
        if self._file is None or values.nbytes < _SMALLEST_BYTES:
            return numpy_helper.from_array(np.ascontiguousarray(values), name)
        offset = -(-self._file.tell() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        dtype = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = TensorProto(name=name, data_type=dtype, dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        where = {"location": self._location, "offset": offset, "length": values.nbytes}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


@contextmanager
def writing_data(graph: Path, *, external: bool) -> Iterator[TensorWriter]:
    """A tensor writer for the graph ``graph``; ``external`` data goes into ``graph`` + ".data"."""
    if not external:
        yield TensorWriter(None, "")
        return
    path = graph.with_name(graph.name + ".data")
    with path.open("wb") as file:
        yield TensorWriter(file, path.name)
