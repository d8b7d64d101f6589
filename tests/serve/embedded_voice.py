"""A voice in PersonaPlex's format: embeddings, and a cache of tokens."""

from __future__ import annotations

from pathlib import Path

import torch

EMBEDDED_FRAMES = 9


def save_embedded(path: Path, *, dim: int = 8, streams: int = 17, ring: int = 4) -> None:
    """As PersonaPlex saves a voice: row k, slot r of the cache holds 100 k + r."""
    cache = 100 * torch.arange(streams)[:, None] + torch.arange(ring)
    torch.save({"embeddings": torch.ones(EMBEDDED_FRAMES, 1, 1, dim).bfloat16(), "cache": cache[None]}, path)
