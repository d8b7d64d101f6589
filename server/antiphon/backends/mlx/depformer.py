"""The depth transformer: one frame's audio tokens, one codebook after the other.

Its sequence is the codebooks of a single frame, so its keys and values live within one call and are no
part of the state. Each step is a slice with its own weights; slices that share weights share arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx

from antiphon.backends.mlx.embedding import load_embedding
from antiphon.backends.mlx.feedforward import load_feed_forward
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.norms import load_norm
from antiphon.backends.mlx.transformer import load_layer_scales, merge_heads, scaled, split_projection
from antiphon.models.architecture import DepformerConfig

Chooser: TypeAlias = Callable[[int, mx.array], mx.array]
"""Called with (step, logits ``[n, card]``), returns the tokens int32 ``[n]``."""

Past: TypeAlias = tuple[mx.array, mx.array]


class DepformerLayer:
    """One layer of one slice."""

    def __init__(self, config: DepformerConfig, width: int, weights: Weights, prefix: str) -> None:
        """Take the layer's weights."""
        dim, kv_dim = config.dim, config.kv_dim
        self._dims = (dim, kv_dim, config.head_dim)
        self.in_proj = weights.linear(f"{prefix}.self_attn.in_proj", dim, dim + 2 * kv_dim)
        self.out_proj = weights.linear(f"{prefix}.self_attn.out_proj", dim, dim)
        self.gating = load_feed_forward(config.gating, weights, f"{prefix}.gating", dim, width)
        self.norm1, self.norm2 = (load_norm(config.norm, weights, f"{prefix}.norm{i}", dim) for i in (1, 2))
        self.scale_1, self.scale_2 = load_layer_scales(weights, prefix, dim, wanted=config.layer_scale)

    def __call__(self, x: mx.array, past: Past | None) -> tuple[mx.array, Past]:
        """``[n, 1, dim]`` and the keys and values of the steps before, to the same with one more."""
        q, k, v = (part.swapaxes(1, 2) for part in split_projection(self.in_proj(self.norm1(x)), self._dims))
        if past is not None:
            k, v = mx.concatenate([past[0], k], axis=2), mx.concatenate([past[1], v], axis=2)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self._dims[2] ** -0.5)
        x = x + scaled(merge_heads(out, self.out_proj), self.scale_1)
        return x + scaled(self.gating(self.norm2(x)), self.scale_2), (k, v)


class DepformerSlice:
    """Everything one step needs: from the main transformer's output and the token before, to logits."""

    def __init__(self, config: DepformerConfig, step: int, weights: Weights, prefix: str) -> None:
        """Take the slice's weights."""
        dim, entries = config.dim, (config.text_card if step == 0 else config.card) + 1
        self.linear_in = weights.linear(f"{prefix}.linear_in", config.hidden_dim, dim)
        demux = config.demux and step == 0
        self.emb = load_embedding(weights, f"{prefix}.emb", entries, dim, config.low_rank, demux=demux)
        width = config.feed_forward[config.schedule[step]]
        self.layers = [
            DepformerLayer(config, width, weights, f"{prefix}.transformer.layers.{i}")
            for i in range(config.layers)
        ]
        self.norm = None
        if config.output_norm is not None:
            self.norm = load_norm(config.output_norm, weights, f"{prefix}.norm", dim)
        self.linear_out = weights.linear(f"{prefix}.linear_out", dim, config.card, bias=config.bias)

    def __call__(self, hidden: mx.array, token: mx.array, pasts: list[Past]) -> tuple[mx.array, list[Past]]:
        """Hidden ``[n, 1, hidden_dim]``, token int32 ``[n]`` and what came before, to logits ``[n, card]``.

        ``pasts`` has each layer's keys and values, and is empty in the first step.
        """
        x = self.linear_in(hidden) + self.emb(token)[:, None]
        seen: list[Past] = []
        for index, layer in enumerate(self.layers):
            x, past = layer(x, pasts[index] if pasts else None)
            seen.append(past)
        return self.linear_out(x if self.norm is None else self.norm(x))[:, 0], seen


Slice: TypeAlias = Callable[[mx.array, mx.array, list[Past]], tuple[mx.array, list[Past]]]


class Depformer:
    """Generates ``steps`` audio tokens from the main transformer's output and the text token."""

    def __init__(self, config: DepformerConfig, weights: Weights, prefix: str) -> None:
        """Take the weights."""
        self.config = config
        self.slices: list[Slice] = [
            DepformerSlice(config, step, weights, f"{prefix}.{step}") for step in range(config.steps)
        ]

    def compile(self) -> None:
        """Have mlx fuse each slice's operations, from its next call on."""
        self.slices = [mx.compile(piece) for piece in self.slices]

    def __call__(self, hidden: mx.array, text_tokens: mx.array, choose: Chooser) -> mx.array:
        """Hidden ``[n, 1, hidden_dim]`` and text tokens int32 ``[n]`` to audio tokens int32 ``[n, steps]``.

        ``choose`` samples each step's logits, in their dtype.
        """
        pasts: list[Past] = []
        chosen = [text_tokens]
        for step, piece in enumerate(self.slices):
            logits, pasts = piece(hidden, chosen[-1], pasts)
            chosen.append(choose(step, logits))
        return mx.stack(chosen[1:], axis=1)
