"""The Triton kernel of decode attention over an INT8 or INT4 ring, on integer matrix units only."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl

from antiphon.backends.torch.kernels.attention_kernels import joined
from antiphon.backends.torch.kernels.linear_kernels import is_last, low_products, round_row


@triton.jit
def whole(values):
    """Round float32 values below 2^22 to the nearest integer, halves to even."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def as_limbs(values, largest, line):
    """Split a row ``[N]`` of values up to ``largest`` into int8 ``[16, N]``: line 0 counts 127ths of
    ``largest``, line 1 the rest.

    The unit of line 1 is 1/254 of line 0's, so both together have 15 bits; other lines are 0.
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
    pages_ptr,
    parts_ptr,
    sums_ptr,
    ticket_ptr,
    out_ptr,
    rounded_ptr,
    rounded_scale_ptr,
    log2_scale,
    q_row_stride,
    q_head_stride,
    q_count_stride,
    q_width_stride,
    sums_stride,
    out_row_stride,
    out_head_stride,
    out_count_stride,
    COUNT: tl.constexpr,
    GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_K_PACKED: tl.constexpr,
    IS_V_PACKED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    ROUNDED_WIDTH: tl.constexpr,
    ROUNDED_BLOCK: tl.constexpr,
):
    """Attend with one query to one split of the ring. A row has ``PAGES`` pages of ``PAGE`` slots; pages of V
    are transposed: ``[WIDTH, PAGE]``.

    A query's last split joins all splits; a place's last query rounds all queries, if requested. A place has
    one ticket per query and one more. The query and the softmax weights are two limbs each, in the first two
    of the sixteen rows that a matrix unit needs. No element is therefore converted separately. A byte of
    packed keys or values has columns c and c + WIDTH / 2: each half is a separate product, and the factor of
    16 is part of a scale.
    """
    split, line_of_q, place = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, newest = tl.load(rows_ptr + place), tl.load(first_ptr + place) + (COUNT - 1)  # one load for both
    lines = tl.num_programs(1)
    head, turn, column = line_of_q // COUNT, line_of_q % COUNT, tl.arange(0, WIDTH)
    out_at = out_ptr + place * out_row_stride + head * out_head_stride + turn * out_count_stride + column
    rounded_at = rounded_ptr + place * lines * WIDTH
    if row < 0:
        if split == 0:
            tl.store(out_at, tl.zeros((WIDTH,), out_ptr.dtype.element_ty))
            if IS_ROUNDED:
                tl.store(rounded_at + line_of_q * WIDTH + column, tl.zeros((WIDTH,), tl.int8))
                tl.store(rounded_scale_ptr + place, 1.0)
        return
    filled = tl.minimum(newest + 1, CAPACITY).to(tl.int32)
    begin = split * SPLIT
    if begin >= filled:
        return
    line, slots = tl.arange(0, 16), tl.arange(0, PAGE)
    HALF: tl.constexpr = WIDTH // 2  # noqa: N806
    K_WIDTH: tl.constexpr = HALF if IS_K_PACKED else WIDTH  # noqa: N806
    V_WIDTH: tl.constexpr = HALF if IS_V_PACKED else WIDTH  # noqa: N806
    k_column, v_column = tl.arange(0, K_WIDTH), tl.arange(0, V_WIDTH)
    q_at = q_ptr + place * q_row_stride + head * q_head_stride + turn * q_count_stride
    q = tl.load(q_at + k_column * q_width_stride).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(q), 0), 1e-20)
    if IS_K_PACKED:
        second = tl.load(q_at + (HALF + k_column) * q_width_stride).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(second), 0))
        second_limbs = as_limbs(second, largest, line)
    limbs = as_limbs(q, largest, line)
    unit = tl.where(line == 0, 1.0, tl.where(line == 1, 1.0 / 254.0, 0.0))
    q_scale = largest * (log2_scale / 127.0) * (0.0625 if IS_K_PACKED else 1.0)
    v_unit = unit * (0.0625 if IS_V_PACKED else 1.0)

    kv_heads, kv_head = tl.num_programs(1) // (GROUP * COUNT), head // GROUP
    # All pages of the split at once: an address that depends on a load is not prefetched.
    number = begin // PAGE + tl.arange(0, SPLIT // PAGE)
    pages = tl.load(pages_ptr + row * PAGES + number, mask=number < PAGES, other=0)
    k_tile = slots[:, None] * K_WIDTH + k_column[None, :]
    v_tile = v_column[:, None] * PAGE + slots[None, :]
    newest_slot = (newest % CAPACITY).to(tl.int32)
    highest = tl.full((), -1e30, tl.float32)  # finite, so that a query without visible keys here adds 0
    total = tl.full((), 0.0, tl.float32)
    mixed = tl.zeros((16, V_WIDTH), tl.float32)
    second_mixed = tl.zeros((16, V_WIDTH), tl.float32)  # of packed values
    for start in range(begin, tl.minimum(begin + SPLIT, filled), PAGE):
        slot = start + slots
        is_seen = slot < filled
        page = tl.sum(tl.where(number == start // PAGE, pages, 0), 0)
        held = ((page * kv_heads + kv_head) * PAGE).to(tl.int64)
        k = tl.load(k_ptr + held * K_WIDTH + k_tile)  # a whole page exists; unseen slots have weight 0
        if IS_K_PACKED:
            products = low_products(limbs, k) * 16
            products = tl.dot(second_limbs, tl.trans(k & -16), products, out_dtype=tl.int32)
        else:
            products = tl.dot(limbs, tl.trans(k), out_dtype=tl.int32)
        scores = tl.sum(products.to(tl.float32) * unit[:, None], 0)
        scores *= tl.load(k_scale_ptr + held + slots) * q_scale
        v_scale = tl.where(is_seen, tl.load(v_scale_ptr + held + slots), 0.0)
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
        v = tl.load(v_ptr + held * V_WIDTH + v_tile)
        weight_limbs, weight_unit = as_limbs(weights, heaviest, line), (v_unit * (heaviest / 127.0))[:, None]
        if IS_V_PACKED:
            products = tl.dot(weight_limbs, tl.trans(v & -16), out_dtype=tl.int32)
            second_mixed = second_mixed * shrink + products.to(tl.float32) * weight_unit
            products = low_products(weight_limbs, v) * 16
        else:
            products = tl.dot(weight_limbs, tl.trans(v), out_dtype=tl.int32)
        mixed = mixed * shrink + products.to(tl.float32) * weight_unit
        highest = higher

    first_part = (place * lines + line_of_q) * tl.num_programs(0)
    part = first_part + split
    tl.store(sums_ptr + part, highest)
    tl.store(sums_ptr + sums_stride + part, total)
    tl.store(parts_ptr + part * WIDTH + v_column, tl.sum(mixed, 0))
    if IS_V_PACKED:
        tl.store(parts_ptr + part * WIDTH + HALF + v_column, tl.sum(second_mixed, 0))
    used = tl.minimum(tl.cdiv(filled, SPLIT), tl.num_programs(0))
    ticket_at = ticket_ptr + place * (lines + 1)
    if is_last(ticket_at + line_of_q, used):
        one = tl.arange(0, SPLITS)
        seen = joined(parts_ptr, sums_ptr, sums_ptr + sums_stride, first_part + one, one < used, WIDTH)
        tl.store(out_at, seen.to(out_ptr.dtype.element_ty))
        if IS_ROUNDED:  # noqa: SIM102 - Triton evaluates both sides of an "and"
            if is_last(ticket_at + lines, lines):
                whole_at = out_ptr + place * out_row_stride
                round_row(whole_at, rounded_at, rounded_scale_ptr + place, ROUNDED_WIDTH, ROUNDED_BLOCK)
