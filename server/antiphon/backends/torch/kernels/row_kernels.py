"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.rows` that make rows."""

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
def rounded_by(values, scale, inverse):
    """``rounded`` in fewer instructions, by ``inverse``, the scale's reciprocal rounded to nearest.

    A quotient and what it leaves, both exact (Markstein 1990), are the correctly rounded quotient.
    """
    quotient = values * inverse
    quotient = tl.fma(tl.fma(-quotient, scale, values), inverse, quotient)
    whole = (quotient + 12582912.0) - 12582912.0
    return tl.clamp(whole, -127.0, 127.0).to(tl.int8)


@triton.jit
def gated(x, value, dtype):
    """SiLU of ``x``, rounded, times ``value``, both float32, in ``dtype``."""
    return (tl.div_rn(x, 1.0 + tl.exp(-x)).to(dtype).to(tl.float32) * value).to(dtype)


@triton.jit
def is_last(ticket_ptr, programs):
    """Whether all other programs that share a ticket have come here; what they stored can be read then.

    The ticket is 0 before the first and after the last of them.
    """
    tl.debug_barrier()  # a release by one thread covers what all of the program's threads stored
    before = tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu")
    if before == programs - 1:
        tl.store(ticket_ptr, 0)
    return before == programs - 1


@triton.jit
def round_row(x_ptr, out_ptr, scale_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row to INT8, as :func:`prepare_rows` rounds it."""
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    step = tl.div_rn(tl.maximum(tl.max(tl.abs(x), 0), 1e-12), 127.0)
    tl.store(scale_ptr, step)
    tl.store(out_ptr + column, rounded(x, step), mask=column < WIDTH)


@triton.jit
def mean_square(at, DEPTH: tl.constexpr, LANES: tl.constexpr = 128, HALVINGS: tl.constexpr = 6):
    """The mean square of DEPTH values, added in an order that is the same whatever the program's warps."""
    lane = tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float32)
    for start in tl.static_range(0, DEPTH, LANES):
        x = tl.load(at + start + lane, mask=start + lane < DEPTH, other=0.0).to(tl.float32)
        total += x * x
    for _ in tl.static_range(0, HALVINGS):  # not tl.split: for that each thread would read half of them
        total = tl.sum(tl.reshape(total, (total.shape[0] // 2, 2)), 1)
    return tl.div_rn(tl.sum(total, 0), DEPTH * 1.0)  # of the two that are left


@triton.jit
def prepare_rows(
    x_ptr,
    alpha_ptr,
    out_ptr,
    scale_ptr,
    x_row_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
):
    """One row of a linear's input: normed, or gated with SiLU, or as it is; rounded to INT8 or not."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < WIDTH
    at = x_ptr + row * x_row_stride + column
    dtype = x_ptr.dtype.element_ty
    x = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
    if IS_NORMED:
        scale = tl.rsqrt(mean_square(x_ptr + row * x_row_stride, WIDTH) + eps)
        alpha = tl.load(alpha_ptr + column, mask=is_inside, other=0.0).to(tl.float32)
        x = (x * (alpha * scale)).to(dtype).to(tl.float32)
    if IS_GATED:
        value = tl.load(at + WIDTH, mask=is_inside, other=0.0).to(tl.float32)
        x = gated(x, value, dtype).to(tl.float32)
    if IS_ROUNDED:
        largest = tl.maximum(tl.max(tl.abs(x), 0), 1e-12)
        step = tl.div_rn(largest, 127.0)
        tl.store(scale_ptr + row, step)
        scale, inverse = (
            tl.full((BLOCK,), 0, tl.float32) + step,
            tl.full((BLOCK,), 0, tl.float32) + tl.div_rn(1.0, step),
        )
        tl.store(out_ptr + row * WIDTH + column, rounded_by(x, scale, inverse), mask=is_inside)
    else:
        tl.store(out_ptr + row * WIDTH + column, x.to(dtype), mask=is_inside)


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


@triton.jit
def embed_streams(
    token_ptr,
    audio_ptr,
    text_ptr,
    out_ptr,
    entries,
    width,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of the sum of one place's tokens, ``[n, 1 + STREAMS]`` with text first; -1 adds nothing.

    The audio streams' tables lie one behind the other.
    """
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(1).to(tl.int64)
    dtype = out_ptr.dtype.element_ty
    tokens_at = token_ptr + place * (STREAMS + 1)
    total = tl.zeros((BLOCK,), tl.float32)
    for stream in range(STREAMS):
        token = tl.load(tokens_at + 1 + stream)
        there = tl.where(token == -1, 0, width)
        at = audio_ptr + (stream * entries + tl.maximum(token, 0)) * width + column
        total += tl.load(at, mask=column < there, other=0.0).to(tl.float32)
    token = tl.load(tokens_at)
    there = tl.where(token == -1, 0, width)
    text = tl.load(text_ptr + tl.maximum(token, 0) * width + column, mask=column < there, other=0.0)
    out = total.to(dtype).to(tl.float32) + text.to(tl.float32)
    tl.store(out_ptr + place * width + column, out.to(dtype), mask=column < width)
