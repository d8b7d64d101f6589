"""Reading safetensors as mlx arrays."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from antiphon.errors import CheckpointFormatError


def load_arrays(path: Path) -> dict[str, mx.array]:
    """Every tensor of a safetensors file by its name; each is read when it is first evaluated.

    Raises:
        CheckpointFormatError: it is no such file.
    """
    try:
        loaded = mx.load(str(path), format="safetensors")
    except RuntimeError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    assert isinstance(loaded, dict)
    return loaded
