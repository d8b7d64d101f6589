"""Rounding a matrix to 4 or 8 bits in blocks, as ONNX Runtime's MatMulNBits reads it.

A row ``[in]`` of a weight ``[out, in]`` is cut into blocks of a power of two. Each block has one float32
scale, and its integers lie around ``2^(bits - 1)``, so that no zero points are stored. Operator:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray

ByteArray = NDArray[np.uint8]

SMALLEST_BLOCK = 16
"""The operator's own limit."""

SEARCH_FACTORS = np.linspace(0.75, 1.05, 9, dtype=np.float32)
"""Scales tried for a block, relative to the one that just holds its largest weight."""

_ROWS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Blocks:
    """A rounded matrix ``[out, in]``.

    ``integers`` uint8 ``[out, in / block, block * bits / 8]``, of 4 bits the even element in the lower half;
    ``scales`` float32 ``[out, in / block]``. Where ``block`` does not divide ``in`` the last one is padded
    with zeros. ``error`` is how far the values are from the original, relative to it (norms).
    """

    integers: ByteArray
    scales: FloatArray
    bits: int
    block: int
    columns: int
    error: float

    def values(self) -> FloatArray:
        """What the integers stand for: float32 ``[out, in]``."""
        found = self.integers
        if self.bits == 4:
            found = np.stack([found & 15, found >> 4], axis=-1).reshape(*found.shape[:2], self.block)
        middle = 1 << (self.bits - 1)
        wide = (found.astype(np.float32) - middle) * self.scales[..., None]
        return wide.reshape(len(wide), -1)[:, : self.columns]


def fitting_block(columns: int, block: int) -> int:
    """The block for rows of ``columns`` weights: ``block``, or the smallest that still holds a whole row."""
    return min(block, max(SMALLEST_BLOCK, 1 << (columns - 1).bit_length()))


def round_matrix(weight: FloatArray, bits: int, block: int, *, search: bool) -> Blocks:
    """Round ``weight [out, in]`` to ``bits`` (4 or 8) in blocks of at most ``block``.

    Without ``search`` a block's scale is the one that just holds its largest weight; the side of zero which
    that weight is on gets the extra integer (as in GGUF's Q4_0). With it, the scale of least squared error
    among some smaller and larger ones, each refitted to the integers it gives (as GGUF's K quants do).
    Takes memory for a few hundred rows next to the result.
    """
    rows, columns = weight.shape
    block = fitting_block(columns, block)
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
        integers[part] = _pack(found, bits)
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


def _pack(found: FloatArray, bits: int) -> ByteArray:
    unsigned = (found + (1 << (bits - 1))).astype(np.uint8)
    if bits == 8:
        return unsigned
    packed: ByteArray = np.bitwise_or(unsigned[..., 0::2], np.left_shift(unsigned[..., 1::2], np.uint8(4)))
    return packed
