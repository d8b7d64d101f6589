"""Transformer layers of one frame on a GPU, each as a few kernels, and decode attention over the KV ring.

The arithmetic is that of ``transformer.py`` and ``lm.py``, whose modules it runs. A layer over an INT8 ring
takes nine launches (six for up to four rows, ten in full precision), a layer of Mimi twelve, and a layer of
the depformer eight (six for up to sixteen rows, five for up to four).

Decode attention is two Triton kernels, for a ring in a float dtype or in INT8. As in Flash-Decoding (Dao et
al. 2023), the ring is cut into splits, and each split has its own softmax. A second kernel joins the splits.
For an INT8 ring the program of the last split joins them, and the program of the last query rounds the row of
its place. Each row is read in place in the ring, up to its filled length; a place without a row reads
nothing. Integer matrix units multiply an INT8 ring, one program per query: queries that share a key-value
head share its keys through the cache. ``TRITON_INTERPRET=1`` runs the same kernels on a CPU, slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.torch.kernels.attention_kernels import attend_split, join_splits
from antiphon.backends.torch.kernels.int8_attention import attend_limbs
from antiphon.backends.torch.kernels.rows import (
    LinearInput,
    embedded,
    embedded_streams,
    empty_rows,
    linear_rows,
    normed_rows,
    plain_rows,
    rounds,
    widened_rows,
)
from antiphon.backends.torch.kernels.step_kernels import attend_steps, rotate_and_write, write_window
from antiphon.backends.torch.modules.attention import (
    LARGEST,
    VOICE_PARTS,
    Chooser,
    Compute,
    CrossAttention,
    DepformerLayer,
    DepformerParts,
    RingView,
    SelfAttention,
    TransformerLayer,
    split_heads,
)
from antiphon.backends.torch.modules.layers import (
    GatedFeedForward,
    LayerScale,
    Rotation,
    StreamEmbeddings,
    TokenEmbedding,
)
from antiphon.backends.torch.state import PackedStep
from antiphon.models.architecture import TransformerConfig

SPLIT_SLOTS = 256
"""Ring slots in one split: at batch 1, 3000 slots of 32 heads make 384 programs, enough to fill a GPU."""

BLOCK_BYTES = 16384
"""Bytes of keys in one tile: two stages of keys and values fit into 99 KiB, the shared memory of a program on
smaller GPUs.
"""

MOST_BLOCK_SLOTS = 64
"""Maximum number of ring slots in one tile."""

LEAST_QUERIES = 16
"""Rows of a tile of queries: the minimum of the matrix units, however few queries there are."""


def block_slots_of(width: int, element_bytes: int) -> int:
    """The number of ring slots in one tile of keys of ``width`` elements, a power of two."""
    return min(MOST_BLOCK_SLOTS, BLOCK_BYTES // (width * element_bytes))


def new_tickets(places: int, queries: int, device: torch.device) -> Tensor:
    """Tickets for the queries of each place, all 0: the program that takes the last ticket finishes the
    work.
    """
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
    ``rows`` int64 ``[n]``, contiguous, is the ring's row at each place; -1 means no row, and the place gets
    zeros. ``length`` is at least the number of filled slots of any row. D is a power of two from
    LEAST_HEAD_DIM. ``split_slots`` is a multiple of ``block_slots``. For a ring in pages it is a power of two
    and at least PAGE_SLOTS. If ``block_slots`` is None, the size is chosen for the GPU; for an INT8 ring it
    is always PAGE_SLOTS. Query t attends to the ring up to its own position, as with :meth:`KVRing.read` and
    the mask of a ``Look`` (``attention.py``). For an INT8 ring, ``tickets`` come from :func:`new_tickets` for
    ``H * T`` queries (None: made here, in a launch), and ``rounded`` receives one query's output ``[n, H *
    D]`` in INT8 too, with its scales ``[n]``.
    """
    places, heads, count, width = q.shape
    kv_heads, capacity = ring.k.shape[1], ring.capacity
    pages, row_pages = (rows, 0) if ring.pages is None else (ring.pages, ring.pages.shape[1])
    splits = -(-min(length, capacity) // split_slots)
    out = q.new_empty(places, count, heads, width).transpose(1, 2)
    parts = q.new_empty(places, heads, count, splits, width, dtype=torch.float32)
    sums = q.new_empty(2, places, heads, count, splits, dtype=torch.float32)
    log2_scale = math.log2(math.e) / math.sqrt(width)
    of_ring = {"COUNT": count, "CAPACITY": capacity, "WIDTH": width, "SPLIT": split_slots}
    if ring.k_scale is not None:
        assert ring.pages is not None, "a rounded ring is in pages"
        if tickets is None:
            tickets = new_tickets(places, heads * count, q.device)
        values, scale = (out, sums) if rounded is None else rounded
        attend_limbs[(splits, heads * count, places)](
            q, ring.k, ring.v, ring.k_scale, ring.v_scale, first, rows, pages, parts, sums, tickets, out,
            values, scale, log2_scale, *q.stride(), sums.stride(0), *out.stride()[:3],
            GROUP=heads // kv_heads, PAGES=row_pages, PAGE=PAGE_SLOTS, SPLITS=triton.next_power_of_2(splits),
            IS_K_PACKED=ring.form.is_packed("k"), IS_V_PACKED=ring.form.is_packed("v"),
            IS_ROUNDED=rounded is not None, ROUNDED_WIDTH=heads * width,
            ROUNDED_BLOCK=triton.next_power_of_2(heads * width), **of_ring, enable_fp_fusion=True,
        )  # fmt: skip
    else:
        group, is_whole = heads // kv_heads, splits == 1
        attend_split[(splits, kv_heads, places)](
            q, ring.k, ring.v, first, rows, pages, parts, sums, out, log2_scale, *q.stride(), sums.stride(0),
            *out.stride(), GROUP=group, QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(group * count)),
            BLOCK=block_slots or block_slots_of(width, ring.k.element_size()), IS_WHOLE=is_whole,
            PAGES=row_pages, PAGE=PAGE_SLOTS, **of_ring, enable_fp_fusion=True,
        )  # fmt: skip
        if is_whole:
            return out
        join_splits[(heads * count, places)](
            out, first, rows, parts, sums, *out.stride(), sums.stride(0), splits,
            SPLITS=triton.next_power_of_2(splits), **of_ring, enable_fp_fusion=True,
        )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class FrameWindow:
    """The values that all layers share in one frame of T positions.

    ``first`` int64 ``[n]`` is the first position, ``slots`` int64 ``[n, T]`` are the positions' slots in the
    ring, of which at most ``length`` are filled. ``tickets``: see :func:`decode_attention`.
    """

    first: Tensor
    slots: Tensor
    length: int
    rotation: Rotation | None
    tickets: Tensor | None


