"""From a published Mimi file to our names. Mimi is published in PyTorch's layout alone, for mlx too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.files import load_arrays
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.mimi import Mimi
from antiphon.models.mimi_layout import USAGE_FLOOR, find_codebooks, is_projection, own_names


def load_mimi(path: Path, config: Mapping[str, Any], codebooks: int) -> Mimi:
    """Load a published Mimi file for its first ``codebooks`` levels, in float32.

    Raises:
        CheckpointFormatError: tensors are missing, unknown, or of another shape than the config's.
    """
    weights = Weights(mimi_arrays(load_arrays(path)), str(path), mx.float32)
    mimi = Mimi(config, codebooks, weights)
    weights.finish(ignored=("quantizer.",))  # levels that are not used
    return mimi


def mimi_arrays(published: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Rename a published Mimi's tensors and turn its codebook averages into tables."""
    renamed: dict[str, mx.array] = {}
    for name, own in own_names(published, "gating").items():
        array = published[name]
        renamed[own] = array.reshape(array.shape[:2]) if is_projection(name) else array
    for book in find_codebooks(published):
        # Widened first: a table is what float32 makes of the averages, whatever they were stored in.
        total, usage = (published[part].astype(mx.float32) for part in (book.total, book.usage))
        renamed[f"quantizer.{book.part}.tables.{book.level}"] = (
            total / mx.maximum(usage, USAGE_FLOOR)[:, None]
        )
    return renamed
