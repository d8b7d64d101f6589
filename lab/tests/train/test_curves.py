"""The picture of training includes every trainer with a log, and counts a repeated step once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.train.curves import main, read_log, series


def _log(folder: Path, lines: list[dict[str, float]]) -> Path:
    folder.mkdir()
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_step_taken_twice_counts_once(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "talker", [{"step": 25, "text": 2}, {"step": 50, "text": 1}, {"step": 50, "text": 3}]
    )
    np.testing.assert_array_equal(series(read_log(log), "text"), [[25, 50], [2, 3]])
    assert series(read_log(log), "accuracy").shape == (2, 0)


def test_every_log_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _log(tmp_path / "codec", [{"step": 50, "envelope": 0.2, "spectral": 1.5}])
    _log(tmp_path / "talker", [{"step": step, "text": 1 / step, "accuracy": 0.5} for step in (25, 50)])
    picture = tmp_path / "pictures" / "training.png"
    assert main(["--logs", str(tmp_path), "--out", str(picture)]) == 0
    assert capsys.readouterr().err == f"{picture}: codec, talker\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_no_log_at_all_says_what_writes_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no log in .*; training writes them: python -m lab.train --help"):
        main(["--logs", str(tmp_path), "--out", str(tmp_path / "x.png")])
