"""The Triton kernels of :mod:`antiphon.backends.torch.kernels.steps`."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl

from antiphon.backends.torch.kernels.linear_kernels import is_last, round_row, rounded


@triton.jit
def write_window(
    position_ptr,
    at_ptr,
    first_ptr,
    slot_ptr,
    cos_ptr,
    sin_ptr,
    ticket_ptr,
    exponent,
    COUNT: tl.constexpr,
    CAPACITY: tl.constexpr,
    HALF: tl.constexpr,
    IS_TURNED: tl.constexpr,
    TICKETS: tl.constexpr,
    TICKETS_BLOCK: tl.constexpr,
):
    """Advance one place's row by COUNT positions; write the first position, the slots and rotations, and set
    the tickets to 0.

    Cosine and sine ``[n, COUNT, HALF]`` equal those of
    :func:`antiphon.backends.torch.modules.layers.rotation`. Places without a row share a row of positions;
    their results are undefined.
    """
    place = tl.program_id(0).to(tl.int64)
    position_at = position_ptr + tl.load(at_ptr + place)
    first = tl.load(position_at)
    tl.store(position_at, first + COUNT)
    tl.store(first_ptr + place, first)
    pair = tl.arange(0, HALF)
    # In float64: the exponential of float32 is an approximation on a GPU, and positions multiply its error.
    frequency = tl.exp((pair.to(tl.float32) * exponent).to(tl.float64)).to(tl.float32)
    for turn in tl.static_range(0, COUNT):
        position, line = first + turn, place * COUNT + turn
        tl.store(slot_ptr + line, position % CAPACITY)
        if IS_TURNED:
            angle = frequency * position.to(tl.float32)
            tl.store(cos_ptr + line * HALF + pair, tl.cos(angle))
            tl.store(sin_ptr + line * HALF + pair, tl.sin(angle))
    if TICKETS > 0:
        ticket = tl.arange(0, TICKETS_BLOCK)
        zero = tl.zeros((TICKETS_BLOCK,), tl.int32)
        tl.store(ticket_ptr + place * TICKETS + ticket, zero, mask=ticket < TICKETS)


@triton.jit
def rounded_in(x, step, WIDTH: tl.constexpr, IS_PACKED: tl.constexpr):
    """Round float32 ``[WIDTH]`` to int8, or pack two values a byte: elements c and c + WIDTH / 2 into
    byte c.
    """
    kept = rounded(x, step)
    if IS_PACKED:
        half = tl.arange(0, 2)[:, None]
        nibbles = tl.reshape(kept.to(tl.int32) & 15, (2, WIDTH // 2)) << (4 * half)
        kept = tl.sum(nibbles, 0).to(tl.int8)
    return kept


@triton.jit
def rotate_and_write(
    projected_ptr,
    cos_ptr,
    sin_ptr,
    slot_ptr,
    rows_ptr,
    pages_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    bound,
    projected_row_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    COUNT: tl.constexpr,
    CAPACITY: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_TURNED: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    IS_K_PACKED: tl.constexpr,
    IS_V_PACKED: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Bound, rotate and write one head of one position of a place. Heads of queries come first, then keys,
    then values. A place has COUNT consecutive positions.

    A place without a row writes nothing. A row has ``PAGES`` pages of ``PAGE`` slots, or, if ``PAGES`` is 0,
    a contiguous ring. A rounded ring is always in pages, with its values transposed, in 8 bits or packed in
    4.
    """
    head, line = tl.program_id(0), tl.program_id(1).to(tl.int64)
    place, turn = line // COUNT, line % COUNT
    row = tl.load(rows_ptr + place)
    if row < 0:
        return
    column = tl.arange(0, WIDTH)
    if IS_INTERLEAVED:
        partner, pair, sign = column ^ 1, column // 2, tl.where(column % 2 == 0, -1.0, 1.0)
    else:
        half: tl.constexpr = WIDTH // 2
        partner, pair = (column + half) % WIDTH, column % half
        sign = tl.where(column < half, -1.0, 1.0)
    at = projected_ptr + line * projected_row_stride + head * WIDTH
    dtype = q_ptr.dtype.element_ty
    x = tl.load(at + column).to(tl.float32)
    x = tl.clamp(tl.where(x == x, x, 0.0), -bound, bound).to(dtype).to(tl.float32)
    if IS_TURNED:
        other = tl.load(at + partner).to(tl.float32)
        other = tl.clamp(tl.where(other == other, other, 0.0), -bound, bound).to(dtype).to(tl.float32)
        cos = tl.load(cos_ptr + line * (WIDTH // 2) + pair)
        sin = tl.load(sin_ptr + line * (WIDTH // 2) + pair)
        turned = (x * cos + sign * (other * sin)).to(dtype).to(tl.float32)
        x = tl.where(head < HEADS + KV_HEADS, turned, x)
    if head < HEADS:
        tl.store(q_ptr + ((place * HEADS + head) * COUNT + turn) * WIDTH + column, x.to(dtype))
        return
    kv_head = (head - HEADS) % KV_HEADS
    number = tl.load(slot_ptr + line)
    if PAGES > 0:
        page = tl.load(pages_ptr + row * PAGES + number // PAGE).to(tl.int64)
        held, number = page * KV_HEADS + kv_head, number % PAGE
        slot = held * PAGE + number
    else:
        slot = (row * KV_HEADS + kv_head) * CAPACITY + number
    is_key = head < HEADS + KV_HEADS
    if IS_ROUNDED:
        largest = tl.maximum(tl.max(tl.abs(x), 0), 1e-12)
        if is_key:
            step = tl.div_rn(largest, 7.0 if IS_K_PACKED else 127.0)
            tl.store(k_scale_ptr + slot, step)
            k = rounded_in(x, step, WIDTH, IS_K_PACKED)
            tl.store(k_ptr + slot * k.shape[0] + tl.arange(0, k.shape[0]), k)
        else:
            step = tl.div_rn(largest, 7.0 if IS_V_PACKED else 127.0)
            tl.store(v_scale_ptr + slot, step)
            v = rounded_in(x, step, WIDTH, IS_V_PACKED)
            tl.store(v_ptr + (held * v.shape[0] + tl.arange(0, v.shape[0])) * PAGE + number, v)
    else:
        if is_key:
            tl.store(k_ptr + slot * WIDTH + column, x.to(dtype))
        else:
            tl.store(v_ptr + slot * WIDTH + column, x.to(dtype))


@triton.jit(do_not_specialize=["step"])
def attend_steps(
    projected_ptr,
    past_ptr,
    out_ptr,
    rounded_ptr,
    rounded_scale_ptr,
    ticket_ptr,
    scale,
    step,
    projected_row_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
    ROUNDED_BLOCK: tl.constexpr,
):
    """Let one head of one row attend to the earlier steps, in ``past [n, 2, kv_heads, STEPS, WIDTH]``, and to
    this step, and add this step's key and value to ``past``. The program of a row's last head rounds all
    heads.
    """
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    kv_heads: tl.constexpr = HEADS // GROUP
    kv_head = head // GROUP
    column, turn = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    at = projected_ptr + row * projected_row_stride + column
    q = tl.load(at + head * WIDTH).to(tl.float32)
    k_now = tl.load(at + (HEADS + kv_head) * WIDTH)
    v_now = tl.load(at + (HEADS + kv_heads + kv_head) * WIDTH)
    k_at = past_ptr + (row * 2 * kv_heads + kv_head) * STEPS * WIDTH
    v_at = k_at + kv_heads * STEPS * WIDTH
    if head % GROUP == 0:  # not read in this launch
        tl.store(k_at + step * WIDTH + column, k_now)
        tl.store(v_at + step * WIDTH + column, v_now)
    tile = turn[:, None] * WIDTH + column[None, :]
    is_past, is_now = (turn < step)[:, None], (turn == step)[:, None]
    k = tl.load(k_at + tile, mask=is_past, other=0.0)
    v = tl.load(v_at + tile, mask=is_past, other=0.0)
    k = tl.where(is_now, k_now[None, :], k).to(tl.float32)
    v = tl.where(is_now, v_now[None, :], v).to(tl.float32)
    scores = tl.where(turn <= step, tl.sum(k * q[None, :], 1) * scale, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    mixed = tl.sum(v * weights[:, None], 0) / tl.sum(weights, 0)
    out_at = out_ptr + row * HEADS * WIDTH
    tl.store(out_at + head * WIDTH + column, mixed.to(out_ptr.dtype.element_ty))
    if IS_ROUNDED:  # noqa: SIM102 - Triton evaluates both sides of an "and"
        if is_last(ticket_ptr + row, HEADS):
            rounded_at = rounded_ptr + row * HEADS * WIDTH
            round_row(out_at, rounded_at, rounded_scale_ptr + row, HEADS * WIDTH, ROUNDED_BLOCK)
