"""Folders that tests share, each made once until its sources change."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from filelock import FileLock

from tests.repo.tracked import ROOT

KEPT: Final = ROOT / ".pytest_cache" / "made"
"""They outlive a run; ``make clean`` removes them."""


def made_once(name: str, fingerprint: str, make: Callable[[Path], object], room: Path = KEPT) -> Path:
    """The folder ``name``, which ``make`` creates, unless a process or a run before did for this fingerprint.

    No test may write to it. Folders of this name with other fingerprints are removed.
    """
    folder = room / f"{name}-{fingerprint}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(room / f"{name}.lock"):
        if not folder.exists():
            for other in room.glob(f"{name}-{'[0-9a-f]' * len(fingerprint)}"):
                shutil.rmtree(other)
            begun = room / f"{name}.begun"
            shutil.rmtree(begun, ignore_errors=True)
            make(begun)
            begun.rename(folder)
    return folder


def fingerprint_of(paths: Iterable[Path], packages: Iterable[str]) -> str:
    """16 hexadecimal digits that change with the files at or below ``paths`` and with packages' versions."""
    found = hashlib.sha256()
    for package in packages:
        found.update(f"{package} {version(package)}\n".encode())
    for path in paths:
        files = sorted(it for it in path.rglob("*") if it.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                found.update(f"{file.relative_to(path.parent)}\n".encode())
                found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]
