"""A folder that tests share is made once a run, whichever process asks first."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.shared import made_once


def test_the_folder_is_made_once_for_all_who_ask(tmp_path_factory: pytest.TempPathFactory) -> None:
    made: list[Path] = []
    name = f"test-shared-{os.getpid()}"

    def make(folder: Path) -> None:
        folder.mkdir()
        made.append(folder)

    tmp_path_factory.getbasetemp()  # which is not thread-safe, as no test has threads make folders
    asking = [threading.Thread(target=made_once, args=(tmp_path_factory, name, make)) for _ in range(4)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert made == [made_once(tmp_path_factory, name, make)]


def test_a_folder_that_failed_half_made_is_not_shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        raise OSError("no room")

    name = f"test-shared-half-{os.getpid()}"
    with pytest.raises(OSError, match="no room"):
        made_once(tmp_path_factory, name, make)
    with pytest.raises(AssertionError, match="was begun and not finished"):
        made_once(tmp_path_factory, name, make)


def test_workers_of_one_run_share_it_and_another_run_does_not(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    places = set()
    for base in ("run-1/gw0", "run-1/gw1", "run-2/gw0"):
        (tmp_path / base).mkdir(parents=True)
        monkeypatch.setattr(tmp_path_factory, "_basetemp", tmp_path / base)
        places.add(made_once(tmp_path_factory, "it", Path.mkdir))
    assert places == {tmp_path / "run-1" / "shared" / "it", tmp_path / "run-2" / "shared" / "it"}
