"""The Triton kernel of decode attention over an INT8 ring, by integer matrix units alone."""

# A kernel's arguments take no Python types, and its constants are capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def whole(values):
    """Float32 values of less than 2^22 to the nearest whole number, halves to even."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def as_limbs(values, largest, line):
    """A row ``[N]`` of up to ``largest`` as int8 ``[16, N]``: line 0 in 127ths of it, line 1 what is left.

    Line 1 counts in 254ths of line 0's unit, so both together have 15 bits; other lines are 0.
    """
    wide = values * (127.0 / largest)
    high = whole(wide)
    low = whole((wide - high) * 254.0)
    low = tl.where((line == 1)[:, None], low[None, :], 0.0)
    return tl.where((line == 0)[:, None], high[None, :], low).to(tl.int8)


@triton.jit
def attend_limbs(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    first_ptr,
    rows_ptr,
    parts_ptr,
    sums_ptr,
    log2_scale,
    q_row_stride,
    q_head_stride,
    q_count_stride,
    q_width_stride,
    sums_stride,
    COUNT: tl.constexpr,
    GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PAGE: tl.constexpr,
):
    """One split for one query: sums not yet divided. K is by slots, V in pages of ``[WIDTH, PAGE]``.

    The query and the softmax weights are two limbs each, in the first two of the sixteen rows that a matrix
    unit takes at least. So nothing is converted element by element.
    """
    split, line_of_q, place = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, newest = tl.load(rows_ptr + place), tl.load(first_ptr + place) + (COUNT - 1)  # both at once
    if row < 0:
        return
    filled = tl.minimum(newest + 1, CAPACITY).to(tl.int32)
    begin = split * SPLIT
    if begin >= filled:
        return
    head, turn = line_of_q // COUNT, line_of_q % COUNT
    column, line, slots = tl.arange(0, WIDTH), tl.arange(0, 16), tl.arange(0, PAGE)
    q_at = q_ptr + place * q_row_stride + head * q_head_stride + turn * q_count_stride
    q = tl.load(q_at + column * q_width_stride).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(q), 0), 1e-20)
    limbs = as_limbs(q, largest, line)
    unit = tl.where(line == 0, 1.0, tl.where(line == 1, 1.0 / 254.0, 0.0))
    q_scale = largest * (log2_scale / 127.0)

    kv_head = row * (tl.num_programs(1) // (GROUP * COUNT)) + head // GROUP
    ring = kv_head * CAPACITY
    k_at = k_ptr + ring * WIDTH + column[None, :]
    v_at = (
        v_ptr + kv_head * tl.cdiv(CAPACITY, PAGE) * (WIDTH * PAGE) + column[:, None] * PAGE + slots[None, :]
    )
    newest_slot = (newest % CAPACITY).to(tl.int32)
    highest = tl.full((), -1e30, tl.float32)  # finite, so that a query that sees nothing here adds 0
    total = tl.full((), 0.0, tl.float32)
    mixed = tl.zeros((16, WIDTH), tl.float32)
    for start in range(begin, tl.minimum(begin + SPLIT, filled), PAGE):
        slot = start + slots
        is_seen = slot < filled
        at = tl.minimum(slot, CAPACITY - 1)  # cheaper than a mask; unseen slots weigh 0
        k = tl.load(k_at + at[:, None] * WIDTH)
        scores = tl.sum(tl.dot(limbs, tl.trans(k), out_dtype=tl.int32).to(tl.float32) * unit[:, None], 0)
        scores *= tl.load(k_scale_ptr + ring + at) * q_scale
        v_scale = tl.where(is_seen, tl.load(v_scale_ptr + ring + at), 0.0)
        if COUNT > 1:
            age = newest_slot - slot
            age = tl.where(age < 0, age + CAPACITY, age)
            is_seen = is_seen & (age >= COUNT - 1 - turn)
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher)
        total = total * shrink + tl.sum(weights, 0)
        weights = weights * v_scale
        heaviest = tl.maximum(tl.max(weights, 0), 1e-20)
        v = tl.load(v_at + (start // PAGE) * (WIDTH * PAGE))
        products = tl.dot(as_limbs(weights, heaviest, line), tl.trans(v), out_dtype=tl.int32)
        mixed = mixed * shrink + products.to(tl.float32) * (unit * (heaviest / 127.0))[:, None]
        highest = higher

    part = (place * tl.num_programs(1) + line_of_q) * tl.num_programs(0) + split
    tl.store(sums_ptr + part, highest)
    tl.store(sums_ptr + sums_stride + part, total)
    tl.store(parts_ptr + part * WIDTH + column, tl.sum(mixed, 0))
