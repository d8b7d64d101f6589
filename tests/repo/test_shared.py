"""A shared folder is made once for all processes and runs, until its makers change."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.shared import fingerprint_of, made_once

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_the_folder_is_made_once_for_all_who_ask(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        folder.mkdir()
        made.append(folder)

    asking = [threading.Thread(target=made_once, args=("it", ONE, make, tmp_path)) for _ in range(4)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert made_once("it", ONE, make, tmp_path).is_dir()
    assert len(made) == 1


def test_a_folder_of_another_fingerprint_takes_its_place(tmp_path: Path) -> None:
    before = made_once("it", ONE, Path.mkdir, tmp_path)
    beside = made_once("it-too", ONE, Path.mkdir, tmp_path)
    after = made_once("it", OTHER, Path.mkdir, tmp_path)
    assert not before.exists()
    assert after.is_dir()
    assert beside.is_dir()


def test_a_folder_that_failed_half_made_is_made_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        made_once("it", ONE, fail, tmp_path)
    assert list(made_once("it", ONE, Path.mkdir, tmp_path).iterdir()) == []


def test_a_fingerprint_changes_with_names_contents_and_versions(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.py").write_text("1")

    def fingerprint(*packages: str) -> str:
        return fingerprint_of([tmp_path / "sources"], packages)

    found = [fingerprint(), fingerprint("numpy")]
    (tmp_path / "sources" / "a.py").write_text("2")
    found.append(fingerprint())
    (tmp_path / "sources" / "a.py").rename(tmp_path / "sources" / "b.py")
    found.append(fingerprint())
    assert len({*found}) == len(found)
    (tmp_path / "sources" / "__pycache__").mkdir()
    (tmp_path / "sources" / "__pycache__" / "b.pyc").touch()
    assert fingerprint() == found[-1]
