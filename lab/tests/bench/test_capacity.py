"""The arithmetic of capacity, and the whole benchmark once with a load of one."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench import server_capacity
from lab.bench.capacity_search import confirm_largest, faults, search_largest, speech_faults
from lab.bench.harness import Results
from lab.bench.neighbours import Neighbours, own_cpu_s

pytestmark = pytest.mark.product  # `make bench`, and the rules of docs/architecture.md for capacity

HELD: dict[str, Any] = {
    "rejected": 0,
    "failed": 0,
    "full_load_s": 60.0,
    "drift_ms": 7.9,
    "counts": {"lost": 0, "misplaced": 0},
    "times": {"latency": {"p99": 79.9}},
    "generator": {"dropped_messages": 0, "send_late_ms": {"p99": 10.0}},
}


@given(capacity=st.integers(0, 600), start=st.integers(1, 600), limit=st.integers(1, 512))
def test_the_search_finds_the_edge_to_its_tolerance_and_never_above_it(
    capacity: int, start: int, limit: int
) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= capacity

    found = search_largest(holds, start=start, limit=limit, tolerance=0.04)
    edge = min(capacity, limit)
    assert found <= edge
    assert edge - found <= max(1, 0.04 * found)
    assert max(tried) <= limit
    assert len(tried) == len(set(tried)) < 25


@pytest.mark.parametrize(("capacity", "found"), [(100, 100), (95, 95), (90, 90), (3, 3), (1, 1), (0, 0)])
def test_what_was_found_is_stepped_down_until_every_run_holds(capacity: int, found: int) -> None:
    confirmed = confirm_largest(lambda sessions, run: sessions <= capacity, found=100, runs=3)
    assert found * 0.9 <= confirmed <= found


def test_a_load_that_holds_in_two_of_three_runs_does_not_hold() -> None:
    assert confirm_largest(lambda sessions, run: run < 2 or sessions < 50, found=60, runs=3) < 50


def test_a_report_that_keeps_every_rule_is_proof() -> None:
    assert faults(HELD, full_load_s=60.0, message_ms=20) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("rejected",), 1, "1 sessions rejected"),
        (("failed",), 2, "2 sessions failed"),
        (("counts", "lost"), 3, "3 frames lost"),
        (("counts", "misplaced"), 4, "4 replies misplaced"),
        (("generator", "dropped_messages"), 5, "5 messages the generator was too late to send"),
        (("generator", "send_late_ms", "p99"), 10.1, "the generator's messages left 10.1 ms late at p99"),
        (("times", "latency"), None, "no frame answered"),
        (("times", "latency", "p99"), 80.0, "p99 frame latency 80.0 ms"),
        (("drift_ms",), 8.1, "latency grew by 8.1 ms"),
        (("full_load_s",), 59.0, "59.0 s at full load of 60 s"),
    ],
)
def test_each_broken_rule_is_named(path: tuple[str, ...], value: Any, sentence: str) -> None:
    report = copy.deepcopy(HELD)
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert faults(report, full_load_s=60.0, message_ms=20) == [sentence]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first = Results(path, settings={"runs": 3}, resume=False)
    assert first.attempt("a", lambda: {"value": 1}) == {"value": 1}
    again = Results(path, settings={"runs": 3}, resume=True)
    assert again.attempt("a", lambda: {"value": 2}) == {"value": 1}
    other = Results(path, settings={"runs": 4}, resume=True)
    assert other.attempt("a", lambda: {"value": 3}) == {"value": 3}
    anew = Results(path, settings={"runs": 4}, resume=False)
    assert anew.attempt("a", lambda: {"value": 4}) == {"value": 4}
    assert list(tmp_path.iterdir()) == [path]


def test_an_attempt_that_other_processes_disturbed_is_measured_again(tmp_path: Path) -> None:
    path, busy_s = tmp_path / "results.json", iter([0.0, 3.0, 10.0, 10.1])
    seconds = iter([0.0, 10.0, 20.0, 30.0])

    def neighbours() -> Neighbours:
        return Neighbours(lambda: next(busy_s), lambda: 0.0, lambda: next(seconds))

    first = Results(path, settings={}, resume=False, most_others_cores=0.2, neighbours=neighbours)
    assert first.attempt("a", lambda: {"value": 1}) == {"value": 1}
    assert first.attempt("b", lambda: {"value": 2}) == {"value": 2}
    assert first.values["others_cores"] == {"a": 0.3, "b": 0.01}
    again = Results(path, settings={}, resume=True, most_others_cores=0.2)
    assert again.values["attempts"] == {"b": {"value": 2}}
    kept = Results(path, settings={}, resume=True)
    assert kept.values["attempts"] == {"a": {"value": 1}, "b": {"value": 2}}


def test_the_cpu_of_a_child_counts_as_our_own_when_it_has_ended() -> None:
    before_s = own_cpu_s()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert own_cpu_s() - before_s > 0.25  # 0.3, read in steps of 10 ms


def test_the_whole_benchmark_runs_in_seconds_when_quick(tmp_path: Path) -> None:
    words = ["--quick", "--formats", "opus", "--limit", "1", "--out", str(tmp_path)]
    assert server_capacity.main(words) == 0
    values = json.loads((tmp_path / "server-capacity.json").read_text())
    # Whether one session is held for a second depends on the machine; that the answer is one of the two does
    # not.
    assert values["capacity"] in ({"opus": 0}, {"opus": 1})
    tried = [attempt for name, attempt in values["attempts"].items() if name.startswith("opus/")]
    assert (tried[-1]["faults"] == []) == (values["capacity"] == {"opus": 1})
    assert 0 < tried[-1]["server_cpu_share"] < 1
    assert 0 < tried[-1]["generator"]["cpu_share"] < 1
    assert values["attempts"]["codec"]["frame_ms"] > 0
    text = (tmp_path / "server-capacity.md").read_text()
    assert f"| Opus | **{values['capacity']['opus']}** |" in text
    assert "| generator late, p99 ms |" in text
    assert (tmp_path / "server-capacity.png").read_bytes().startswith(b"\x89PNG")


def test_a_player_that_ran_dry_is_no_capacity() -> None:
    report = {"sessions": 2, "rejected": 0, "failed": 0, "gaps": 0, "audio_s": 121.0}
    assert speech_faults(report, full_load_s=60) == []
    assert speech_faults({**report, "gaps": 1, "rejected": 1}, full_load_s=60) == [
        "1 sessions rejected",
        "1 times a player ran dry",
    ]
    assert speech_faults(report, full_load_s=61) == ["60.5 s of speech a session of 61 s"]
