"""The tracked files of the project, and new files that are not ignored."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked_files() -> list[Path]:
    """Every file of the project, ignored ones left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def tracked_texts() -> dict[Path, str]:
    """The tracked files that are text, with their text."""
    texts = {}
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data:
            texts[path] = data.decode("utf-8")
    return texts
