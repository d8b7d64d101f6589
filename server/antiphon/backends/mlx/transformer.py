"""The streaming transformer of Mimi and of the language model, with its KV rings in explicit state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from antiphon.backends.mlx.feedforward import load_feed_forward
from antiphon.backends.mlx.kv import KVRing
from antiphon.backends.mlx.matrix import Linear, Weights
from antiphon.backends.mlx.norms import load_norm
from antiphon.backends.mlx.rope import Rotation, rotation
from antiphon.backends.mlx.state import Step, TensorSpec


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a streaming transformer.

    ``context`` is the window in positions, and the ring's capacity. ``frame_positions`` is how many
    positions one frame brings (1 for the language model, 2 for Mimi). ``rope`` is "rope" (interleaved
    pairs), "rope_concat" (halves) or "none".
    """

    dim: int
    heads: int
    layers: int
    context: int
    feed_forward: int
    kv_repeat: int = 1
    frame_positions: int = 1
    gating: str = "none"
    norm: str = "layer_norm"
    rope: str = "rope"
    max_period: float = 10000.0
    layer_scale: bool = False
    int8_kv: bool = False

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; queries share them in groups (GQA) when fewer than ``heads``."""
        return self.heads // self.kv_repeat

    @property
    def kv_dim(self) -> int:
        """Width of a position's keys."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Window:
    """What all layers share in one forward pass.

    ``slots [n, T]``: where its positions go. ``mask`` bool ``[n, 1, T, keys]``: what each may see.
    """

    slots: mx.array
    mask: mx.array
    rotation: Rotation | None


def split_projection(x: mx.array, config_dims: tuple[int, int, int]) -> tuple[mx.array, mx.array, mx.array]:
    """``[n, T, dim + 2 kv_dim]`` to queries, keys and values, each ``[n, T, H, D]``.

    ``config_dims`` are dim, kv_dim and the width of a head.
    """
    dim, kv_dim, head_dim = config_dims
    q, k, v = mx.split(x, [dim, dim + kv_dim], axis=-1)
    shape = (*x.shape[:2], -1, head_dim)
    return q.reshape(shape), k.reshape(shape), v.reshape(shape)


def merge_heads(x: mx.array, out_proj: Linear) -> mx.array:
    """``[n, H, T, D]`` through the output projection: ``[n, T, dim]``."""
    rows, _, count, _ = x.shape
    return out_proj(x.swapaxes(1, 2).reshape(rows, count, -1))


class SelfAttention:
    """Causal attention over a KV ring. Weights: ``in_proj`` (q, k, v stacked) and ``out_proj``."""

    def __init__(self, name: str, config: TransformerConfig, weights: Weights, prefix: str) -> None:
        """Take the layer's weights."""
        self._dims = (config.dim, config.kv_dim, config.head_dim)
        self.in_proj = weights.linear(f"{prefix}.in_proj", config.dim, config.dim + 2 * config.kv_dim)
        self.out_proj = weights.linear(f"{prefix}.out_proj", config.dim, config.dim)
        self.ring = KVRing(
            name, config.kv_heads, config.context, config.head_dim, weights.dtype, config.int8_kv
        )

    def __call__(self, x: mx.array, step: Step, window: Window) -> mx.array:
        """``[n, T, dim]`` to the same."""
        q, k, v = split_projection(self.in_proj(x), self._dims)
        if window.rotation is not None:
            q, k = window.rotation.apply(q), window.rotation.apply(k)
        self.ring.write(step, window.slots, k, v)
        return merge_heads(self.ring.attend(step, q.swapaxes(1, 2), window.mask), self.out_proj)


class TransformerLayer:
    """Self-attention and feed-forward; each normed first and added."""

    def __init__(self, name: str, config: TransformerConfig, weights: Weights, prefix: str) -> None:
        """Take the layer's weights."""
        dim = config.dim
        self.self_attn = SelfAttention(name, config, weights, f"{prefix}.self_attn")
        self.norm1 = load_norm(config.norm, weights, f"{prefix}.norm1", dim)
        self.norm2 = load_norm(config.norm, weights, f"{prefix}.norm2", dim)
        self.feed_forward = load_feed_forward(
            config.gating, weights, f"{prefix}.gating", dim, config.feed_forward
        )
        self.scale_1, self.scale_2 = load_layer_scales(weights, prefix, dim, wanted=config.layer_scale)

    def __call__(self, x: mx.array, step: Step, window: Window) -> mx.array:
        """``[n, T, dim]`` to the same."""
        x = x + scaled(self.self_attn(self.norm1(x), step, window), self.scale_1)
        return x + scaled(self.feed_forward(self.norm2(x)), self.scale_2)


def load_layer_scales(
    weights: Weights, prefix: str, dim: int, *, wanted: bool
) -> tuple[mx.array | None, mx.array | None]:
    """A layer's two learnt scales (Touvron et al. 2021), or None twice."""
    if not wanted:
        return None, None
    first, second = (weights.array(f"{prefix}.layer_scale_{i}.scale", (dim,)) for i in (1, 2))
    return first, second


def scaled(x: mx.array, scale: mx.array | None) -> mx.array:
    """``x`` times a layer scale, where there is one."""
    return x if scale is None else x * scale


class StreamingTransformer:
    """Layers over a common position counter. State ``{name}.position`` int32: positions seen."""

    def __init__(self, name: str, config: TransformerConfig, weights: Weights, prefix: str) -> None:
        """Take the weights whose names begin with ``prefix``."""
        self.name, self.config = name, config
        self.layers = [
            TransformerLayer(f"{name}.{i}", config, weights, f"{prefix}.layers.{i}")
            for i in range(config.layers)
        ]

    def specs(self) -> Iterator[TensorSpec]:
        """The state this transformer keeps."""
        yield TensorSpec(f"{self.name}.position", (), mx.int32)
        for layer in self.layers:
            yield from layer.self_attn.ring.specs()

    def _window(self, positions: mx.array, length: int) -> Window:
        config, last = self.config, positions[:, -1:]
        turn = None
        if config.rope != "none":
            turn = rotation(positions, config.head_dim, config.max_period, interleaved=config.rope == "rope")
        keys = last - (last - mx.arange(length)) % config.context  # the position each slot holds
        mask = (keys[:, None] >= 0) & (keys[:, None] <= positions[:, :, None])
        return Window(positions % config.context, mask[:, None], turn)

    def __call__(self, x: mx.array, step: Step, filled: int) -> mx.array:
        """``[n, T, dim]`` to the same, T being one frame's positions.

        ``filled`` bounds how many ring slots are read: every executed row must have seen at most that
        many positions, this pass's included.
        """
        position = step.read(f"{self.name}.position")
        count = x.shape[1]
        window = self._window(position[:, None] + mx.arange(count), min(filled, self.config.context))
        for layer in self.layers:
            x = layer(x, step, window)
        step.write(f"{self.name}.position", position + count)
        return x
