"""The Triton kernels of a delay cache: see :mod:`antiphon.backends.torch.delays`."""

# A kernel's arguments take no Python types, and its constants are capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def hear_tokens(
    token_ptr,
    at_ptr,
    rows_ptr,
    offset_ptr,
    code_ptr,
    delay_ptr,
    initial_ptr,
    out_ptr,
    GENERATED: tl.constexpr,
    STREAMS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One place: what it hears goes into its row's ring, and every stream's input comes out."""
    place = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, BLOCK)
    is_stream = stream < STREAMS
    is_heard = is_stream & (stream >= GENERATED)
    offset = tl.load(offset_ptr + place)
    ring_at = token_ptr + (tl.load(at_ptr + place) * STREAMS + stream) * CAPACITY
    delay = tl.load(delay_ptr + stream, mask=is_stream, other=0)
    codes_at = code_ptr + place * (STREAMS - GENERATED) + stream - GENERATED
    code = tl.load(codes_at, mask=is_heard, other=0)
    slot, now = (offset + delay) % CAPACITY, offset % CAPACITY
    known = tl.load(ring_at + now, mask=is_stream, other=0)
    tl.store(ring_at + slot, code, mask=is_heard)
    known = tl.where(is_heard & (slot == now), code, known)
    is_before = (offset <= delay) | (tl.load(rows_ptr + place) < 0)
    initial = tl.load(initial_ptr + stream, mask=is_stream, other=0)
    tl.store(out_ptr + place * STREAMS + stream, tl.where(is_before, initial, known), mask=is_stream)


@triton.jit
def say_tokens(
    token_ptr,
    at_ptr,
    offset_ptr,
    said_ptr,
    delay_ptr,
    out_ptr,
    most_delay,
    GENERATED: tl.constexpr,
    STREAMS: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One place: what it says goes into its row's ring, and the frame that is complete comes out."""
    place = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, BLOCK)
    is_said = stream < GENERATED
    following = tl.load(offset_ptr + place) + 1
    ring_at = token_ptr + (tl.load(at_ptr + place) * STREAMS + stream) * CAPACITY
    delay = tl.load(delay_ptr + stream, mask=is_said, other=0)
    token = tl.load(said_ptr + place * GENERATED + stream, mask=is_said, other=0)
    slot = following % CAPACITY
    frame = (following - most_delay + delay + CAPACITY) % CAPACITY  # above zero: a ring holds every delay
    known = tl.load(ring_at + frame, mask=is_said, other=0)
    tl.store(ring_at + slot, token, mask=is_said)
    known = tl.where(slot == frame, token, known)
    tl.store(out_ptr + place * GENERATED + stream, known, mask=is_said)