def open_window(
    name: str, config: TransformerConfig, compute: Compute, step: PackedStep, count: int, length: int
) -> FrameWindow:
    """Advance the transformer of this name by ``count`` positions, in one launch, and return its window."""
    at, half = step.at, config.head_dim // 2
    places, has_turn = len(at), config.rope != "none"
    first, slots = at.new_empty(places), at.new_empty(places, count)
    turns = torch.empty(2, places if has_turn else 0, 1, count, half, device=at.device)
    queries = config.heads * count + 1
    tickets = at.new_empty(places, queries, dtype=torch.int32) if compute.kv.is_rounded else None
    write_window[(places,)](
        step.whole(f"{name}.position"), at, first, slots, turns[0], turns[1],
        slots if tickets is None else tickets, -math.log(config.max_period) * 2 / config.head_dim,
        COUNT=count, CAPACITY=config.context, HALF=half, IS_TURNED=has_turn,
        TICKETS=0 if tickets is None else queries, TICKETS_BLOCK=triton.next_power_of_2(queries),
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    turn = Rotation(turns[0], turns[1], interleaved=config.rope == "rope") if has_turn else None
    return FrameWindow(first, slots, length, turn, tickets)


def layer_step(layer: TransformerLayer, x: Tensor, step: PackedStep, window: FrameWindow) -> Tensor:
    """Run one layer over one frame of each place, ``[n, T, dim]`` to the same shape; rings are written."""
    attention, flat = layer.self_attn, x.flatten(0, 1)
    rows = normed_rows(flat, layer.norm1, attention.in_proj)
    q = queries(attention, linear_rows(attention.in_proj, rows), step, window)
    ring = attention.ring.view(step)
    rounded, kept = None, None
    if ring.k_scale is not None and x.shape[1] == 1 and rounds(attention.out_proj):
        rounded = empty_rows(flat)
        kept = rounded.kept
    seen = decode_attention(
        q, ring, window.first, step.rows, window.length, tickets=window.tickets, rounded=kept
    )
    mixed = seen.transpose(1, 2).flatten(2).flatten(0, 1).to(x.dtype)
    merged = rounded or plain_rows(mixed, attention.out_proj)
    flat = _add(attention.out_proj, merged, flat, layer.layer_scale_1)
    if layer.cross_attention is not None:
        assert x.shape[1] == 1
        seen = cross_step(layer.cross_attention, layer.norm_cross(flat[:, None])[:, 0], step)
        out_proj = layer.cross_attention.out_proj
        flat = _add(out_proj, plain_rows(seen, out_proj), flat, layer.layer_scale_cross)
    return _feed(layer.feed_forward, layer.norm2, layer.layer_scale_2, flat).view_as(x)


def tokens_embedded(audio: StreamEmbeddings, text: TokenEmbedding, tokens: Tensor) -> Tensor:
    """Embed int64 ``[n, 1 + streams]``, text first, as the sum of their entries ``[n, dim]``."""
    if text.low_rank is not None or text.out1 is not None:
        summed: Tensor = audio(tokens[:, 1:]) + text(tokens[:, 0])
        return summed
    return embedded_streams(audio, text, tokens)


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """Apply a norm to ``[n, dim]``; the norm of our models needs one launch."""
    return normed_rows(x, norm, nn.Identity()).values


def queries(attention: SelfAttention, projected: Tensor, step: PackedStep, window: FrameWindow) -> Tensor:
    """Map projections ``[n * T, dim + 2 * kv_dim]`` to queries ``[n, H, T, D]``; keys and values are written
    to the ring.
    """
    config, ring, turn = attention.config, attention.ring.view(step), window.rotation
    places, count = window.slots.shape
    shape = (places, config.heads, count, config.head_dim)
    q = projected.new_empty(shape, dtype=attention.compute.attention_dtype)
    pages, row_pages = (step.rows, 0) if ring.pages is None else (ring.pages, ring.pages.shape[1])
    rotate_and_write[(config.heads + 2 * config.kv_heads, places * count)](
        projected,
        q if turn is None else turn.cos,
        q if turn is None else turn.sin,
        window.slots,
        step.rows,
        pages,
        q,
        ring.k,
        ring.v,
        q if ring.k_scale is None else ring.k_scale,
        q if ring.v_scale is None else ring.v_scale,
        LARGEST,
        projected.stride(0),
        HEADS=config.heads,
        KV_HEADS=config.kv_heads,
        COUNT=count,
        CAPACITY=config.context,
        WIDTH=config.head_dim,
        IS_TURNED=turn is not None,
        IS_INTERLEAVED=turn is not None and turn.interleaved,
        IS_ROUNDED=ring.form.is_rounded,
        IS_K_PACKED=ring.form.is_packed("k"),
        IS_V_PACKED=ring.form.is_packed("v"),
        PAGES=row_pages,
        PAGE=PAGE_SLOTS,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return q


def cross_step(attention: CrossAttention, x: Tensor, step: PackedStep) -> Tensor:
    """Map ``[n, dim]`` to its attention over the source, ``[n, dim]``, before the projection."""
    projected = linear_rows(attention.in_proj, plain_rows(x, attention.in_proj))
    q = split_heads(projected[:, None, : x.shape[1]], attention.config.head_dim)
    positions = attention.config.cross_positions
    k, v = (step.whole(f"{attention.name}.{part}") for part in VOICE_PARTS)
    voice = RingView(k, v, positions)
    last = torch.full_like(step.rows, positions - 1)  # a ring that is full, its newest entry the last
    return decode_attention(q, voice, last, step.rows, positions).transpose(1, 2).flatten(1)


def _add(linear: nn.Module, rows: LinearInput, residual: Tensor, layer_scale: nn.Module) -> Tensor:
    """Rows ``[n, in]`` through a linear, added to ``residual [n, dim]``."""
    if isinstance(layer_scale, nn.Identity):
        return linear_rows(linear, rows, residual)
    return _scaled(residual, linear_rows(linear, rows), layer_scale)


def _scaled(residual: Tensor, x: Tensor, layer_scale: nn.Module) -> Tensor:
    """``[n, dim]``, scaled and added to the residual."""
    if isinstance(layer_scale, LayerScale):
        return torch.addcmul(residual, x, layer_scale.scale)
    return residual + x


def _feed(block: nn.Module, norm: nn.Module, layer_scale: nn.Module, x: Tensor) -> Tensor:
    """``[n, dim]`` plus its feed-forward block."""
    if not isinstance(block, GatedFeedForward) or not isinstance(layer_scale, nn.Identity):
        return _scaled(x, block(norm(x[:, None]))[:, 0], layer_scale)
    wide = widened_rows(block, normed_rows(x, norm, block.linear_in))
    return linear_rows(block.linear_out, wide, x)


def depformer_steps(
    depformer: DepformerParts, hidden: Tensor, text_tokens: Tensor, choose: Chooser
) -> Tensor:
    """Map hidden ``[n, 1, hidden_dim]`` and text tokens int64 ``[n]`` to audio tokens int64 ``[n, steps]``,
    like :meth:`antiphon.backends.torch.modules.lm.Depformer.forward`.
    """
    config, chosen, flat = depformer.config, [text_tokens], hidden[:, 0]
    heads = config.heads // config.kv_repeat
    shape = (len(depformer.layers), flat.shape[0], 2, heads, config.steps, config.head_dim)
    pasts, inputs = flat.new_empty(shape), None
    tickets = new_tickets(flat.shape[0], 0, flat.device)
    if depformer.joined_inputs is not None:
        inputs = functional.linear(flat, depformer.joined_inputs).split(config.dim, dim=1)
    for step, which in enumerate(config.schedule):
        table = depformer.text_emb if step == 0 else depformer.emb[step - 1]
        assert isinstance(table, TokenEmbedding)
        number = which if config.multi_linear else 0
        if inputs is None:
            linear = depformer.inputs[number]
            x = linear_rows(linear, plain_rows(flat, linear), embedded(table, chosen[-1]))
        else:
            x = embedded(table, chosen[-1], inputs[number])
        for layer, past in zip(depformer.layers, pasts, strict=True):
            x = _depformer_layer(layer, x, which, past, tickets, step)
        norm, head = depformer.norms[step], depformer.linears[step]
        rows = plain_rows(x, head) if isinstance(norm, nn.Identity) else normed_rows(x, norm, head)
        chosen.append(choose(step, linear_rows(head, rows)))
    return torch.stack(chosen[1:], dim=1)


def _depformer_layer(
    layer: nn.Module, x: Tensor, which: int, past: Tensor, tickets: Tensor, step: int
) -> Tensor:
    """One layer and one step: ``[n, dim]`` to the same; ``past [n, 2, kv_heads, steps, D]`` is written."""
    assert isinstance(layer, DepformerLayer)
    linear, out_proj = layer.in_projs[which], layer.out_projs[which]
    projected = linear_rows(linear, normed_rows(x, layer.norm1, linear))
    mixed, heads = x.new_empty(x.shape), layer.dim // layer.head_dim
    rows = empty_rows(x) if rounds(out_proj) else LinearInput(mixed, None, x.dtype)
    attend_steps[(heads, x.shape[0])](
        projected,
        past,
        mixed,
        rows.values,
        mixed if rows.scale is None else rows.scale,
        tickets,
        1.0 / math.sqrt(layer.head_dim),
        step,
        projected.stride(0),
        HEADS=heads,
        GROUP=layer.dim // layer.kv_dim,
        STEPS=past.shape[3],
        BLOCK=triton.next_power_of_2(past.shape[3]),
        WIDTH=layer.head_dim,
        IS_ROUNDED=rows.scale is not None,
        ROUNDED_BLOCK=triton.next_power_of_2(layer.dim),
        num_warps=1,
        enable_fp_fusion=False,
    )
    x = _add(out_proj, rows, x, layer.layer_scale_1)
    return _feed(layer.gating[which], layer.norm2, layer.layer_scale_2, x)
