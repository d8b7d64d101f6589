"""The streaming transformer of Mimi and of the language model, with its KV rings in explicit state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from antiphon.backends.mlx.layers import Linear, Weights, load_feed_forward, load_norm, rotate, rotation
from antiphon.backends.mlx.state import Step
from antiphon.backends.snapshots import TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import TransformerConfig

KV_BITS = 8
_GROUP_SIZES = (128, 64, 32)
_NUMBERS_PER_WORD = 32 // KV_BITS


def kv_group_size(head_dim: int) -> int:
    """The number of values that share a scale in an 8-bit ring: the largest of mlx's group sizes that divides
    a head.

    Raises:
        UnsupportedError: no group size divides it.
    """
    for size in _GROUP_SIZES:
        if head_dim % size == 0:
            return size
    raise UnsupportedError(f"kv 'int8' needs heads whose width is a multiple of 32, not {head_dim}")


@dataclass(frozen=True, slots=True)
class KVRing:
    """Names and shapes of one layer's ring, and the attention over it.

    State, row first: ``{name}.k`` and ``{name}.v`` ``[H, capacity, D]`` in ``dtype``; position p is in slot
    ``p mod capacity``. With ``int8`` they are uint32 ``[H, capacity, D / 4]``, and ``{name}.k_scale``,
    ``.k_bias``, ``.v_scale``, ``.v_bias`` ``[H, capacity, D / group]`` in ``dtype`` hold the affine groups,
    computed when a token is written; mlx multiplies by them without unpacking. ``position`` counts the
    positions written.
    """

    name: str
    heads: int
    capacity: int
    head_dim: int
    dtype: mx.Dtype
    position: str
    int8: bool = False

    def specs(self) -> Iterator[TensorSpec]:
        """The state this ring keeps."""
        width = self.head_dim
        kinds = {"": (width, self.dtype)}
        if self.int8:
            groups = width // kv_group_size(width)
            kinds = {"": (width // _NUMBERS_PER_WORD, mx.uint32)}
            kinds |= {"_scale": (groups, self.dtype), "_bias": (groups, self.dtype)}
        for part in ("k", "v"):
            for kind, (last, dtype) in kinds.items():
                shape = (self.heads, self.capacity, last)
                yield TensorSpec(f"{self.name}.{part}{kind}", shape, dtype, position=self.position)

    def write(self, step: Step, slots: mx.array, k: mx.array, v: mx.array) -> None:
        """Write ``k`` and ``v`` ``[n, T, H, D]`` at ``slots [n, T]`` (different slots within a row)."""
        for part, values in (("k", k), ("v", v)):
            parts = [values]
            if self.int8:
                parts = list(mx.quantize(values, kv_group_size(self.head_dim), KV_BITS))
            for name, array in zip(self._names(part), parts, strict=True):
                step.write_slots(name, slots, array)

    def attend(self, step: Step, q: mx.array, mask: mx.array, lengths: Sequence[int]) -> mx.array:
        """Attend with queries ``[n, HQ, T, D]`` to the slots that ``mask`` bool ``[n, 1, T, length]`` allows.

        For each run of the step's packing only the first ``lengths`` slots are read. Places outside of all
        runs get zeros.
        """

        def attend(queries: mx.array, number: int) -> mx.array:
            run, length = step.packing.runs[number], lengths[number]
            keys, values = ([step.read_slots(n, run, length) for n in self._names(p)] for p in ("k", "v"))
            start, stop, _ = run
            return self._attend(queries, keys, values, mask[start:stop, ..., :length])

        return attend_by_runs(step, q, attend)

    def _attend(self, q: mx.array, keys: list[mx.array], values: list[mx.array], mask: mx.array) -> mx.array:
        scale = self.head_dim**-0.5
        if not self.int8:
            return mx.fast.scaled_dot_product_attention(q, *keys, *values, scale=scale, mask=mask)
        group = kv_group_size(self.head_dim)
        rows, heads, count, _ = q.shape
        shared = heads // self.heads  # queries that share keys are stacked
        flat = q.reshape(rows, self.heads, shared * count, self.head_dim)
        scores = mx.quantized_matmul(flat * scale, keys[0], keys[1], keys[2], True, group, KV_BITS)
        scores = mx.where(mx.tile(mask, (1, 1, shared, 1)), scores, -mx.inf)
        weights = mx.softmax(scores, axis=-1, precise=True)
        out = mx.quantized_matmul(weights, values[0], values[1], values[2], False, group, KV_BITS)
        return out.reshape(q.shape)

    def _names(self, part: str) -> tuple[str, ...]:
        name = f"{self.name}.{part}"
        return (name, f"{name}_scale", f"{name}_bias") if self.int8 else (name,)


def attend_by_runs(step: Step, q: mx.array, attend: Callable[[mx.array, int], mx.array]) -> mx.array:
    """Apply ``attend`` to the queries ``[n, HQ, T, D]`` of each run, with the run's number; places outside of
    all runs get zeros.
    """
    parts, done = [], 0
    for number, (start, stop, _) in enumerate(step.packing.runs):
        parts += [] if start == done else [mx.zeros((start - done, *q.shape[1:]), q.dtype)]
        parts.append(attend(q[start:stop], number))
        done = stop
    if done < len(q):
        parts.append(mx.zeros((len(q) - done, *q.shape[1:]), q.dtype))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Window:
    """The values that all layers share in one forward pass.

    ``slots [n, T]`` are the slots to write. ``mask`` bool ``[n, 1, T, keys]``: the keys that each position
    sees. ``turn``: cosine and sine of the rotation, if there is one. ``lengths``: the slots that each run of
    rows reads.
    """

    slots: mx.array
    mask: mx.array
    turn: tuple[()] | tuple[mx.array, mx.array]
    lengths: tuple[int, ...]


def split_projection(x: mx.array, config_dims: tuple[int, int, int]) -> tuple[mx.array, mx.array, mx.array]:
    """Map ``[n, T, dim + 2 kv_dim]`` to queries, keys and values, each ``[n, T, H, D]``.

    ``config_dims`` are dim, kv_dim and the width of a head.
    """
    dim, kv_dim, head_dim = config_dims
    q, k, v = mx.split(x, [dim, dim + kv_dim], axis=-1)
    shape = (*x.shape[:2], -1, head_dim)
    return q.reshape(shape), k.reshape(shape), v.reshape(shape)


def merge_heads(x: mx.array, out_proj: Linear) -> mx.array:
    """Apply the output projection to ``[n, H, T, D]``: ``[n, T, dim]``."""
    rows, _, count, _ = x.shape
    return out_proj(x.swapaxes(1, 2).reshape(rows, count, -1))


class CrossAttention:
    """Attention to a fixed source, whose keys and values are state (a voice is computed once).

    State, row first: ``{name}.cross_k`` and ``{name}.cross_v`` ``[H, cross_positions, D]``.
    """

    def __init__(self, name: str, config: TransformerConfig, weights: Weights, prefix: str) -> None:
        """Take the layer's weights, its norm's among them."""
        self._config, self._dtype = config, weights.dtype
        self._names = (f"{name}.cross_k", f"{name}.cross_v")
        self.in_proj = weights.linear(f"{prefix}.cross_attention.in_proj", config.dim, 3 * config.dim)
        self.out_proj = weights.linear(f"{prefix}.cross_attention.out_proj", config.dim, config.dim)
        self.norm = load_norm("layer_norm", weights, f"{prefix}.norm_cross", config.dim)
        scale = f"{prefix}.layer_scale_cross.scale"
        self.scale = weights.array(scale, (config.dim,)) if config.layer_scale else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        shape = (self._config.heads, self._config.cross_positions, self._config.head_dim)
        for name in self._names:
            yield TensorSpec(name, shape, self._dtype, is_kept=True)

    def voice(self, source: mx.array) -> Iterator[tuple[str, mx.array]]:
        """Keys and values ``[H, P, D]`` of a source ``[P, dim]``, by name."""
        _, k, v = self._split(source[None].astype(self._dtype))
        yield from zip(self._names, (k[0].swapaxes(0, 1), v[0].swapaxes(0, 1)), strict=True)

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Map ``[n, T, dim]`` to the same shape, the input included."""
        q, _, _ = self._split(self.norm(x))
        scale, length = self._config.head_dim**-0.5, self._config.cross_positions

        def attend(queries: mx.array, number: int) -> mx.array:
            run = step.packing.runs[number]
            keys, values = (step.read_slots(name, run, length) for name in self._names)
            return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale)

        found = attend_by_runs(step, q.swapaxes(1, 2), attend)
        return x + scaled(merge_heads(found, self.out_proj), self.scale)

    def _split(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        return split_projection(self.in_proj(x), (self._config.dim, self._config.dim, self._config.head_dim))


class TransformerLayer:
    """A transformer layer: self-attention, cross-attention where configured, and a feed-forward block, each
    with a norm before it and added to its input.

    Weights of the attention: ``in_proj`` (q, k, v stacked) and ``out_proj``. The part between two uses of the
    ring depends only on packed arrays.
    """

    def __init__(
        self, name: str, config: TransformerConfig, weights: Weights, prefix: str, *, int8_kv: bool
    ) -> None:
        """Take the layer's weights; ``name`` is that of its ring, the transformer's name before it."""
        dim, attention = config.dim, f"{prefix}.self_attn"
        self._dims, self._interleaved = (dim, config.kv_dim, config.head_dim), config.rope == "rope"
        self.in_proj = weights.linear(f"{attention}.in_proj", dim, dim + 2 * config.kv_dim)
        self.out_proj = weights.linear(f"{attention}.out_proj", dim, dim)
        self.ring = KVRing(
            name,
            config.kv_heads,
            config.context,
            config.head_dim,
            weights.dtype,
            f"{name.rpartition('.')[0]}.position",
            int8_kv,
        )
        self.norm1 = load_norm(config.norm, weights, f"{prefix}.norm1", dim)
        self.norm2 = load_norm(config.norm, weights, f"{prefix}.norm2", dim)
        self.feed_forward = load_feed_forward(
            config.gating, weights, f"{prefix}.gating", dim, config.feed_forward
        )
        self.scale_1, self.scale_2 = load_layer_scales(weights, prefix, dim, wanted=config.layer_scale)
        self.cross = CrossAttention(name, config, weights, prefix) if config.cross_positions else None
        self._project, self._join, self._feed = self.project, self.join, self.feed

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield from self.ring.specs()
        if self.cross is not None:
            yield from self.cross.specs()

    def compile(self) -> None:
        """Have mlx fuse the part between two uses of the ring, from the next call on."""
        self._project = mx.compile(self.project)
        self._join, self._feed = mx.compile(self.join), mx.compile(self.feed)

    def project(self, x: mx.array, *turn: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Map ``[n, T, dim]`` to rotated queries and keys and to values, each ``[n, T, H, D]``."""
        q, k, v = split_projection(self.in_proj(self.norm1(x)), self._dims)
        if turn:
            q, k = (rotate(part, *turn, interleaved=self._interleaved) for part in (q, k))
        return q, k, v

    def join(self, x: mx.array, attended: mx.array) -> mx.array:
        """The layer's input ``x`` plus the attention's result, ``[n, H, T, D]``."""
        return x + scaled(merge_heads(attended, self.out_proj), self.scale_1)

    def feed(self, x: mx.array) -> mx.array:
        """``x`` plus the output of the feed-forward block."""
        return x + scaled(self.feed_forward(self.norm2(x)), self.scale_2)

    def __call__(self, x: mx.array, step: Step, window: Window) -> mx.array:
        """Map ``[n, T, dim]`` to the same shape."""
        q, k, v = self._project(x, *window.turn)
        self.ring.write(step, window.slots, k, v)
        x = self._join(x, self.ring.attend(step, q.swapaxes(1, 2), window.mask, window.lengths))
        return self._feed(x if self.cross is None else self.cross(x, step))


def load_layer_scales(
    weights: Weights, prefix: str, dim: int, *, wanted: bool
) -> tuple[mx.array | None, mx.array | None]:
    """The two learnt scales of a layer (Touvron et al. 2021), or two None if it has no scales."""
    if not wanted:
        return None, None
    first, second = (weights.array(f"{prefix}.layer_scale_{i}.scale", (dim,)) for i in (1, 2))
    return first, second


def scaled(x: mx.array, scale: mx.array | None) -> mx.array:
    """``x`` times a layer scale, if there is one."""
    return x if scale is None else x * scale


class StreamingTransformer:
    """Transformer layers that share a position counter. State ``{name}.position`` int32: positions seen."""

    def __init__(
        self, name: str, config: TransformerConfig, weights: Weights, prefix: str, *, int8_kv: bool = False
    ) -> None:
        """Take the weights whose names begin with ``prefix``."""
        self.name, self.config = name, config
        self.layers = [
            TransformerLayer(f"{name}.{i}", config, weights, f"{prefix}.layers.{i}", int8_kv=int8_kv)
            for i in range(config.layers)
        ]

    def specs(self) -> Iterator[TensorSpec]:
        """The state this transformer keeps."""
        yield TensorSpec(f"{self.name}.position", (), mx.int32)
        for layer in self.layers:
            yield from layer.specs()

    def voice(self, source: mx.array) -> dict[str, mx.array]:
        """Every layer's keys and values of a cross-attention source ``[P, dim]``, by name."""
        crossing = [layer.cross for layer in self.layers if layer.cross is not None]
        return {name: part for cross in crossing for name, part in cross.voice(source)}

    def compile(self) -> None:
        """Have mlx fuse the layers, from the next call on."""
        for layer in self.layers:
            layer.compile()

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """Map ``[n, T, dim]`` to the same shape; T is one frame's positions, or those of several.

        Several frames must not wrap around the ring, since the overwritten slots are still needed.
        """
        position = step.read(f"{self.name}.position")
        count, config = x.shape[1], self.config
        most = [int(step.frames[start:stop].max()) for start, stop, _ in step.packing.runs]
        lengths = tuple(min(frames * config.frame_positions, config.context) for frames in most)
        positions = position[:, None] + mx.arange(count)
        last = positions[:, -1:]
        turn = () if config.rope == "none" else rotation(positions, config.head_dim, config.max_period)
        keys = last - (last - mx.arange(max(lengths))) % config.context  # the position in each slot
        mask = (keys[:, None] >= 0) & (keys[:, None] <= positions[:, :, None])
        window = Window(positions % config.context, mask[:, None], turn, lengths)
        for layer in self.layers:
            x = layer(x, step, window)
        step.write(f"{self.name}.position", position + count)
        return x
