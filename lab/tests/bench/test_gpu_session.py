"""The session on a card, where there is none: shrunk models, kernels interpreted, few packages installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.models.cards import H200
from lab.bench import gpu_card, gpu_session
from lab.bench.gpu_costs import NODES
from lab.bench.gpu_session import PARITY_DIFFERS, PLANS, Entry, reason_to_leave_out, run_plan
from lab.tests.bench.only_these import bare_environment

ROOT = Path(__file__).parents[3]
MOSHI_NODES = [nodes for (model, _), nodes in NODES.items() if model == "moshi-7b"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab.bench.gpu_session", *words]
    environment = bare_environment(folder)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def test_the_packages_of_a_card_are_all_there_are(tmp_path: Path) -> None:
    environment = bare_environment(tmp_path)
    for name, is_there in (("numpy", True), ("torch", True), ("aiohttp", False), ("moshi", False)):
        ended = subprocess.run(
            [sys.executable, "-c", f"import {name}"], env=environment, capture_output=True, check=False
        )
        assert (ended.returncode == 0) is is_there, name


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_runs_with_the_packages_of_a_card(tmp_path: Path, plan: str) -> None:
    ended = run(tmp_path, "--plan", plan, "--small", "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / f"{plan}.json").read_text())
    assert all("result" in one for one in found.values())
    results = {words.split()[1]: one["result"] for words, one in found.items()}
    assert list(results) == list(dict.fromkeys(entry.step for entry in PLANS[plan]))
    for one in results.values():
        assert "left_out" not in one or one["left_out"] == "No module named 'moshi'"
    if plan == "first":
        assert results["parity"]["is_same"]
        assert results["parity"]["int8"]["tokens"] > 1
        assert results["ticks"]["full"]["computed_ms"] > 0
        errors = [value for value in results["kernels"].values() if not isinstance(value, float)]
        assert errors == []
        again = run(tmp_path, "--plan", plan, "--small", "--out", str(tmp_path), "--resume")
        assert again.stderr == ""
        assert json.loads((tmp_path / "first.json").read_text()) == found
        assert results["profile"]["computed_kernels"] == sum(one.of(2, is_int8=True) for one in MOSHI_NODES)
    elif plan == "kernels":
        assert results["nodes"]["computed"] == pytest.approx(1e6 * H200.node_s)
        assert results["mimi"]["computed, 1 rows, ieee"] > 0
        assert results["attention"]["computed_gb_s"] > 0
        assert all(entry["ours, computed"] > 0 for entry in results["products"].values())
    elif plan == "capacity":
        assert results["paced"]["computed_latency_ms"]["p99"] > 0
        assert results["paced"]["frames"] > 0
        assert set(results["paced"]["latency_ms"]) == {"p50", "p99", "p99.9"}


def test_a_step_that_fails_or_does_not_end_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--plan", "first", "--out", str(tmp_path)]
    plan = (Entry("ticks", 30, model="no-such"), Entry("env", 0.2), Entry("env", 60, batch=3))
    monkeypatch.setitem(PLANS, "first", plan)
    assert run_plan(gpu_session.arguments(words)) == 2
    found = list(json.loads((tmp_path / "first.json").read_text()).values())
    assert found[0]["error"] == "exit code 1"
    assert "KeyError: 'no-such'" in found[0]["log"]
    assert found[1]["error"] == "not done after 0 s"
    assert "result" in found[2]


def test_where_parity_differs_nothing_is_timed() -> None:
    def ended(*, is_same: bool) -> dict[str, Any]:
        return {"--step parity --batch 1": {"result": {"is_same": is_same}}}

    for entry in PLANS["first"]:
        assert reason_to_leave_out(entry, ended(is_same=True), 100) is None
        reason = reason_to_leave_out(entry, ended(is_same=False), 100)
        assert reason == (
            None if entry.step in ("env", "compile_all", "parity", "kernels") else PARITY_DIFFERS
        )
    assert reason_to_leave_out(Entry("env", 60), {}, 3) == "left out: no time left"


def test_help_has_the_commands_of_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_session.arguments(["--help"])
    text = capsys.readouterr().out
    for plan in PLANS:
        assert f"python -m lab.bench.gpu_session --plan {plan}" in text


@pytest.mark.parametrize(("free_gb", "rows"), [(140, 128), (79, 76), (9, 1)])
def test_a_step_takes_as_many_rows_as_the_card_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_gb: int, rows: int
) -> None:
    monkeypatch.setattr(gpu_card, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_gb * 10**9, 0))
    task = gpu_card.Task("moshi-7b", 128, is_small=False, out=tmp_path)
    assert gpu_card.fitted(task).batch == rows
