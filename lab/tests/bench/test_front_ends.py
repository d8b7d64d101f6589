"""The bench of front ends runs, and its arithmetic is correct."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import front_ends
from lab.bench.front_end_load import Talkers, normal_after_s
from lab.bench.front_end_report import CpuTime
from lab.bench.front_end_rings import measure_rings


def test_sessions_are_bounded_by_front_ends_or_by_the_engine() -> None:
    cpu = CpuTime(front_end_ms=0.5, engine_ms=0.05, busy=0.8)
    assert [cpu.sessions(number) for number in (1, 4, 8, 15)] == [128, 512, 1024, 1280]
    assert cpu.front_ends(2000) == 16


def test_normal_begins_after_the_last_bad_half_second() -> None:
    talkers = Talkers("", 1)
    talkers.frames = [(at / 20, 0.2 if at in (10, 35) else 0.01) for at in range(100)]
    assert normal_after_s(talkers, 0.0, 5.0, 10.0) == 2.0
    assert normal_after_s(talkers, 2.0, 3.0, 10.0) == 0.0


def test_rows_are_answered_through_rings() -> None:
    found = measure_rings(8, 2, seconds=1.0, step_s=0.001)
    assert found["frames"] == 8 * 12
    assert (found["unanswered"], found["dropped"]) == (0, 0)
    assert 0 < found["engine_cpu_share"] < 2


@pytest.mark.parametrize("part", ["sweep", "burst", "overload", "stt"])
def test_each_part_runs(tmp_path: Path, part: str) -> None:
    assert front_ends.main(["--quick", "--out", str(tmp_path), "--parts", part]) == 0
    attempts = json.loads((tmp_path / "front-ends.json").read_text())["attempts"]
    assert {key.split("/")[0] for key in attempts} == {part}
    assert (tmp_path / "front-ends.png").stat().st_size > 1000
    text = " ".join((tmp_path / "front-ends.md").read_text().split())  # its prose is wrapped
    assert ("Computed, not measured" in text) == (part == "sweep")
