"""The whole benchmark of speech to text, once, with a load of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import harness, model_capacity
from tests.support.calm import PATIENT_ANTIPHON


def test_the_whole_benchmark_runs_in_seconds_when_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "ANTIPHON", PATIENT_ANTIPHON)
    options = ["--backend-option", "threads=1", "weights=compute", "--backend-option", "dtype=bfloat16"]
    assert model_capacity.main(["--quick", "--out", str(tmp_path), *options]) == 0
    values = json.loads((tmp_path / "stt-capacity.json").read_text())
    # Whether one session is held for a second depends on the machine; that the answer is one of the two does
    # not.
    assert values["capacity"] in (0, 1)
    searched = values["attempts"]["search/1/0"]
    assert searched["lost"] == 0 or values["capacity"] == 0
    assert searched["build_info"]["model"]["kind"] == "stt"
    assert searched["build_info"]["model"]["dtype"] == "bfloat16"
    assert values["attempts"]["file"]["lost"] == 0
    text = " ".join((tmp_path / "stt-capacity.md").read_text().split())  # its prose is wrapped
    assert f"**{values['capacity']} session" in text
    assert "| search/1/0 | 1 |" in text
