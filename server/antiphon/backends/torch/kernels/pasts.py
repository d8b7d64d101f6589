"""Joins the past of a causal convolution with a frame and replaces the past, in one launch on a GPU."""

# A kernel's arguments have no Python types, and its constants are in capitals:
# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PIECE = 2048
"""Elements of a program, of one channel or of several."""


@triton.jit
def join_past(
    x_ptr,
    past_ptr,
    at_ptr,
    out_ptr,
    channels,
    x_row_stride,
    x_channel_stride,
    x_position_stride,
    PAST: tl.constexpr,
    LENGTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Join the past of some channels of one place's row with the input; the end of both becomes the new
    past.
    """
    place = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    position = tl.arange(0, BLOCK)[None, :]
    is_inside = (channel < channels)[:, None] & (position < PAST + LENGTH)
    is_past = position < PAST
    past_at = past_ptr + (tl.load(at_ptr + place) * channels + channel)[:, None] * PAST + position
    x_at = x_ptr + place * x_row_stride + channel[:, None] * x_channel_stride
    old = tl.load(past_at, mask=is_inside & is_past, other=0.0)
    new = tl.load(
        x_at + (position - PAST) * x_position_stride, mask=is_inside & (position >= PAST), other=0.0
    )
    joined = tl.where(is_past, old, new)
    out_at = out_ptr + (place * channels + channel)[:, None] * (PAST + LENGTH) + position
    tl.store(out_at, joined, mask=is_inside)
    tl.debug_barrier()  # the whole old past is read before any of it is replaced
    tl.store(past_at - LENGTH, joined, mask=is_inside & (position >= LENGTH))


def joined_past(past: Tensor, at: Tensor, x: Tensor) -> Tensor:
    """Join rows ``at [n]`` of ``past [rows, C, P]`` with ``x [n, C, T]`` to ``[n, C, P + T]``, and store the
    new past.
    """
    (places, channels, length), kept = x.shape, past.shape[2]
    out = x.new_empty(places, channels, kept + length)
    block = triton.next_power_of_2(kept + length)
    some = max(1, min(PIECE // block, triton.next_power_of_2(channels)))
    join_past[(triton.cdiv(channels, some), places)](
        x, past, at, out, channels, *x.stride(),
        PAST=kept, LENGTH=length, CHANNELS=some, BLOCK=block, enable_fp_fusion=False,
    )  # fmt: skip
    return out
