"""The benchmark of Pocket-TTS with several callers and a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import pocket_rows
from tests.backends.onnx.exports import exported_pocket


def test_every_number_of_callers_is_measured_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = str(exported_pocket().root)
    capsys.readouterr()  # what the export says, where this test is the first to need it
    assert pocket_rows.main(["--quick", "--out", str(tmp_path), "--graphs", graphs]) == 0
    values = json.loads((tmp_path / "pocket-rows.json").read_text())
    rows = [f"rows {count}" for count in pocket_rows.CALLERS]
    steps = [f"graphs {threads} {count}" for threads in (1, 2) for count in pocket_rows.CALLERS]
    assert list(values["attempts"]) == ["package", *rows, *steps]
    for key in steps:
        assert all(values["attempts"][key][name]["clock"]["runs"] == 3 for name in ("pocket", "onnx"))
    for count in pocket_rows.CALLERS:
        found = values["attempts"][f"rows {count}"]
        assert found["apart"]["runs"] == found["together"]["runs"] == 3
        assert found["apart_by"] < 1e-5
    page = (tmp_path / "pocket-rows.md").read_text()
    assert "| 8 |" in page
    assert capsys.readouterr().out == page
