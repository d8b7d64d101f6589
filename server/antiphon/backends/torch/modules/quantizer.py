"""Split residual vector quantisation: one semantic level, then a residual chain of acoustic ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.linear import Linear


class ResidualQuantizer(nn.Module):
    """A chain of codebooks ``tables [levels, cardinality, width]`` between two projections.

    Each level picks the entry nearest to what the levels before left over (Zeghidour et al. 2021). The
    nearest entry maximises ``x . e - |e|^2 / 2``; equal scores take the lowest index.
    """

    def __init__(self, levels: int, cardinality: int, width: int, dimension: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.levels = levels
        self.input_proj = Linear(dimension, width)
        self.output_proj = Linear(width, dimension)
        self.tables = nn.Parameter(torch.empty(levels, cardinality, width), requires_grad=False)
        self.score_biases = nn.Parameter(torch.empty(levels, cardinality), requires_grad=False)

    def prepare(self) -> None:
        """After loading: compute what the search needs from the tables."""
        self.score_biases = nn.Parameter(self.tables.square().sum(-1) / -2, requires_grad=False)

    def encode(self, x: Tensor) -> Tensor:
        """Latents ``[n, T, dimension]`` to codes int64 ``[n, levels, T]``."""
        rest = self.input_proj(x).flatten(0, 1)
        codes = []
        for level in range(self.levels):
            scores = functional.linear(rest, self.tables[level], self.score_biases[level])
            codes.append(scores.argmax(dim=-1))
            if level < self.levels - 1:
                rest = rest - functional.embedding(codes[-1], self.tables[level])
        return torch.stack(codes, dim=-1).view(*x.shape[:2], -1).transpose(1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 ``[n, L, T]`` of the first L levels to latents ``[n, T, dimension]``."""
        cardinality = self.tables.shape[1]
        first = torch.arange(codes.shape[1], device=codes.device).view(1, -1, 1) * cardinality
        entries = functional.embedding(codes + first, self.tables.flatten(0, 1))
        out: Tensor = self.output_proj(entries.sum(dim=1))
        return out


class SplitQuantizer(nn.Module):
    """``rvq_first`` (semantic) and ``rvq_rest`` (acoustic) on the same latent; decoded, they add up."""

    def __init__(self, codebooks: int, semantic: int, cardinality: int, width: int, dimension: int) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.semantic = semantic
        self.rvq_first = ResidualQuantizer(semantic, cardinality, width, dimension)
        self.rvq_rest = ResidualQuantizer(codebooks - semantic, cardinality, width, dimension)

    def encode(self, x: Tensor) -> Tensor:
        """Latents ``[n, T, dimension]`` to codes int64 ``[n, codebooks, T]``."""
        return torch.cat([self.rvq_first.encode(x), self.rvq_rest.encode(x)], dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes int64 ``[n, L, T]`` of the first L codebooks to latents ``[n, T, dimension]``."""
        first = self.rvq_first.decode(codes[:, : self.semantic])
        return first + self.rvq_rest.decode(codes[:, self.semantic :])
