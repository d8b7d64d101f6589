"""Token embeddings of the language models, with their special values."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from antiphon.backends.mlx.matrix import Linear, Matrix, Weights, stack

ZERO_TOKEN = -1
"""This token adds nothing to the input."""


@dataclass(frozen=True, slots=True)
class TokenEmbedding:
    """One stream's table ``[entries, width]``, projected to ``dim`` where the width is lower."""

    table: Matrix
    low_rank: Linear | None = None

    def __call__(self, tokens: mx.array) -> mx.array:
        """Int32 ``[...]`` to ``[..., dim]``."""
        found = self.table.rows(mx.maximum(tokens, 0))
        found = mx.where((tokens == ZERO_TOKEN)[..., None], mx.array(0, found.dtype), found)
        return found if self.low_rank is None else self.low_rank(found)


def load_embedding(
    weights: Weights, name: str, entries: int, dim: int, low_rank: int | None = None
) -> TokenEmbedding:
    """The embedding ``name``. Raises CheckpointFormatError where the file has another shape."""
    projection = weights.linear(f"{name}.low_rank", low_rank, dim) if low_rank else None
    return TokenEmbedding(weights.matrix(name, entries, low_rank or dim), projection)


class StreamEmbeddings:
    """The tables of all audio streams in one; their entries add up."""

    def __init__(self, weights: Weights, prefix: str, streams: int, entries: int, dim: int) -> None:
        """Take the tables ``{prefix}.0`` and so on."""
        self._first = mx.arange(streams) * entries
        self.table = stack([weights.matrix(f"{prefix}.{i}", entries, dim) for i in range(streams)])

    def __call__(self, tokens: mx.array) -> mx.array:
        """Int32 ``[n, streams]`` to ``[n, dim]``."""
        found = self.table.rows(mx.maximum(tokens, 0) + self._first)
        return mx.where((tokens == ZERO_TOKEN)[..., None], mx.array(0, found.dtype), found).sum(axis=1)
