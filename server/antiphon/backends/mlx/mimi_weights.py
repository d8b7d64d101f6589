"""From a published Mimi file to our names. Mimi is published in PyTorch's layout alone, for mlx too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from antiphon.backends.mlx.files import load_arrays
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.mimi import Mimi
from antiphon.errors import CheckpointFormatError

_CODEBOOK: Final = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.vq\.layers\.(\d+)\._codebook\.(\w+)")
_PROJECTION: Final = re.compile(r"quantizer\.\w+\.(in|out)put_proj\.weight")
_USAGE_FLOOR: Final = 1e-5
_RENAMES: Final = (
    (re.compile(r"\.conv\.conv\."), "."),
    (re.compile(r"\.convtr\.convtr\."), "."),
    (re.compile(r"^(downsample)\.conv\."), r"\1."),
    (re.compile(r"^(upsample)\.convtr\."), r"\1."),
    (re.compile(r"_transformer\.transformer\."), "_transformer."),
    (re.compile(r"\.in_proj_weight$"), ".in_proj.weight"),
    (re.compile(r"\.(in|out)_projs\.0\."), r".\1_proj."),
    (re.compile(r"\.(linear[12])\."), r".gating.\1."),
)


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
    books: dict[str, dict[str, mx.array]] = {}
    for name, array in published.items():
        if (found := _CODEBOOK.fullmatch(name)) is not None:
            books.setdefault(f"quantizer.{found[1]}.tables.{found[2]}", {})[found[3]] = array
        elif _PROJECTION.fullmatch(name):
            renamed[name] = array.reshape(array.shape[:2])
        else:
            for pattern, replacement in _RENAMES:
                name = pattern.sub(replacement, name)
            renamed[name] = array
    return renamed | {name: _table(book) for name, book in books.items()}


def _table(book: Mapping[str, mx.array]) -> mx.array:
    total = book.get("embedding_sum", book.get("embed_sum", book.get("embed_avg")))
    usage = book.get("cluster_usage", book.get("cluster_size"))
    if total is None or usage is None:
        raise CheckpointFormatError(f"a Mimi codebook has only {sorted(book)}")
    # Widened first: a table is what float32 makes of the averages, whatever they were stored in.
    return total.astype(mx.float32) / mx.maximum(usage.astype(mx.float32), _USAGE_FLOOR)[:, None]
