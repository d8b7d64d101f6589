"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.rows`, which prepare rows and multiply them."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def rounded(values, scale):
    """Divide float32 values by their scale and round to the nearest of -127 .. 127, halves to even, like
    torch.round.
    """
    whole = tl.div_rn(values, scale)
    whole = (whole + 12582912.0) - 12582912.0  # 1.5 * 2^23: no fraction remains at that size
    return tl.clamp(whole, -127.0, 127.0).to(tl.int8)


@triton.jit
def rounded_by(values, scale, inverse):
    """Compute :func:`rounded` in fewer instructions, with ``inverse``, the scale's reciprocal rounded to
    nearest.

    An exact quotient and its exact remainder give the correctly rounded quotient (Markstein 1990).
    """
    quotient = values * inverse
    quotient = tl.fma(tl.fma(-quotient, scale, values), inverse, quotient)
    whole = (quotient + 12582912.0) - 12582912.0
    return tl.clamp(whole, -127.0, 127.0).to(tl.int8)


@triton.jit
def gated(x, value, dtype):
    """Return SiLU of ``x``, rounded to ``dtype``, times ``value``, in ``dtype``; both inputs are float32."""
    return (tl.div_rn(x, 1.0 + tl.exp(-x)).to(dtype).to(tl.float32) * value).to(dtype)


@triton.jit
def is_last(ticket_ptr, programs):
    """Whether all other programs with this ticket have arrived; then their stores can be read.

    The ticket is 0 before the first program and after the last one.
    """
    tl.debug_barrier()  # a release by one thread covers the stores of all the program's threads
    before = tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu")
    if before == programs - 1:
        tl.store(ticket_ptr, 0)
    return before == programs - 1


