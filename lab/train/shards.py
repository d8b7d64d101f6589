"""The shards of a corpus: numbered files of one folder."""

from __future__ import annotations

from pathlib import Path


def shards_in(folder: Path) -> list[Path]:
    """The finished shards of a folder, in order: one that is still being written has another name."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9].npz"))
