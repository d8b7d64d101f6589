"""Folders that are made once a test run, by the first of its processes that needs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder ``name``, which ``make`` creates; no test may write to it.

    It lies in the temporary folder of this run, so that another run, perhaps of other code, makes its own.
    """
    base = folders.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = run / "shared" / name, run / "shared" / f"{name}.done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            assert not folder.exists(), f"{folder} was begun and not finished; the first error says why"
            make(folder)
            done.touch()
    return folder
