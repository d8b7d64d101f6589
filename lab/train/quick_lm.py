"""Upstream's language model over whole rows, with equal results in less time, for training.

Upstream's layers are made for one frame after another. Over rows of 300 frames on a CPU, half their time is
spent on attention to frames outside of the model's window; here every block of frames attends only to its own
context, and the embeddings of all streams are added in one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

BLOCK: Final = 75
"""Frames of a block: smaller ones waste less on masked frames, larger ones make larger products."""


class Windowed(torch.autograd.Function):
    """Causal attention ``[N, T, D]`` in which a frame attends to itself and to the ``context - 1`` frames
    before it."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, context: int) -> Tensor:
        """Compute the attention; ``queries`` are scaled already."""
        heard, shares = torch.empty_like(queries), []
        frames = torch.arange(queries.shape[1], device=queries.device)
        for start, stop, low in blocks_of(queries.shape[1], context):
            delta = frames[start:stop, None] - frames[low:stop]
            bias = torch.where((delta >= 0) & (delta < context), 0.0, -math.inf).to(queries.dtype)
            scores = torch.baddbmm(bias, queries[:, start:stop], keys[:, low:stop].transpose(1, 2))
            shares.append(scores.softmax(-1).to(values.dtype))  # autocast on a GPU makes it float32
            heard[:, start:stop] = torch.bmm(shares[-1], values[:, low:stop])
        ctx.save_for_backward(queries, keys, values, *shares)
        ctx.context = context
        return heard

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of queries, keys and values."""
        queries, keys, values, *shares = ctx.saved_tensors
        of_queries = torch.empty_like(queries)
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        blocks = blocks_of(queries.shape[1], ctx.context)
        for (start, stop, low), share in zip(blocks, shares, strict=True):
            given = gradients[0][:, start:stop]
            of_values[:, low:stop] += torch.bmm(share.transpose(1, 2), given)
            of_share = torch.bmm(given, values[:, low:stop].transpose(1, 2))
            of_scores = torch._softmax_backward_data(of_share, share, -1, share.dtype)
            of_queries[:, start:stop] = torch.bmm(of_scores, keys[:, low:stop])
            of_keys[:, low:stop] += torch.bmm(of_scores.transpose(1, 2), queries[:, start:stop])
        return of_queries, of_keys, of_values, None


def blocks_of(frames: int, context: int) -> list[tuple[int, int, int]]:
    """Return the start and end of each block, and the first frame that the block attends to."""
    starts = range(0, frames, BLOCK)
    return [(start, min(frames, start + BLOCK), max(0, start - context + 1)) for start in starts]


@dataclass(frozen=True, slots=True)
class Read:
    """A model's outputs: ``last [B, T, C]`` normalised, the outputs of ``layers`` before that, and the text's
    logits."""

    last: Tensor
    layers: tuple[Tensor, ...]
    text_logits: Tensor


def read(lm: Any, inputs: Tensor) -> Read:
    """Compute ``forward_text`` of upstream's ``lm`` on ``inputs [B, K, T]``, from the first frame on."""
    hidden = embedded(lm, inputs)
    attention = lm.transformer.layers[0].self_attn
    heads, size = attention.num_heads, attention.embed_dim // attention.num_heads
    turns = _turns(hidden.shape[1], heads, size, lm.transformer.max_period).to(hidden.device)
    layers = []
    for layer in lm.transformer.layers:
        hidden = _fed_forward(layer, _attended(layer, hidden, turns))
        layers.append(hidden)
    last = lm.out_norm(hidden)
    return Read(last, tuple(layers), lm.text_linear(last))


def embedded(lm: Any, inputs: Tensor) -> Tensor:
    """Return the sum of the embeddings of all streams, ``[B, T, C]``; a negative token adds nothing."""
    tables = [lm.text_emb.weight, *(one.weight for one in lm.emb)]
    *starts, nothing = accumulate((one.shape[0] for one in tables), initial=0)
    rows = torch.where(inputs < 0, nothing, inputs + torch.tensor(starts, device=inputs.device)[:, None])
    table = torch.cat([*tables, tables[0].new_zeros(1, tables[0].shape[1])])
    batch, streams, frames = inputs.shape
    flat = rows.transpose(1, 2).reshape(batch * frames, streams)
    return functional.embedding_bag(flat, table, mode="sum", padding_idx=nothing).view(batch, frames, -1)


def _turns(frames: int, heads: int, size: int, period: float) -> Tensor:
    """The rotation of each pair of each head in each frame: complex ``[T, 2 * heads, size / 2]``.

    Queries, which are first, are also scaled.
    """
    rates = torch.exp(torch.arange(size // 2) * (-2 * math.log(period) / size))
    angles = (torch.arange(frames)[:, None] * rates)[:, None].expand(-1, 2 * heads, -1)
    lengths = torch.ones(2 * heads, 1)
    lengths[:heads] = size**-0.5
    return torch.polar(lengths.expand_as(angles).contiguous(), angles)


def _attended(layer: Any, hidden: Tensor, turns: Tensor) -> Tensor:
    attention = layer.self_attn
    batch, frames, width = hidden.shape
    heads = attention.num_heads
    projected = functional.linear(layer.norm1(hidden), attention.in_projs[0].weight)
    pairs, values = projected.split((2 * width, width), -1)
    pairs = torch.view_as_complex(pairs.float().view(batch, frames, 2 * heads, -1, 2)) * turns
    queries, keys = torch.view_as_real(pairs).to(projected).flatten(-2).chunk(2, 2)

    def rows(parts: Tensor) -> Tensor:
        return parts.transpose(1, 2).reshape(batch * heads, frames, -1)

    values = rows(values.view(batch, frames, heads, -1))
    heard: Tensor = cast("Any", Windowed).apply(rows(queries), rows(keys), values, attention.context)
    together = heard.view(batch, heads, frames, -1).transpose(1, 2).reshape(batch, frames, width)
    update = functional.linear(together, attention.out_projs[0].weight)
    return hidden.to(update) + update


def _fed_forward(layer: Any, hidden: Tensor) -> Tensor:
    gating = layer.gating
    gate, value = functional.linear(layer.norm2(hidden), gating.linear_in.weight).chunk(2, -1)
    update = functional.linear(functional.silu(gate) * value, gating.linear_out.weight)
    return hidden.to(update) + update
