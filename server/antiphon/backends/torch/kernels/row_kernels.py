"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.rows`."""

# A kernel's arguments take no Python types, and its constants are capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def rounded(values, scale):
    """Float32 values over their scale, to the nearest of -127 .. 127, halves to even, as torch.round."""
    whole = tl.div_rn(values, scale)
    whole = (whole + 12582912.0) - 12582912.0  # 1.5 * 2^23: no fraction is left at that size
    return tl.clamp(whole, -127.0, 127.0).to(tl.int8)


@triton.jit
def prepare_rows(
    x_ptr,
    alpha_ptr,
    out_ptr,
    scale_ptr,
    x_row_stride,
    width,
    eps,
    BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
):
    """One row of a linear's input: normed, or gated with SiLU, or as it is; rounded to INT8 or not."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < width
    at = x_ptr + row * x_row_stride + column
    dtype = x_ptr.dtype.element_ty
    x = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
    if IS_NORMED:
        scale = tl.rsqrt(tl.div_rn(tl.sum(x * x, 0), width.to(tl.float32)) + eps)
        alpha = tl.load(alpha_ptr + column, mask=is_inside, other=0.0).to(tl.float32)
        x = (x * (alpha * scale)).to(dtype).to(tl.float32)
    if IS_GATED:
        value = tl.load(at + width, mask=is_inside, other=0.0).to(tl.float32)
        gate = tl.div_rn(x, 1.0 + tl.exp(-x)).to(dtype).to(tl.float32)
        x = (gate * value).to(dtype).to(tl.float32)
    if IS_ROUNDED:
        largest = tl.maximum(tl.max(tl.abs(x), 0), 1e-12)
        step = tl.div_rn(largest, 127.0)
        tl.store(scale_ptr + row, step)
        tl.store(out_ptr + row * width + column, rounded(x, step), mask=is_inside)
    else:
        tl.store(out_ptr + row * width + column, x.to(dtype), mask=is_inside)


@triton.jit
def multiply_rows(
    rows_ptr,
    row_scale_ptr,
    weight_ptr,
    scale_ptr,
    residual_ptr,
    out_ptr,
    count,
    columns,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_ADDED: tl.constexpr,
):
    """A tile of int8 rows times int8 weight: exact in int32, scaled back in float32, a residual added.

    Tiles of the same columns are neighbours, so that all but the first find the weight in the cache.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < count, column < columns
    rows_at = rows_ptr + row.to(tl.int64)[:, None] * DEPTH
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * DEPTH
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, DEPTH, BLOCK):
        depth = start + tl.arange(0, BLOCK)[None, :]
        is_inside = depth < DEPTH
        x = tl.load(rows_at + depth, mask=is_row[:, None] & is_inside, other=0)
        weight = tl.load(weight_at + depth, mask=is_column[:, None] & is_inside, other=0)
        total = tl.dot(x, tl.trans(weight), total, out_dtype=tl.int32)
    scale = tl.load(scale_ptr + column, mask=is_column, other=0.0)
    row_scale = tl.load(row_scale_ptr + row, mask=is_row, other=0.0)
    out = (total.to(tl.float32) * scale[None, :]) * row_scale[:, None]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    dtype = out_ptr.dtype.element_ty
    if IS_ADDED:
        residual = tl.load(residual_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        out = out.to(dtype).to(tl.float32) + residual
    tl.store(out_ptr + at, out.to(dtype), mask=is_inside)


@triton.jit
def embed_rows(
    token_ptr,
    table_ptr,
    added_ptr,
    out_ptr,
    width,
    added_row_stride,
    BLOCK: tl.constexpr,
    IS_ADDED: tl.constexpr,
):
    """A piece of one token's entry in a table, and what is added to it; -1 has none, and gets zeros."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    token = tl.load(token_ptr + row)
    there = tl.where(token == -1, 0, width)
    value = tl.load(table_ptr + tl.maximum(token, 0) * width + column, mask=column < there, other=0.0)
    if IS_ADDED:
        added = tl.load(added_ptr + row * added_row_stride + column, mask=column < width, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + column, value, mask=column < width)
