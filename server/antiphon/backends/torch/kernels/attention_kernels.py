"""The two Triton kernels of :mod:`antiphon.backends.torch.kernels.steps`."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def attend_split(
    q_ptr,
    k_ptr,
    v_ptr,
    first_ptr,
    rows_ptr,
    pages_ptr,
    parts_ptr,
    sums_ptr,
    out_ptr,
    log2_scale,
    q_row_stride,
    q_head_stride,
    q_count_stride,
    q_width_stride,
    sums_stride,
    out_row_stride,
    out_head_stride,
    out_count_stride,
    out_width_stride,
    COUNT: tl.constexpr,
    GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Process one split of one place's key-value head for the queries of its group; the sums are not yet
    divided.

    With ``IS_WHOLE`` there is only one split, so its output is the output of the attention; a place without a
    row gets zeros. A row has ``PAGES`` pages of ``PAGE`` slots, or, if ``PAGES`` is 0, a contiguous ring.
    """
    split, kv_head, place = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, newest = tl.load(rows_ptr + place), tl.load(first_ptr + place) + (COUNT - 1)  # one load for both
    query = tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    head, turn = kv_head * GROUP + query // COUNT, query % COUNT
    is_query = query < GROUP * COUNT
    out_at = place * out_row_stride + head[:, None] * out_head_stride + turn[:, None] * out_count_stride
    out_at += column[None, :] * out_width_stride
    if row < 0:
        if IS_WHOLE:
            zeros = tl.zeros((QUERIES, WIDTH), out_ptr.dtype.element_ty)
            tl.store(out_ptr + out_at, zeros, mask=is_query[:, None])
        return
    filled = tl.minimum(newest + 1, CAPACITY).to(tl.int32)
    begin = split * SPLIT
    if begin >= filled:
        return
    newest_slot = (newest % CAPACITY).to(tl.int32)

    q_at = place * q_row_stride + head[:, None] * q_head_stride + turn[:, None] * q_count_stride
    q = tl.load(q_ptr + q_at + column[None, :] * q_width_stride, mask=is_query[:, None], other=0.0)

    ring = (row * tl.num_programs(1) + kv_head) * CAPACITY
    if PAGES > 0:  # all pages of the split at once: an address that depends on a load is not prefetched
        number = begin // PAGE + tl.arange(0, SPLIT // PAGE)
        pages = tl.load(pages_ptr + row * PAGES + number, mask=number < PAGES, other=0)
    highest = tl.full((QUERIES,), -1e30, tl.float32)  # finite: a query without visible keys adds 0
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(begin, tl.minimum(begin + SPLIT, filled), BLOCK):
        slot = start + tl.arange(0, BLOCK)
        is_filled = slot < filled
        if PAGES > 0:
            page = tl.sum(tl.where(number == start // PAGE, pages, 0), 0)
            ring = ((page * tl.num_programs(1) + kv_head) * PAGE - start // PAGE * PAGE).to(tl.int64)
        at = (ring + slot)[:, None] * WIDTH + column[None, :]
        k = tl.load(k_ptr + at, mask=is_filled[:, None], other=0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * log2_scale
        age = newest_slot - slot
        age = tl.where(age < 0, age + CAPACITY, age)
        is_seen = is_filled[None, :] & (age[None, :] >= COUNT - 1 - turn[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(v_ptr + at, mask=is_filled[:, None], other=0).to(q.dtype)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
        highest = higher

    if IS_WHOLE:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + out_at, mixed.to(out_ptr.dtype.element_ty), mask=is_query[:, None])
        return
    part = ((place * tl.num_programs(1) * GROUP + head) * COUNT + turn) * tl.num_programs(0) + split
    tl.store(sums_ptr + part, highest, mask=is_query)
    tl.store(sums_ptr + sums_stride + part, total, mask=is_query)
    tl.store(parts_ptr + part[:, None] * WIDTH + column[None, :], mixed, mask=is_query[:, None])


@triton.jit
def joined(parts_ptr, peaks_ptr, totals_ptr, part, is_used, WIDTH: tl.constexpr):
    """Join the splits of one query into ``[WIDTH]``, all at once; zeros if no split is used."""
    column = tl.arange(0, WIDTH)
    peak = tl.load(peaks_ptr + part, mask=is_used, other=-1e30)
    total = tl.load(totals_ptr + part, mask=is_used, other=0.0)
    values = tl.load(parts_ptr + part[:, None] * WIDTH + column[None, :], mask=is_used[:, None], other=0.0)
    grow = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(total * grow, 0)
    return tl.sum(values * grow[:, None], 0) / tl.where(total > 0, total, 1.0)


@triton.jit
def join_splits(
    out_ptr,
    first_ptr,
    rows_ptr,
    parts_ptr,
    sums_ptr,
    out_row_stride,
    out_head_stride,
    out_count_stride,
    out_width_stride,
    sums_stride,
    splits,
    COUNT: tl.constexpr,
    CAPACITY: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Join the splits of one query into its output, all at once; a place without a row gets zeros."""
    line_of_q, place = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, first = tl.load(rows_ptr + place), tl.load(first_ptr + place)
    filled = tl.minimum(first + COUNT, CAPACITY).to(tl.int32)
    used = tl.where(row < 0, 0, tl.minimum(tl.cdiv(filled, SPLIT), splits))
    split, column = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    part = (place * tl.num_programs(0) + line_of_q) * splits + split
    mixed = joined(parts_ptr, sums_ptr, sums_ptr + sums_stride, part, split < used, WIDTH)
    head, turn = line_of_q // COUNT, line_of_q % COUNT
    at = place * out_row_stride + head * out_head_stride + turn * out_count_stride
    tl.store(out_ptr + at + column * out_width_stride, mixed.to(out_ptr.dtype.element_ty))
