"""Split residual vector quantisation: one semantic level, then a residual chain of acoustic ones."""

from __future__ import annotations

import mlx.core as mx

from antiphon.backends.mlx.matrix import Weights


class ResidualQuantizer:
    """A chain of codebooks ``tables [levels, cardinality, width]`` between two projections.

    Each level picks the entry nearest to what the levels before left over (Zeghidour et al. 2021). The
    nearest entry maximises ``x . e - |e|^2 / 2``; equal scores take the lowest index.
    """

    def __init__(self, weights: Weights, prefix: str, shape: tuple[int, int, int], dimension: int) -> None:
        """Take the weights; ``shape`` is that of the tables."""
        levels, cardinality, width = shape
        self.levels = levels
        self.input_proj = weights.linear(f"{prefix}.input_proj", dimension, width)
        self.output_proj = weights.linear(f"{prefix}.output_proj", width, dimension)
        self.tables = [weights.array(f"{prefix}.tables.{i}", (cardinality, width)) for i in range(levels)]
        self.half_norms = [mx.square(table).sum(-1) / 2 for table in self.tables]

    def encode(self, x: mx.array) -> mx.array:
        """Latents ``[n, dimension]`` to codes int32 ``[n, levels]``."""
        rest, codes = self.input_proj(x), []
        for table, half_norm in zip(self.tables, self.half_norms, strict=True):
            code = mx.argmax(rest @ table.T - half_norm, axis=-1)
            rest = rest - table[code]
            codes.append(code.astype(mx.int32))
        return mx.stack(codes, axis=-1) if codes else mx.zeros((x.shape[0], 0), dtype=mx.int32)

    def decode(self, codes: mx.array) -> mx.array:
        """Codes ``[n, L]`` of the first L levels to latents ``[n, dimension]``."""
        entries = [self.tables[level][codes[:, level]] for level in range(codes.shape[1])]
        return self.output_proj(mx.stack(entries).sum(axis=0))


class SplitQuantizer:
    """``rvq_first`` (semantic) and ``rvq_rest`` (acoustic) on the same latent; decoded, they add up."""

    def __init__(
        self, weights: Weights, codebooks: int, semantic: int, shape: tuple[int, int], dimension: int
    ) -> None:
        """Take the weights; ``shape`` is that of one table: cardinality, width."""
        self.semantic = semantic
        self.rvq_first = ResidualQuantizer(weights, "quantizer.rvq_first", (semantic, *shape), dimension)
        rest = (codebooks - semantic, *shape)
        self.rvq_rest = ResidualQuantizer(weights, "quantizer.rvq_rest", rest, dimension)

    def encode(self, x: mx.array) -> mx.array:
        """Latents ``[n, dimension]`` to codes int32 ``[n, codebooks]``."""
        return mx.concatenate([self.rvq_first.encode(x), self.rvq_rest.encode(x)], axis=1)

    def decode(self, codes: mx.array) -> mx.array:
        """Codes ``[n, L]`` of the first L codebooks to latents ``[n, dimension]``."""
        out = self.rvq_first.decode(codes[:, : self.semantic])
        if codes.shape[1] > self.semantic:
            out = out + self.rvq_rest.decode(codes[:, self.semantic :])
        return out
