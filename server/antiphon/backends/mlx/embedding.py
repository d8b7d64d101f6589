"""Token embeddings of the language models, with their special values."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from antiphon.backends.mlx.matrix import Linear, Matrix, Weights, stack

ZERO_TOKEN = -1
"""This token adds nothing to the input."""


@dataclass(frozen=True, slots=True)
class TokenEmbedding:
    """One stream's table ``[entries, width]``, projected to ``dim`` where the width is lower.

    With ``pair`` a token carries two: ``first + entries * (second + 1)``; both use the table, each its own
    projection, and a second of -1 adds nothing (tts-1.6b's text of two voices).
    """

    table: Matrix
    low_rank: Linear | None = None
    pair: tuple[Linear, Linear] | None = None

    def __call__(self, tokens: mx.array) -> mx.array:
        """Int32 ``[...]`` to ``[..., dim]``."""
        is_zero, tokens = (tokens == ZERO_TOKEN)[..., None], mx.maximum(tokens, 0)
        if self.pair is not None:
            entries = self.table.weight.shape[0]
            second = tokens // entries - 1
            left, right = self.table.rows(tokens % entries), self.table.rows(mx.maximum(second, 0))
            left, right = (project(part) for project, part in zip(self.pair, (left, right), strict=True))
            nothing = mx.array(0, left.dtype)
            return mx.where(is_zero, nothing, left + mx.where((second < 0)[..., None], nothing, right))
        found = self.table.rows(tokens)
        found = mx.where(is_zero, mx.array(0, found.dtype), found)
        return found if self.low_rank is None else self.low_rank(found)


def load_embedding(
    weights: Weights, name: str, entries: int, dim: int, low_rank: int | None = None, *, demux: bool = False
) -> TokenEmbedding:
    """The embedding ``name``; with ``demux`` of tokens that carry two.

    Raises:
        CheckpointFormatError: the file has another shape.
    """
    width = low_rank or dim
    projection = weights.linear(f"{name}.low_rank", low_rank, dim) if low_rank else None
    pair = None
    if demux:
        pair = weights.linear(f"{name}.out1", width, dim), weights.linear(f"{name}.out2", width, dim)
    return TokenEmbedding(weights.matrix(name, entries, width), projection, pair)


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
