"""The benchmark of INT8 linears, small, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import int8_linear, turns


def test_it_runs_in_seconds_when_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert int8_linear.main(["--quick", "--out", str(tmp_path)]) == 0
    values = json.loads((tmp_path / "int8-linear.json").read_text())
    times = values["attempts"]["linears"]["times"]
    assert set(times) == {"1", "2", "4", "8", "16"}
    for found in times.values():
        assert set(found) == set(int8_linear.FORMS)
        for name, form in found.items():
            assert form["runs"] == 2
            assert 0 < form["best_ms"] <= form["median_ms"]
            low, high = (0, 0.004) if name.startswith("bfloat16") else (0.004, 0.03)
            low, high = (0.05, 0.12) if "INT4" in name else (low, high)
            assert low < form["error"] < high, name
    assert (tmp_path / "int8-linear.md").read_text() in capsys.readouterr().out


def test_calls_take_turns_and_the_first_do_not_count() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    found = turns.take_turns(calls, 3)
    assert order == list("ab" * (3 + turns.UNTIMED_TURNS))
    assert {found[name]["runs"] for name in "ab"} == {3}


def test_a_summary_has_its_spread() -> None:
    found = turns.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found["median_ms"], found["best_ms"], found["runs"]) == (3.0, 1.0, 5)
    assert found["quartiles_ms"][0] < 3 < found["quartiles_ms"][1]
    assert turns.summary([7.0])["quartiles_ms"] == [7.0, 7.0]
