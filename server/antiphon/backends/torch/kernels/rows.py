"""Linear layers on a GPU in two launches: one kernel prepares the input's rows, one multiplies. For a few
rows one launch is enough: every program prepares all rows, which costs less than a second launch.

Rounding is that of :mod:`antiphon.backends.torch.quantised`. A kernel that computes rows (a norm, a gate, an
attention) also rounds them. The kernel that multiplies also scales the product back and adds the residual, so
no int32 leaves the registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.kernels.linear_kernels import (
    embed_rows,
    embed_streams,
    make_and_multiply,
    multiply_pairs,
    multiply_rows,
    prepare_rows,
)
from antiphon.backends.torch.modules.layers import (
    GatedFeedForward,
    Linear,
    RMSNorm,
    StreamEmbeddings,
    TokenEmbedding,
)
from antiphon.backends.torch.quantised import Int4Linear, Int8Linear
from antiphon.models.costs import makes_rows, paired_tile_of, tile_of

MANY_ELEMENTS = 8192
"""Row length from which a program has 32 warps instead of 8. With 8 warps such a row would take 1,400
instructions.
"""

PIECE = 1024
"""Elements of a program of the simplest kernels."""


@dataclass(frozen=True, slots=True)
class LinearInput:
    """A linear's input: ``values [n, in]``, int8 with ``scale`` float32 ``[n]``, or unrounded with ``scale``
    None.

    ``dtype`` is the dtype of the values before any rounding. ``is_unmade``: the kernel of the product applies
    the ``norm``, if there is one, and the rounding.
    """

    values: Tensor
    scale: Tensor | None
    dtype: torch.dtype
    is_unmade: bool = False
    norm: RMSNorm | None = None

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """The rounded values and their scale; the input must be rounded."""
        assert self.scale is not None
        return self.values, self.scale


def rounds(linear: nn.Module) -> bool:
    """Whether the kernels round the input of a linear layer."""
    if isinstance(linear, Int4Linear):
        return linear.is_paired
    return isinstance(linear, Int8Linear) and linear.is_plain


def _makes(x: Tensor, linear: nn.Module) -> bool:
    """Whether the product of a linear norms and rounds these rows itself."""
    return isinstance(linear, Int8Linear) and rounds(linear) and makes_rows(*x.shape)


def plain_rows(x: Tensor, linear: nn.Module) -> LinearInput:
    """Prepare rows ``[n, in]`` for a linear. Many rows that the linear needs rounded take one launch, others
    none.
    """
    if not rounds(linear):
        return LinearInput(x, None, x.dtype)
    return _unmade(x) if _makes(x, linear) else _prepared(x, x.shape[1], is_rounded=True)


def normed_rows(x: Tensor, norm: nn.Module, linear: nn.Module) -> LinearInput:
    """Prepare normed rows ``[n, in]`` for a linear; the norm of our models needs at most one launch."""
    if isinstance(norm, RMSNorm) and norm.in_float32:
        if _makes(x, linear):
            return _unmade(x, norm)
        return _prepared(x, x.shape[1], norm=norm, is_rounded=rounds(linear))
    return plain_rows(norm(x[:, None])[:, 0], linear)


def widened_rows(block: GatedFeedForward, rows: LinearInput) -> LinearInput:
    """Turn the input rows of ``linear_in`` into the input rows of ``linear_out``. For a few rows the kernel
    of the product also gates them; more rows need a launch of their own.
    """
    if rows.is_unmade and block.activation is functional.silu and rounds(block.linear_out):
        assert isinstance(block.linear_in, Int8Linear)
        return plain_rows(_made_and_multiplied(block.linear_in, rows, is_gated=True), block.linear_out)
    return gated_rows(linear_rows(block.linear_in, rows), block)


def gated_rows(projected: Tensor, block: GatedFeedForward) -> LinearInput:
    """Gate the two halves of ``projected [n, 2 * hidden]`` as input rows of ``linear_out``; SiLU needs one
    launch.
    """
    linear, hidden = block.linear_out, projected.shape[1] // 2
    if block.activation is functional.silu:
        return _prepared(projected, hidden, is_gated=True, is_rounded=rounds(linear))
    gate, value = projected.chunk(2, dim=1)
    return plain_rows(block.activation(gate) * value, linear)


def empty_rows(like: Tensor) -> LinearInput:
    """Allocate rounded rows of the shape of ``like``; the kernel before the product fills them."""
    scales = like.new_empty(like.shape[0], dtype=torch.float32)
    return LinearInput(like.new_empty(like.shape, dtype=torch.int8), scales, like.dtype)


def _unmade(x: Tensor, norm: RMSNorm | None = None) -> LinearInput:
    assert x.stride(1) == 1
    return LinearInput(x, None, x.dtype, is_unmade=True, norm=norm)


def _prepared(
    x: Tensor, width: int, *, norm: RMSNorm | None = None, is_gated: bool = False, is_rounded: bool
) -> LinearInput:
    assert x.stride(1) == 1
    count = x.shape[0]
    out = x.new_empty(count, width, dtype=torch.int8 if is_rounded else x.dtype)
    scale = x.new_empty(count, dtype=torch.float32) if is_rounded else None
    block = triton.next_power_of_2(width)
    prepare_rows[(count,)](
        x,
        x if norm is None else norm.alpha,
        out,
        x if scale is None else scale,
        x.stride(0),
        0.0 if norm is None else norm.eps,
        WIDTH=width,
        BLOCK=block,
        IS_NORMED=norm is not None,
        IS_GATED=is_gated,
        IS_ROUNDED=is_rounded,
        num_warps=32 if block >= MANY_ELEMENTS else 8,
        enable_fp_fusion=False,
    )
    return LinearInput(out, scale, x.dtype)


def linear_rows(linear: nn.Module, rows: LinearInput, residual: Tensor | None = None) -> Tensor:
    """Map ``[n, in]`` to ``[n, out]`` in the rows' original dtype, with ``residual [n, out]`` added."""
    if isinstance(linear, Int8Linear) and rows.is_unmade:
        if linear.bias is None:
            return _made_and_multiplied(linear, rows, residual)
        rows = _prepared(rows.values, rows.values.shape[1], norm=rows.norm, is_rounded=True)
    if isinstance(linear, Int8Linear | Int4Linear) and rows.scale is not None:
        if linear.bias is None:
            return multiply(linear, rows.values, rows.scale, rows.dtype, residual)
        out = (multiply(linear, rows.values, rows.scale, torch.float32) + linear.bias).to(rows.dtype)
    elif isinstance(linear, Linear) and linear.bias is None and residual is not None:
        return torch.addmm(residual, rows.values, linear.weight.t())
    else:
        out = linear(rows.values)
    return out if residual is None else residual + out


