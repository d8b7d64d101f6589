"""The key-value ring of one attention layer: a window of ``capacity`` positions in explicit state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from antiphon.backends.mlx.state import Step, TensorSpec
from antiphon.errors import UnsupportedError

KV_BITS = 8
_GROUP_SIZES = (128, 64, 32)
_NUMBERS_PER_WORD = 32 // KV_BITS


def kv_group_size(head_dim: int) -> int:
    """Numbers that share a scale in an 8-bit ring: the widest of mlx's groups that heads divide into.

    Raises:
        UnsupportedError: there is none.
    """
    for size in _GROUP_SIZES:
        if head_dim % size == 0:
            return size
    raise UnsupportedError(f"kv 'int8' needs heads whose width is a multiple of 32, not {head_dim}")


@dataclass(frozen=True, slots=True)
class KVRing:
    """Names and shapes of one layer's ring, and the attention over it.

    State, row first: ``{name}.k`` and ``{name}.v`` ``[H, capacity + 1, D]`` in ``dtype``; position p lives
    in slot ``p mod capacity``, and the last slot takes what rows that pause would have written. With
    ``int8`` they are uint32 ``[H, capacity + 1, D / 4]``, and ``{name}.k_scale``, ``.k_bias``, ``.v_scale``,
    ``.v_bias`` ``[H, capacity + 1, D / group]`` in ``dtype`` hold the affine groups, computed when a token
    is written: mlx multiplies by these as they are.
    """

    name: str
    heads: int
    capacity: int
    head_dim: int
    dtype: mx.Dtype
    int8: bool = False

    def specs(self) -> Iterator[TensorSpec]:
        """The state this ring keeps."""
        slots = self.capacity + 1
        for part in ("k", "v"):
            if not self.int8:
                yield TensorSpec(f"{self.name}.{part}", (self.heads, slots, self.head_dim), self.dtype)
                continue
            words = self.head_dim // _NUMBERS_PER_WORD
            groups = (self.heads, slots, self.head_dim // kv_group_size(self.head_dim))
            yield TensorSpec(f"{self.name}.{part}", (self.heads, slots, words), mx.uint32)
            yield TensorSpec(f"{self.name}.{part}_scale", groups, self.dtype)
            yield TensorSpec(f"{self.name}.{part}_bias", groups, self.dtype)

    def write(self, step: Step, slots: mx.array, k: mx.array, v: mx.array) -> None:
        """Write ``k`` and ``v`` ``[n, T, H, D]`` at ``slots [n, T]`` (no slot twice in a row)."""
        for part, values in (("k", k), ("v", v)):
            parts = [values]
            if self.int8:
                parts = list(mx.quantize(values, kv_group_size(self.head_dim), KV_BITS))
            for name, array in zip(self._names(part), parts, strict=True):
                step.write_slots(name, slots, array)

    def attend(self, step: Step, q: mx.array, mask: mx.array) -> mx.array:
        """Queries ``[n, HQ, T, D]`` over the slots that ``mask`` bool ``[n, 1, T, length]`` allows."""
        length, scale = mask.shape[-1], self.head_dim**-0.5
        keys, values = ([step.read(name)[:, :, :length] for name in self._names(part)] for part in ("k", "v"))
        if not self.int8:
            return mx.fast.scaled_dot_product_attention(q, *keys, *values, scale=scale, mask=mask)
        group = kv_group_size(self.head_dim)
        rows, heads, count, _ = q.shape
        shared = heads // self.heads  # queries that share keys stand below each other
        flat = q.reshape(rows, self.heads, shared * count, self.head_dim)
        scores = mx.quantized_matmul(flat * scale, keys[0], keys[1], keys[2], True, group, KV_BITS)
        scores = mx.where(mx.tile(mask, (1, 1, shared, 1)), scores, -mx.inf)
        weights = mx.softmax(scores, axis=-1, precise=True)
        out = mx.quantized_matmul(weights, values[0], values[1], values[2], False, group, KV_BITS)
        return out.reshape(q.shape)

    def _names(self, part: str) -> tuple[str, ...]:
        name = f"{self.name}.{part}"
        return (name, f"{name}_scale", f"{name}_bias") if self.int8 else (name,)
