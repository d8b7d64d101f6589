"""A folder written over several runs: published when complete, resumed after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon_quantize.folder import JOURNAL_NAME, resuming

KEY = {"model": "a", "recipe": "b"}


def run(out: Path, names: str, *, key: dict[str, str] | None = None, stop: bool = False) -> list[str]:
    """Write the files that are not there yet; returns those that were."""
    with resuming(out, key or KEY, room_bytes=1) as journal:
        found = list(journal.notes)
        for name in names:
            if name not in journal.notes:
                (journal.folder / name).write_text(name)
                journal.note(name, error=0.5)
        if stop:
            raise KeyboardInterrupt
    return found


def test_it_appears_whole_and_alone(tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    assert run(out, "xy") == []
    assert sorted(path.name for path in out.iterdir()) == ["x", "y"]
    assert list(out.parent.iterdir()) == [out]


def test_a_stopped_run_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "old").touch()
    with pytest.raises(KeyboardInterrupt):
        run(out, "xy", stop=True)
    assert [path.name for path in out.iterdir()] == ["old"]
    assert run(out, "xyz") == ["x", "y"]
    assert sorted(path.name for path in out.iterdir()) == ["x", "y", "z"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_line_that_was_cut_off_is_not_believed(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        run(out, "xy", stop=True)
    path = tmp_path / "model.part" / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-5])
    assert run(out, "xy") == ["x"]


def test_what_did_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "model", "", stop=True)
    assert list(tmp_path.iterdir()) == []


def test_another_recipe_or_run_is_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        run(out, "x", stop=True)
    with pytest.raises(
        ConfigError, match=r"model\.part is of a run with another recipe; remove it, or choose"
    ):
        run(out, "x", key=KEY | {"recipe": "c"})
    with (
        resuming(out, KEY, room_bytes=1),
        pytest.raises(ConfigError, match=r"model\.part is being written by another run"),
    ):
        run(out, "x")


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / "model.part"
    part.mkdir()
    (part / "diary.txt").touch()
    with pytest.raises(ConfigError, match="is in the way: it holds files, but no journal of a stopped run"):
        run(tmp_path / "model", "x")
    assert [path.name for path in part.iterdir()] == ["diary.txt"]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with (
        pytest.raises(ConfigError, match=r"model needs 9,000,000,000,000,000,000 bytes, the disk has [\d,]+"),
        resuming(out, KEY, room_bytes=9 * 10**18),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
