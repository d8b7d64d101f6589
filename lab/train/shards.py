"""The shards of a corpus: numbered files in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray

COPY: Final = 1000
"""A folder's shards have numbers below this; the numbers of their first copy begin with it."""


def shards_in(folder: Path) -> list[Path]:
    """Return the finished shards of a folder, in order: an unfinished shard has another file name."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9].npz"))


def copies_of(folder: Path, copies: int) -> list[tuple[int, str, Path]]:
    """Return the seed, the file name and the source of each copy of a folder's shards; the first copies have
    the sources' names."""
    return [
        (COPY * copy + seed, f"{COPY * copy + int(source.stem):04d}.npz", source)
        for copy in range(copies)
        for seed, source in enumerate(shards_in(folder))
    ]


def write_speech(path: Path, spoken: Sequence[FloatArray]) -> float:
    """Write a shard of sounds, int16 ``pcm [samples]`` and int64 ``ends [sounds]``; returns their length in
    seconds."""
    pcm = (np.concatenate(spoken).clip(-1, 1) * 32767).astype(np.int16)
    part = path.with_suffix(".part.npz")
    np.savez(part, pcm=pcm, ends=np.cumsum([one.size for one in spoken]))
    part.replace(path)
    return pcm.size / 24_000
