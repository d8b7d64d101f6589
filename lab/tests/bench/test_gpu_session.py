"""The session without a GPU: shrunk models, interpreted kernels, few packages installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from antiphon.backends.torch.state import State
from antiphon.models.costs import H200
from lab.bench import gpu_card, gpu_session
from lab.bench.gpu_costs import NODES
from lab.bench.gpu_models import Form, empty_modules, published_sizes
from lab.bench.gpu_session import PLANS, Entry, run_plan
from lab.bench.gpu_timings import codec_step
from lab.tests.bench.only_these import bare_environment
from tests.backends.torch.fake_cuda import fake_cuda
from tests.backends.torch.recorded import Recorder

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


@pytest.mark.parametrize("plan", ["first", "kernels", "capacity"])
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
        assert results["parity"]["int8"]["ticks"] == 20
        assert results["parity"]["int8"]["certain"] > 80
        assert results["ticks"]["full"]["computed_ms"] > 0
        errors = [value for value in results["kernels"].values() if not isinstance(value, float)]
        assert errors == []
        again = run(tmp_path, "--plan", plan, "--small", "--out", str(tmp_path), "--resume")
        assert again.stderr == ""
        assert json.loads((tmp_path / "first.json").read_text()) == found
        assert results["profile"]["computed_kernels"] == sum(one.of(2, 8) for one in MOSHI_NODES)
    elif plan == "kernels":
        assert results["nodes"]["computed"] == pytest.approx(1e6 * H200.node_s)
        assert results["mimi"]["computed, 1 rows, ieee"] > 0
        assert results["attention"]["computed_gb_s"] > 0
        assert all(entry["ours, computed"] > 0 for entry in results["products"].values())
    elif plan == "capacity":
        assert results["paced"]["computed_latency_ms"]["p99"] > 0
        assert results["paced"]["frames"] > 0
        assert set(results["paced"]["latency_ms"]) == {"p50", "p99", "p99.9"}


@pytest.mark.parametrize("step", ["delays", "served"])
def test_a_step_of_the_server_plan_runs(tmp_path: Path, step: str) -> None:
    """The whole server needs more packages than a GPU machine has by default."""
    command = [sys.executable, "-m", "lab.bench.gpu_session", "--step", step, "--batch", "2", "--small"]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    if step == "served":
        assert found["promised"] == 2
        assert found["counts"]["lost"] == 0  # how many are late depends on the machine's load
        assert found["counts"]["answered"] > 0
        assert [path.name for path in tmp_path.iterdir()] == ["served.log"]  # the model's folder is removed
    else:
        assert {"arrive", "launch encode", "launch lm", "device encode"} <= set(found["without"]["ms"])
        assert len(found["without"]["latest"]) == 3


def test_the_server_plan_fits_into_a_quarter_of_an_hour(tmp_path: Path) -> None:
    """Its limits together are 900 s at most; a plan ends after its budget."""
    entries = PLANS["server"]
    assert sum(entry.limit_s for entry in entries) <= 15 * 60
    assert {entry.step for entry in entries} <= set(gpu_session.STEPS)
    for entry in entries:
        options = gpu_session.arguments([*entry.words(is_small=False), "--out", str(tmp_path)])
        task = gpu_card.Task(options.model, options.batch, options.small, options.out, bits=options.bits)
        assert task.form.bits == entry.bits


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


@pytest.mark.parametrize(("is_same", "mark"), [(True, "same"), (False, "differs")])
def test_parity_marks_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool, mark: str
) -> None:
    """A plan with differing parity has all its times."""
    monkeypatch.setattr(gpu_session, "run_step", lambda *_: {"s": 1.0, "result": {"is_same": is_same}})
    assert run_plan(gpu_session.arguments(["--plan", "first", "--out", str(tmp_path)])) == 0
    found = json.loads((tmp_path / "first.json").read_text())
    assert len(found) == len(PLANS["first"])
    assert all("result" in one for one in found.values())
    assert [one["parity"] for one in found.values()] == ["unknown"] * 2 + [mark] * (len(found) - 2)


def test_what_is_timed_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one way to time a callable, and on a GPU it is a graph; no other module uses events."""
    captured: list[object] = []

    def capture(run: object) -> None:
        captured.append(run)
        raise InterruptedError

    monkeypatch.setattr(gpu_card, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(gpu_card, "_captured", capture)
    with pytest.raises(InterruptedError):
        gpu_card.median_ms(print)
    assert captured == [print]
    sources = {path.name: path.read_text() for path in (ROOT / "lab" / "bench").glob("gpu_*.py")}
    assert [name for name, text in sources.items() if "cuda.Event" in text] == ["gpu_card.py"]


def test_mimi_is_timed_as_the_server_runs_it() -> None:
    size, rows = published_sizes()["moshi-7b"], 4
    with fake_cuda(), torch.no_grad():
        codec, _ = empty_modules(size, Form.of(is_int8=True), "auto", "cuda")
        codec.prepare()
        step = codec_step(codec, State(codec.specs(), rows, "cuda"))
        with Recorder() as encoded:
            codec.encode(torch.zeros(rows, 1920, device="cuda"), step)
        with Recorder() as decoded:
            codec.decode(torch.zeros(rows, size.codebooks, 1, dtype=torch.int64, device="cuda"), step)
    for recorder, stage in ((encoded, "encode"), (decoded, "decode")):
        around = 5  # copies into and out of the stage's buffers
        assert 0 <= NODES["moshi-7b", stage].int8 - len(recorder.kernels) <= around


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