@triton.jit
def round_row(x_ptr, out_ptr, scale_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Round one row to INT8, as :func:`prepare_rows` does."""
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    step = tl.div_rn(tl.maximum(tl.max(tl.abs(x), 0), 1e-12), 127.0)
    tl.store(scale_ptr, step)
    tl.store(out_ptr + column, rounded(x, step), mask=column < WIDTH)


@triton.jit
def mean_square(at, DEPTH: tl.constexpr, LANES: tl.constexpr = 128, HALVINGS: tl.constexpr = 6):
    """The mean square of DEPTH values, added in an order that does not depend on the program's warps."""
    lane = tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float32)
    for start in tl.static_range(0, DEPTH, LANES):
        x = tl.load(at + start + lane, mask=start + lane < DEPTH, other=0.0).to(tl.float32)
        total += x * x
    for _ in tl.static_range(0, HALVINGS):  # tl.split would make each thread read half of them
        total = tl.sum(tl.reshape(total, (total.shape[0] // 2, 2)), 1)
    return tl.div_rn(tl.sum(total, 0), DEPTH * 1.0)  # of the remaining two


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
    """Prepare one row of a linear's input: normed, gated with SiLU, or unchanged; then rounded to INT8 or
    not.
    """
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
    """Write one piece of a token's entry in a table, plus an addend. Token -1 has no entry and gets zeros."""
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
    """Write one piece of the sum of a place's token entries, ``[n, 1 + STREAMS]`` with text first; token -1
    adds nothing.

    The audio streams' tables are stored one after the other.
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


@triton.jit
def mean_squares(
    x_ptr,
    place,
    count,
    row_stride,
    DEPTH: tl.constexpr,
    PLACES: tl.constexpr,
    LANES: tl.constexpr = 128,
    HALVINGS: tl.constexpr = 6,
):
    """The mean square of DEPTH values of each of several rows, bit-identical to :func:`mean_square`."""
    lane = tl.arange(0, LANES)
    at = x_ptr + tl.minimum(place, count - 1).to(tl.int64)[:, None] * row_stride + lane[None, :]
    total = tl.zeros((PLACES, LANES), tl.float32)
    for start in tl.static_range(0, DEPTH, LANES):
        x = tl.load(at + start, mask=(start + lane < DEPTH)[None, :], other=0.0).to(tl.float32)
        total += x * x
    for _ in tl.static_range(0, HALVINGS):
        left, right = tl.split(tl.reshape(total, (PLACES, total.shape[1] // 2, 2)))
        total = left + right
    return tl.div_rn(tl.sum(total, 1), DEPTH * 1.0)


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
    """Multiply a tile of int8 rows by int8 weights, exactly in int32; scale back in float32 and add a
    residual.

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
def low_products(rows, packed):
    """Multiply int8 ``[K, N]`` by the first of the two 4-bit numbers in each byte of ``[M, N]``: int32 ``[K,
    M]``.

    It uses only masks: LLVM compiles masks to operations on four bytes, but shifts to one for each byte.
    """
    signs = tl.dot(rows, tl.trans(packed & 8), out_dtype=tl.int32)
    return tl.dot(rows, tl.trans(packed & 7), -signs, out_dtype=tl.int32)


@triton.jit
def multiply_pairs(
    rows_ptr,
    row_scale_ptr,
    weight_ptr,
    scale_ptr,
    residual_ptr,
    out_ptr,
    count,
    columns,
    pairs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    TURN: tl.constexpr,
    IS_ADDED: tl.constexpr,
):
    """Multiply a tile of int8 rows by an INT4 weight in pairs of blocks (:meth:`Int4Linear.pair`).

    Each block's product is exact in int32, then scaled and added in float32, block by block. ``TURN``, a
    divisor of ``pairs``, is the number of pairs in one iteration of the loop.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < count, column < columns
    within = tl.arange(0, BLOCK)
    rows_at = rows_ptr + row.to(tl.int64)[:, None] * (pairs * (2 * BLOCK)) + within[None, :]
    weight_at = weight_ptr + column[:, None] * BLOCK + within[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, pairs, TURN, num_stages=4):  # given here, it prefetches scales too
        for turn in tl.static_range(TURN):
            pair = start + turn
            at = pair.to(tl.int64) * columns
            weight = tl.load(weight_at + at * BLOCK, mask=is_column[:, None], other=0)
            scales = tl.load(scale_ptr + at + column, mask=is_column, other=0)
            x = tl.load(rows_at + pair * (2 * BLOCK), mask=is_row[:, None], other=0)
            products = low_products(x, weight)
            total += products.to(tl.float32) * half_of(scales)[None, :]
            x = tl.load(rows_at + pair * (2 * BLOCK) + BLOCK, mask=is_row[:, None], other=0)
            products = tl.dot(x, tl.trans(weight & -16), out_dtype=tl.int32)
            total += products.to(tl.float32) * (half_of(scales >> 16) * 0.0625)[None, :]
    row_scale = tl.load(row_scale_ptr + row, mask=is_row, other=0.0)
    out = total * row_scale[:, None]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    is_inside = is_row[:, None] & is_column[None, :]
    dtype = out_ptr.dtype.element_ty
    if IS_ADDED:
        residual = tl.load(residual_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        out = out.to(dtype).to(tl.float32) + residual
    tl.store(out_ptr + at, out.to(dtype), mask=is_inside)


@triton.jit
def half_of(words):
    """The float16 in the low 16 bits of int32 numbers, as float32."""
    return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def input_tile(
    x_ptr,
    alpha_ptr,
    norm,
    place,
    depth,
    count,
    row_stride,
    DEPTH: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_SPREAD: tl.constexpr,
):
    """Load a tile of rows as float32 ``[PLACES, BLOCK]``, normed and rounded to their dtype, or unchanged.

    With ``IS_SPREAD`` each thread reads its part of alpha without waiting for another thread. Otherwise alpha
    is read once, which needs less shared memory while other loads are in flight.
    """
    is_inside = (place < count)[:, None] & (depth < DEPTH)[None, :]
    at = x_ptr + place.to(tl.int64)[:, None] * row_stride + depth[None, :]
    x = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
    if IS_NORMED:
        channel = depth[None, :]
        if IS_SPREAD:
            channel = channel + 0 * place[:, None]
        alpha = tl.load(alpha_ptr + channel, mask=channel < DEPTH, other=0.0).to(tl.float32)
        x = (x * (alpha * norm[:, None])).to(x_ptr.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def make_and_multiply(
    x_ptr,
    alpha_ptr,
    weight_ptr,
    scale_ptr,
    residual_ptr,
    out_ptr,
    x_row_stride,
    count,
    columns,
    eps,
    DEPTH: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr,
    IS_ADDED: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    """Do the work of ``prepare_rows`` and ``multiply_rows`` in one launch, for at most PLACES rows.

    Each program prepares all rows, as int8, for its own columns. A tile has ROWS rows, the smallest number
    that a matrix unit takes, so each row is in it ROWS // PLACES times. ``IS_GATED``: the weight has 2 *
    columns rows, and the output is SiLU of the first half times the second.
    """
    TIMES: tl.constexpr = ROWS // PLACES  # noqa: N806
    place = tl.arange(0, PLACES)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    norm = tl.zeros((PLACES,), tl.float32)
    if IS_NORMED:
        norm = tl.rsqrt(mean_squares(x_ptr, place, count, x_row_stride, DEPTH, PLACES) + eps)
    most = tl.zeros((PLACES, BLOCK), tl.float32)  # a tile of maxima: no warp waits for others
    for start in tl.range(0, DEPTH, BLOCK, loop_unroll_factor=8):  # 8 loads at a time
        depth = start + tl.arange(0, BLOCK)
        x = input_tile(x_ptr, alpha_ptr, norm, place, depth, count, x_row_stride, DEPTH, IS_NORMED, True)
        most = tl.maximum(most, tl.abs(x))
    step = tl.div_rn(tl.maximum(tl.max(most, 1), 1e-12), 127.0)
    inverse = tl.div_rn(1.0, step)
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * DEPTH
    second_at = weight_at + columns.to(tl.int64) * DEPTH
    total = tl.zeros((ROWS, COLUMNS), tl.int32)
    other = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, DEPTH, BLOCK):
        depth = start + tl.arange(0, BLOCK)
        x = input_tile(x_ptr, alpha_ptr, norm, place, depth, count, x_row_stride, DEPTH, IS_NORMED, False)
        few = rounded_by(
            x,
            tl.broadcast_to(step[:, None], (PLACES, BLOCK)),
            tl.broadcast_to(inverse[:, None], (PLACES, BLOCK)),
        )
        # A maximum of one number each: its input is computed once, instead of for every copy of a row.
        few = tl.max(tl.reshape(few, (PLACES, BLOCK, 1)), 2).to(tl.int8)
        rows = tl.reshape(tl.broadcast_to(few[:, None, :], (PLACES, TIMES, BLOCK)), (ROWS, BLOCK))
        is_inside = is_column[:, None] & (depth < DEPTH)[None, :]
        weight = tl.load(weight_at + depth[None, :], mask=is_inside, other=0)
        total = tl.dot(rows, tl.trans(weight), total, out_dtype=tl.int32)
        if IS_GATED:
            weight = tl.load(second_at + depth[None, :], mask=is_inside, other=0)
            other = tl.dot(rows, tl.trans(weight), other, out_dtype=tl.int32)
    row_step = tl.reshape(tl.broadcast_to(step[:, None], (PLACES, TIMES)), (ROWS,))
    dtype = out_ptr.dtype.element_ty
    scale = tl.load(scale_ptr + column, mask=is_column, other=0.0)
    out = ((total.to(tl.float32) * scale[None, :]) * row_step[:, None]).to(dtype)
    row = tl.arange(0, ROWS)
    at = (row // TIMES).to(tl.int64)[:, None] * columns + column[None, :]
    is_inside = ((row % TIMES == 0) & (row // TIMES < count))[:, None] & is_column[None, :]
    if IS_GATED:
        scale = tl.load(scale_ptr + columns + column, mask=is_column, other=0.0)
        value = ((other.to(tl.float32) * scale[None, :]) * row_step[:, None]).to(dtype)
        out = gated(out.to(tl.float32), value.to(tl.float32), dtype)
    if IS_ADDED:
        residual = tl.load(residual_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        out = (out.to(tl.float32) + residual).to(dtype)
    tl.store(out_ptr + at, out, mask=is_inside)
