"""The key-value ring of one attention layer: a window of ``capacity`` positions in explicit state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    State, row first: ``{name}.k`` and ``{name}.v`` ``[H, capacity, D]`` in ``dtype``; position p lives in
    slot ``p mod capacity``. With ``int8`` they are uint32 ``[H, capacity, D / 4]``, and ``{name}.k_scale``,
    ``.k_bias``, ``.v_scale``, ``.v_bias`` ``[H, capacity, D / group]`` in ``dtype`` hold the affine groups,
    computed when a token is written: mlx multiplies by these as they are. ``position`` is the counter of
    the positions that it has been given.
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
        """Write ``k`` and ``v`` ``[n, T, H, D]`` at ``slots [n, T]`` (no slot twice in a row)."""
        for part, values in (("k", k), ("v", v)):
            parts = [values]
            if self.int8:
                parts = list(mx.quantize(values, kv_group_size(self.head_dim), KV_BITS))
            for name, array in zip(self._names(part), parts, strict=True):
                step.write_slots(name, slots, array)

    def attend(self, step: Step, q: mx.array, mask: mx.array, lengths: Sequence[int]) -> mx.array:
        """Queries ``[n, HQ, T, D]`` over the slots that ``mask`` bool ``[n, 1, T, length]`` allows.

        Of each run of the step's packing so many slots are read as ``lengths`` says; places outside of all
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


def attend_by_runs(step: Step, q: mx.array, attend: Callable[[mx.array, int], mx.array]) -> mx.array:
    """``attend`` of the queries ``[n, HQ, T, D]`` of each run and its number; zeros outside of all runs."""
    parts, done = [], 0
    for number, (start, stop, _) in enumerate(step.packing.runs):
        parts += [] if start == done else [mx.zeros((start - done, *q.shape[1:]), q.dtype)]
        parts.append(attend(q[start:stop], number))
        done = stop
    if done < len(q):
        parts.append(mx.zeros((len(q) - done, *q.shape[1:]), q.dtype))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)
