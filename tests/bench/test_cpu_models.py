"""The benchmark of models on a CPU, small, once; and what it says of a long call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import cpu_models
from bench.long_call import judge_call, render_call


def test_it_runs_in_seconds_when_quick_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = tmp_path / "graphs"
    line = ["--quick", "--eager", "--batch", "2", "--out", str(tmp_path), "--graphs", str(graphs)]
    assert cpu_models.main(line) == 0
    values = json.loads((tmp_path / "cpu-models.json").read_text())
    assert list(values["attempts"]) == [
        "mimi 2",
        "lm bf16",
        "lm float32",
        "onnx mimi 2",
        "onnx lm 2",
        "hour",
    ]
    assert values["attempts"]["mimi 2"]["codes_equal"] > 0.9
    assert set(values["attempts"]["lm bf16"]["times"]["2"]) == {"upstream", "ours", "ours int8"}
    assert values["attempts"]["lm float32"]["times"]["2"]["ours"]["runs"] == 2
    mimi, lm = (values["attempts"][f"onnx {model} 2"] for model in ("mimi", "lm"))
    assert set(mimi["times"]) == {
        f"{who} {part}" for who in ("upstream", "float32", "int8") for part in ("encode", "decode")
    }
    assert set(lm["times"]) == {"upstream lm", "int8 lm", "int4 lm"}
    assert mimi["file_bytes"]["int8"] < mimi["file_bytes"]["float32"]
    written = [path.stat().st_size for path in (graphs / "lm-small-2" / "int4").iterdir()]
    assert lm["file_bytes"]["int4"] == sum(written)
    assert values["settings"]["clock"] == "CPU time of the thread"
    text = (tmp_path / "cpu-models.md").read_text()
    assert text in capsys.readouterr().out
    for words in (
        "torch 2.",
        "load average",
        "**Mimi encode + decode**",
        "ours int8",
        "| **Mimi encode + decode** | 2 | int8 |",
        "Batch 2: the stt-1b step and Mimi's encoder",
        "One call of 3 minutes",
    ):
        assert words in text
    monkeypatch.setattr(cpu_models, "measure_lm", pytest.fail)  # it is not called
    monkeypatch.setattr("bench.onnx_models.export", pytest.fail)
    assert cpu_models.main([*line, "--resume"]) == 0
    assert json.loads((tmp_path / "cpu-models.json").read_text()) == values


def call_of(*minutes: tuple[float, float]) -> dict[str, Any]:
    """A measured call of (milliseconds a step, MiB) by minute."""
    return {
        "model": "m",
        "backend": "torch",
        "dtype": "float32",
        "minutes": [
            {"cpu_ms": {"median_ms": ms}, "wall_ms": {"median_ms": 2 * ms}, "rss_bytes": round(mib * 2**20)}
            for ms, mib in minutes
        ],
    }


def test_minute_59_is_held_to_minute_5() -> None:
    minutes = [(10.0, 100.0)] * 60
    minutes[0] = (50.0, 10.0)  # warming up
    minutes[59] = (50.0, 900.0)  # cut off
    steady = judge_call(call_of(*minutes))
    assert (steady["early_minute"], steady["late_minute"], steady["holds"]) == (5, 59, True)
    minutes[58] = (10.6, 100.0)
    slower = judge_call(call_of(*minutes))
    assert slower["step_change"] == pytest.approx(0.06)
    assert not slower["holds"]
    minutes[58] = (10.4, 101.5)
    larger = judge_call(call_of(*minutes))
    assert larger["memory_change"] == pytest.approx(0.015)
    assert not larger["holds"]
    text = render_call(call_of(*minutes))
    assert "CPU time 10.00 and 10.40 ms; by the clock 20.00 and 20.80 ms (+4.0% CPU time" in text
    assert "100.0 and 101.5 MiB (+1.50%, the limit is 1%). That does not hold." in text


@pytest.mark.parametrize(("count", "early", "late"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (6, 1, 5), (7, 5, 6)])
def test_a_short_call_is_judged_by_what_there_is(count: int, early: int, late: int) -> None:
    found = judge_call(call_of(*[(1.0, 1.0)] * count))
    assert (found["early_minute"], found["late_minute"]) == (early, late)
