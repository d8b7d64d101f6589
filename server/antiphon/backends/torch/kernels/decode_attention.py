"""Decode attention over the key-value ring as two Triton kernels, in the ring's dtype or its INT8.

Flash-Decoding (Dao et al. 2023): the ring is cut into splits, each with a softmax of its own. Where there are
several a second kernel joins them; of an INT8 ring the last split does, and the last query rounds its place's
row. Rows are read where they lie in the ring, up to each one's filled length; a place without a row reads
nothing. An INT8 ring is multiplied by integer matrix units, a program a query: queries that share a key-value
head share its keys through the cache. ``TRITON_INTERPRET=1`` runs the same kernels on a CPU, slowly.

Not measured: the kernels have been run on no GPU yet.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from antiphon.backends.torch.kernels.attention_kernels import attend_split, join_splits
from antiphon.backends.torch.kernels.limb_kernels import attend_limbs
from antiphon.backends.torch.modules.kv import PAGE_SLOTS, RingView

SPLIT_SLOTS = 256
"""Ring slots in one split: at batch 1, 3000 slots of 32 heads make 384 programs, enough to fill a card."""

BLOCK_BYTES = 16384
"""Keys in one tile: two stages of keys and values fit into the 99 KiB a program has on the smaller cards."""

MOST_BLOCK_SLOTS = 64
"""Ring slots in one tile, at most."""

LEAST_QUERIES = 16
"""Rows of a tile of queries: what the matrix units take at least, however few queries there are."""


def block_slots_of(width: int, element_bytes: int) -> int:
    """Ring slots in one tile of keys of so many elements, a power of two."""
    return min(MOST_BLOCK_SLOTS, BLOCK_BYTES // (width * element_bytes))


def new_tickets(places: int, queries: int, device: torch.device) -> Tensor:
    """Tickets of so many queries of each place, all 0: the last program that takes one finishes the work."""
    return torch.zeros(places, queries + 1, dtype=torch.int32, device=device)


def decode_attention(
    q: Tensor,
    ring: RingView,
    first: Tensor,
    rows: Tensor,
    length: int,
    *,
    split_slots: int = SPLIT_SLOTS,
    block_slots: int | None = None,
    tickets: Tensor | None = None,
    rounded: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attend to a ring into which this pass's own T positions have been written: ``[n, H, T, D]``.

    ``q [n, H, T, D]``; ``first`` int64 ``[n]``, contiguous, is the position of each row's first query.
    ``rows`` int64 ``[n]``, contiguous, says where in the ring each is; -1 is no row, and gets zeros.
    ``length``: no row has filled more slots. D is a power of two and at least 16;
    ``split_slots`` is a multiple of ``block_slots`` (None: as many as suit the card; of an INT8 ring always
    PAGE_SLOTS). Query t sees what the ring holds up to its own position, as with :meth:`KVRing.read` and the
    mask of a Window (``transformer.py``). Of an INT8 ring, ``tickets`` are those of :func:`new_tickets` for
    ``H * T`` queries (None: made here, a launch), and ``rounded`` is where one query's output ``[n, H * D]``
    goes in INT8 too, its scales ``[n]`` beside it.
    """
    places, heads, count, width = q.shape
    kv_heads, capacity = ring.k.shape[1:3]
    splits = -(-min(length, capacity) // split_slots)
    out = q.new_empty(places, count, heads, width).transpose(1, 2)
    parts = q.new_empty(places, heads, count, splits, width, dtype=torch.float32)
    sums = q.new_empty(2, places, heads, count, splits, dtype=torch.float32)
    log2_scale = math.log2(math.e) / math.sqrt(width)
    of_ring = {"COUNT": count, "CAPACITY": capacity, "WIDTH": width, "SPLIT": split_slots}
    if ring.k_scale is not None:
        if tickets is None:
            tickets = new_tickets(places, heads * count, q.device)
        values, scale = (out, sums) if rounded is None else rounded
        attend_limbs[(splits, heads * count, places)](
            q, ring.k, ring.v, ring.k_scale, ring.v_scale, first, rows, parts, sums, tickets, out,
            values, scale, log2_scale, *q.stride(), sums.stride(0), *out.stride()[:3],
            GROUP=heads // kv_heads, PAGE=PAGE_SLOTS, SPLITS=triton.next_power_of_2(splits),
            IS_ROUNDED=rounded is not None, ROUNDED_WIDTH=heads * width,
            ROUNDED_BLOCK=triton.next_power_of_2(heads * width), **of_ring, enable_fp_fusion=True,
        )  # fmt: skip
    else:
        group, is_whole = heads // kv_heads, splits == 1
        attend_split[(splits, kv_heads, places)](
            q, ring.k, ring.v, first, rows, parts, sums, out, log2_scale, *q.stride(), sums.stride(0),
            *out.stride(), GROUP=group, QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(group * count)),
            BLOCK=block_slots or block_slots_of(width, ring.k.element_size()), IS_WHOLE=is_whole, **of_ring,
            enable_fp_fusion=True,
        )  # fmt: skip
        if is_whole:
            return out
        join_splits[(heads * count, places)](
            out, first, rows, parts, sums, *out.stride(), sums.stride(0), splits,
            SPLITS=triton.next_power_of_2(splits), **of_ring, enable_fp_fusion=True,
        )  # fmt: skip
    return out
