"""Versions of the server in alternation, at small scale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lab.bench.by_turns import main

VERSIONS = [f"{name}={Path(sys.executable).with_name('antiphon')}" for name in ("old", "new")]


@pytest.mark.parametrize("more", [[], ["--most"]], ids=["at one load", "the most"])
def test_each_version_gets_its_turns(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*VERSIONS, "--quick", "--out", str(tmp_path), *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["old", "new"]
    assert all("ms CPU a session and frame" in line for line in lines)
    attempts = json.loads((tmp_path / "by-turns.json").read_text())["attempts"]
    assert {key.split("/")[0] for key in attempts} == {"old", "new"}
    assert all(found["cpu_ms"] > 0 for found in attempts.values())
