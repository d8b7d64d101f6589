"""The folder of a new checkpoint appears complete and never replaces another folder."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon_quantize.folder import appearing, check_target


def test_it_appears_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    with appearing(out, room_bytes=1) as folder:
        (folder / "file").write_text("x")
        assert not out.exists()
    assert (out / "file").read_text() == "x"
    assert [path.name for path in out.parent.iterdir()] == ["model"]


def test_it_replaces_the_old_one_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "old").touch()
    with appearing(out, room_bytes=1) as folder:
        (folder / "new").touch()
        assert (out / "old").exists()
    assert [path.name for path in out.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [out]


def fill_and_fail(out: Path, error: BaseException) -> None:
    with appearing(out, room_bytes=1) as folder:
        (folder / "new").touch()
        raise error


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "old").touch()
    with pytest.raises(KeyboardInterrupt):
        fill_and_fail(out, KeyboardInterrupt())
    assert [path.name for path in out.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with (
        pytest.raises(ConfigError, match=r"model needs 9,000,000,000,000,000,000 bytes, the disk has [\d,]+"),
        appearing(out, room_bytes=9 * 10**18),
    ):
        pass
    with pytest.raises(ConfigError, match=r"cannot write .*model: No space left"):
        fill_and_fail(out, OSError(errno.ENOSPC, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_what_may_not_be_replaced_is_not(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    check_target(out, source=source, force=False)
    out.mkdir()
    with pytest.raises(ConfigError, match="out exists; give --force to replace it"):
        check_target(out, source=source, force=False)
    check_target(out, source=source, force=True)
    (out / "diary.txt").touch()
    with pytest.raises(ConfigError, match=r"is no checkpoint \(it holds no antiphon\.json\), so it is not"):
        check_target(out, source=source, force=True)
    (out / "antiphon.json").touch()
    check_target(out, source=source, force=True)
    with pytest.raises(ConfigError, match="is the model itself; choose another folder"):
        check_target(out, source=out, force=True)
