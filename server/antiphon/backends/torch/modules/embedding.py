"""Token embeddings of the language models, with their special values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.linear import Linear

ZERO_TOKEN = -1
"""This token adds nothing to the input."""


class TokenEmbedding(nn.Module):
    """One stream's table ``weight [entries, width]``, projected to ``dim`` where the width is lower.

    With ``demux`` a token carries two: ``first + entries * (second + 1)``; both use the table, each its
    own projection (``out1``, ``out2``), and a second of -1 adds nothing (tts-1.6b's text of two voices).
    """

    def __init__(
        self, entries: int, dim: int, dtype: torch.dtype, *, low_rank: int | None = None, demux: bool = False
    ) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        width = low_rank or dim
        self.entries = entries
        self.weight = nn.Parameter(torch.empty(entries, width, dtype=dtype), requires_grad=False)
        self.low_rank = Linear(width, dim, dtype=dtype) if low_rank else None
        self.out1 = Linear(width, dim, dtype=dtype) if demux else None
        self.out2 = Linear(width, dim, dtype=dtype) if demux else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 ``[...]`` to ``[..., dim]``."""
        is_zero = (tokens == ZERO_TOKEN)[..., None]
        tokens = tokens.clamp(min=0)
        if self.out1 is not None and self.out2 is not None:
            second = torch.div(tokens, self.entries, rounding_mode="floor") - 1
            left = self.out1(functional.embedding(torch.remainder(tokens, self.entries), self.weight))
            right = self.out2(functional.embedding(second.clamp(min=0), self.weight))
            out: Tensor = left + right.masked_fill((second < 0)[..., None], 0)
            return out.masked_fill(is_zero, 0)
        out = functional.embedding(tokens, self.weight).masked_fill(is_zero, 0)
        return out if self.low_rank is None else self.low_rank(out)


class StreamEmbeddings(nn.Module):
    """The tables of all audio streams in one, ``weight [streams * entries, dim]``; their entries add up."""

    def __init__(self, streams: int, entries: int, dim: int, dtype: torch.dtype) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.streams, self.entries = streams, entries
        self.weight = nn.Parameter(torch.empty(streams * entries, dim, dtype=dtype), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 ``[n, streams]`` to ``[n, dim]``."""
        first = torch.arange(self.streams, device=tokens.device) * self.entries
        entries = functional.embedding(tokens.clamp(min=0) + first, self.weight)
        return entries.masked_fill((tokens == ZERO_TOKEN)[..., None], 0).sum(dim=1)