def multiply(
    linear: Int8Linear | Int4Linear,
    values: Tensor,
    row_scale: Tensor,
    dtype: torch.dtype,
    residual: Tensor | None = None,
) -> Tensor:
    """Multiply int8 ``[n, in]`` by the weight, to ``[n, out]`` in ``dtype``, the dtype of the residual."""
    (count, depth), columns = values.shape, linear.out_features
    out = values.new_empty(count, columns, dtype=dtype)
    added = out if residual is None else residual.contiguous()
    given = values, row_scale, linear.weight, linear.scale, added, out, count, columns
    if isinstance(linear, Int4Linear):
        tile, pairs = paired_tile_of(count), depth // (2 * linear.block)
        multiply_pairs[(triton.cdiv(count, tile.rows), triton.cdiv(columns, tile.columns))](
            *given, pairs, ROWS=tile.rows, COLUMNS=tile.columns, BLOCK=linear.block,
            TURN=math.gcd(pairs, tile.depth // linear.block), IS_ADDED=residual is not None,
            num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip
        return out
    tile = tile_of(count, columns)
    multiply_rows[(triton.cdiv(count, tile.rows), triton.cdiv(columns, tile.columns))](
        *given, DEPTH=depth, ROWS=tile.rows, COLUMNS=tile.columns, BLOCK=tile.depth,
        IS_ADDED=residual is not None, num_warps=tile.warps, num_stages=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def rows_through(linear: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer to ``x [n, in]`` by kernels: ``[n, out]``."""
    return linear_rows(linear, plain_rows(x, linear))


def _made_and_multiplied(
    linear: Int8Linear, rows: LinearInput, residual: Tensor | None = None, *, is_gated: bool = False
) -> Tensor:
    """A few rows ``[n, in]``, normed and rounded in the product, to ``[n, out]``; gated, to half of it."""
    x, norm, (count, depth) = rows.values, rows.norm, rows.values.shape
    columns = linear.out_features // 2 if is_gated else linear.out_features
    out = x.new_empty(count, columns)
    added = out if residual is None else residual.contiguous()
    tile, places = tile_of(count, columns), triton.next_power_of_2(count)
    make_and_multiply[(triton.cdiv(columns, tile.columns),)](
        x, x if norm is None else norm.alpha, linear.weight, linear.scale, added, out,
        x.stride(0), count, columns, 0.0 if norm is None else norm.eps,
        DEPTH=depth, PLACES=places, ROWS=tile.rows, COLUMNS=tile.columns, BLOCK=tile.depth,
        IS_NORMED=norm is not None, IS_ADDED=residual is not None, IS_GATED=is_gated,
        num_warps=tile.warps, num_stages=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def embedded(embedding: TokenEmbedding, tokens: Tensor, added: Tensor | None = None) -> Tensor:
    """Embed int64 tokens ``[n]`` as ``[n, dim]``, plus ``added [n, dim]``. For tokens that combine two,
    torch's operations are used.
    """
    if embedding.out1 is not None:
        found: Tensor = embedding(tokens)
        return found if added is None else found + added
    table, count, low_rank = embedding.weight, tokens.shape[0], embedding.low_rank
    out = table.new_empty(count, table.shape[1])
    beside = out if added is None or low_rank is not None else added
    embed_rows[(triton.cdiv(table.shape[1], PIECE), count)](
        tokens.contiguous(), table, beside, out, table.shape[1], beside.stride(0),
        BLOCK=PIECE, IS_ADDED=beside is not out, enable_fp_fusion=False,
    )  # fmt: skip
    return out if low_rank is None else linear_rows(low_rank, LinearInput(out, None, out.dtype), added)


def embedded_streams(audio: StreamEmbeddings, text: TokenEmbedding, tokens: Tensor) -> Tensor:
    """Embed int64 tokens ``[n, 1 + streams]``, text first, as the sum of their entries ``[n, dim]``."""
    table, count = audio.weight, tokens.shape[0]
    out = table.new_empty(count, table.shape[1])
    embed_streams[(triton.cdiv(table.shape[1], PIECE), count)](
        tokens.contiguous(), table, text.weight, out, audio.entries, table.shape[1],
        STREAMS=audio.streams, BLOCK=PIECE, enable_fp_fusion=False,
    )  # fmt: skip
    return out
