"""Which model this is, in one hash: whether a row's state may go from one process into another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SAMPLED_BYTES: Final = 1 << 20
"""Of a large file the first and the last so many bytes are hashed, and its size: hashing 15 GB of weights
takes longer than loading them. Files that differ in the middle alone look the same."""


def fingerprint(files: Mapping[str, Path]) -> str:
    """SHA-256 of a model's files by role, as hexadecimal digits: names, sizes and samples of the contents."""
    digest = hashlib.sha256()
    for role, path in sorted(files.items()):
        size = path.stat().st_size
        digest.update(f"{role}\n{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            if size > 2 * SAMPLED_BYTES:
                file.seek(size - SAMPLED_BYTES)
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()
