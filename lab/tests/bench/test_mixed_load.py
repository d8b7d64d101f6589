"""The mixed load once for seconds: what is done to the stack is done, and costs the other calls nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lab.bench import mixed_load, mixed_report
from lab.bench.mixed_report import Sample, faults, memory, shares
from tests.compose.conftest import PATIENT
from tests.support.stack.stack import running_stack


def test_a_quick_run_loses_nothing_but_what_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_load, "running_stack", partial(running_stack, overrides=[PATIENT]))
    # On a busy machine a worker answers late, and a client hears late that its call was cut.
    monkeypatch.setattr(mixed_load, "QUICK", replace(mixed_load.QUICK, account_s=60.0))
    monkeypatch.setattr(mixed_report, "KILLED_WITHIN_S", 60.0)
    assert mixed_load.main(["--quick", "--out", str(tmp_path)]) == 0
    values = json.loads((tmp_path / "mixed-load.json").read_text())
    assert [event["what"] for event in values["events"]] == ["drain", "reload", "kill"]
    assert values["frames"]["lost_elsewhere"] == 0
    assert values["calls"]["failed_elsewhere"] == []
    # A call may end by itself in the moment before, or come in the moment after it was counted.
    assert abs(values["calls"]["killed"] - values["calls"]["on_killed_worker"]) <= 1
    assert values["calls"]["held"] >= 4
    assert set(values["shares"]) == {"127.0.1.1", "127.0.1.2", "127.0.2.1", "127.0.2.2"}
    assert values["balancer"]["direct_ms"]["count"] > 0
    assert values["balancer"]["through_balancer_ms"]["count"] > 0
    page = " ".join((tmp_path / "mixed-load.md").read_text().split())  # its prose is wrapped
    assert "**0 frames were lost**" in page
    assert (tmp_path / "mixed-load.png").stat().st_size > 1000


def test_what_happens_elsewhere_is_a_fault() -> None:
    calls = {"killed": 2, "on_killed_worker": 2, "failed_elsewhere": []}
    good = {"calls": calls, "frames": {"lost_elsewhere": 0}}
    assert faults(good) == []
    assert faults({**good, "frames": {"lost_elsewhere": 3}}) == ["3 frames were lost elsewhere"]
    assert faults({**good, "calls": {**calls, "failed_elsewhere": ["full"]}}) == [
        "a call failed elsewhere: full"
    ]
    assert faults({**good, "calls": {**calls, "killed": 4}}) == [
        "2 more calls were cut than the killed worker had"
    ]


def test_shares_are_of_the_calls_there_were() -> None:
    samples = [
        Sample(0, {"a": 3, "b": 1}, {}),
        Sample(1, {"a": 0, "b": None}, {}),
        Sample(2, {"a": 3, "b": 1}, {}),
    ]
    assert shares(samples) == {"a": 0.75, "b": 0.25}
    assert shares([]) == {}


def test_memory_that_grows_is_seen() -> None:
    samples = [Sample(at, {}, {"a": (100 + at) * 2**20, "b": 2**20}) for at in range(100)]
    found = memory(samples)
    assert found["b"] == {"seconds": 99, "early_mib": 1, "late_mib": 1, "max_mib": 1}
    assert found["a"]["late_mib"] - found["a"]["early_mib"] > 40


def test_a_process_that_follows_another_is_measured_by_itself() -> None:
    samples = [Sample(at, {}, {"a": 9 * 2**20} if at < 60 else {"a, 2": 2**20}) for at in range(101)]
    assert memory(samples) == {
        "a": {"seconds": 59, "early_mib": 9, "late_mib": 9, "max_mib": 9},
        "a, 2": {"seconds": 41, "early_mib": 1, "late_mib": 1, "max_mib": 1},
    }
