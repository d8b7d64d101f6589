"""The benchmark of Moshi 7B on a CPU: its parts with a small model, its page with invented times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.quantised.stored import formats_of
from antiphon.models import defaults
from lab.bench import cpu_7b, cpu_7b_report
from lab.bench.cpu_rates import Rates
from lab.bench.frame_work import KEEPINGS, FrameWork, Work, frame_work
from lab.bench.gpu_models import SHRUNK
from lab.bench.onnx_graphs import GraphFile
from lab.bench.seeded_graphs import seeded_reader, write_graphs
from lab.bench.seeded_linears import seeded_lm

CONFIG = {**defaults.MOSHI_CONFIG, **SHRUNK}
RATES = Rates(30e9, 100e9, 200e9, 500e9, "VNNI")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small graphs in INT4 whose weights were never anywhere in float32."""
    folder = tmp_path_factory.mktemp("7b") / "int4"
    write_graphs(folder, CONFIG, "int4")
    return folder


def test_graphs_with_seeded_weights_step(graphs: Path) -> None:
    assert {path.name for path in graphs.iterdir()} == {"int4"}
    calls, state_bytes = cpu_7b.open_graphs(graphs, "int4", 1)(2)
    assert set(calls) == {"lm", "depformer"}
    assert state_bytes >= 2 * 2 * 2 * 4 * 80 * 16 * 4  # rows, layers, keys and values, heads, frames, width
    for stage in ("lm", "depformer"):
        file = GraphFile.exported(graphs, "int4", stage)
        graph = file.rows(file.session(1), 2)
        graph.run(range(2))
        for name, array in graph.outputs.items():
            assert np.isfinite(array).all(), name
            assert np.ptp(array) > 0, name


def test_the_graphs_hold_the_bytes_that_the_floor_counts(graphs: Path) -> None:
    work = frame_work(CONFIG, KEEPINGS["onnx int4"])
    for stage, works in work.stages.items():
        held = onnx.load(graphs / "int4" / f"{stage}.onnx")
        products = {name for node in held.graph.node if "MatMul" in node.op_type for name in node.input[1:]}
        held_bytes = sum(len(each.raw_data) for each in held.graph.initializer if each.name in products)
        assert held_bytes == pytest.approx(sum(each.shared_bytes for each in works), rel=0.15)


def test_a_weight_is_the_same_whenever_it_is_drawn() -> None:
    first, again, other = seeded_reader(), seeded_reader(), seeded_reader(1)
    tensor = onnx.TensorProto(name="a", dims=(100, 70_000), data_type=onnx.TensorProto.FLOAT)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    values = first(tensor, Path())
    assert np.array_equal(values, again(tensor, Path()))
    assert not np.array_equal(values, other(tensor, Path()))
    assert values.std() == pytest.approx(100**-0.5, rel=0.01)
    assert len(np.unique(values[:, :8], axis=0)) == 100
    tensor.name = "b"
    assert not np.array_equal(values, first(tensor, Path()))


@pytest.mark.parametrize(("bits", "name"), [(4, "int4"), (8, "int8")])
def test_a_torch_model_of_few_bits_from_the_start_steps(bits: int, name: str) -> None:
    assert formats_of(seeded_lm(CONFIG, bits, Compute(torch.bfloat16, torch.float32))) == [name]
    calls, state_bytes = cpu_7b.open_torch(CONFIG, bits)(1)
    with torch.no_grad():
        made, codes = calls["lm"](), calls["depformer"]()
    assert isinstance(made, tuple)
    assert all(torch.isfinite(tensor).all() for tensor in made)
    assert isinstance(codes, torch.Tensor)
    assert codes.shape == (1, CONFIG["dep_q"])
    assert state_bytes >= 2 * 2 * 4 * 80 * 16 * 4


def test_the_published_size_is_what_a_frame_reads() -> None:
    work = frame_work(defaults.MOSHI_CONFIG, KEEPINGS["onnx int8"])
    layers, text, ring = work.stages["lm"]
    assert layers.products == pytest.approx(6.577e9, rel=0.001)
    assert layers.shared_bytes == pytest.approx(layers.products * 8.25 / 8)
    assert text.shared_bytes == 4 * 4096 * 32000
    assert ring.row_bytes == pytest.approx(32 * 3001 * 32 * (2 * 128 + 3 * 4))
    assert work.bytes == pytest.approx(8.97e9, rel=0.01)
    floats = frame_work(defaults.MOSHI_CONFIG, KEEPINGS["torch int8"]).stages["lm"][2]
    assert floats.row_bytes == pytest.approx(2 * 32 * 3000 * 4096 * 4)
    at_30 = work.least_ms(1, RATES)
    assert at_30 == pytest.approx(1000 * work.bytes / 30e9)
    assert work.least_ms(64, RATES) > 64 * 1000 * ring.row_bytes / 30e9


def test_a_machine_that_is_twice_as_fast_holds_more_sessions() -> None:
    work = FrameWork({"lm": (Work(1e9, 1e6, 1e9, "int8"),)})
    there = cpu_7b_report.scaled(RATES, 16, 300e9)
    assert (there.bytes_s, there.int8_s, there.float32_s) == (300e9, 8000e9, 1600e9)
    few = cpu_7b_report.sessions(work, there, 0.5)
    assert few > 0
    assert cpu_7b_report.least_ms(work, few, there) <= 40 < cpu_7b_report.least_ms(work, few + 1, there)
    assert cpu_7b_report.sessions(work, cpu_7b_report.scaled(RATES, 32, 600e9), 0.5) > few
    assert cpu_7b_report.sessions(work, RATES, 0.1) == 0


def found(lm_ms: float) -> dict[str, Any]:
    """What a form's process says."""
    times = {"1": {"lm": {"median_ms": lm_ms}, "depformer": {"median_ms": 40.0}}}
    sizes = {"weights_bytes": 5e9, "state_bytes": 3e9, "peak_bytes": 9e9, "file_bytes": 5e9}
    return {"rates": RATES.to_json(), "load_s": 20.0, "times": times, **sizes}


def test_forms_are_measured_in_processes_once_and_told_beside_their_floors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Sequence[str]] = []

    def measured(command: Sequence[str]) -> dict[str, Any]:
        asked.append(command[3:])
        said = json.dumps(found(400.0)) if "--step" in command else ""
        return {"said": said, "peak_bytes": 9.5e9, "cpu_s": 1.0, "seconds": 2.0}

    monkeypatch.setattr(cpu_7b, "measured", measured)
    line = [
        "--out",
        str(tmp_path),
        "--graphs",
        str(tmp_path / "7b"),
        "--form",
        "onnx int4",
        "--context",
        "750",
    ]
    assert cpu_7b.main(line) == 0
    assert [command[-2:] for command in asked] == [["--write", "int4"], ["--step", "onnx int4"]]
    assert all("750" in command for command in asked)
    assert cpu_7b.main(line) == 0
    assert len(asked) == 2  # what was measured is not measured again
    page = (tmp_path / "cpu-7b.md").read_text()
    assert "rings of 750 frames" in page.replace("\n", " ")
    assert "| onnx int4 | 1 | 400 |" in page
    assert "| 9.50 |" in page
    assert "Computed, not measured." in page.replace("\n", " ")
    assert page.count("| 64 |") == len(cpu_7b_report.MEMORY_GB_S)
    assert capsys.readouterr().out.endswith(page)


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_that_is_stopped_leaves_no_graphs_but_those_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    def stopped(command: Sequence[str]) -> dict[str, Any]:
        if "--write" in command:
            assert cpu_7b.main(command[3:]) == 0
            return {}
        raise KeyboardInterrupt

    def written(folder: Path, config: object, recipe: str) -> None:
        (folder / recipe).mkdir(parents=True)

    monkeypatch.setattr(cpu_7b, "measured", stopped)
    monkeypatch.setattr(cpu_7b, "write_graphs", written)
    line = ["--out", str(tmp_path), "--graphs", str(tmp_path / "7b"), "--form", "onnx int4"]
    with pytest.raises(KeyboardInterrupt):
        cpu_7b.main([*line, *(["--keep"] if keep else [])])
    assert [path.name for path in (tmp_path / "7b").iterdir()] == (["int4"] if keep else [])

    def interrupted(folder: Path, config: object, recipe: str) -> None:
        written(folder, config, recipe)
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu_7b, "write_graphs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cpu_7b.main(["--graphs", str(tmp_path / "other"), "--write", "int8"])
    assert list((tmp_path / "other").iterdir()) == []


def test_without_a_share_that_was_measured_the_floors_are_told_alone() -> None:
    machine = {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux", "python": "3.11"}
    values = {
        "command": "python -m lab.bench.cpu_7b",
        "started_at": "today",
        "machine": {**machine, "versions": {}, "load_average_before": [0.1]},
        "settings": {"threads": 1, "clock": "a clock", "config": defaults.MOSHI_CONFIG},
        "attempts": {"torch int8": found(700.0)},
    }
    page = cpu_7b_report.render(values)
    assert "| torch int8 | 1 | 700 |" in page
    assert "at the share" not in page
    line = next(line for line in page.splitlines() if line.startswith("| 64 | 600 |"))
    assert line.split("|")[3].strip().isdigit()
    at_share = cpu_7b_report.render(values | {"attempts": {"onnx int4": found(700.0)}})
    line = next(line for line in at_share.splitlines() if line.startswith("| 64 | 600 |"))
    floor_ms, shared_ms = map(int, line.split("|")[3].split(","))
    assert shared_ms > floor_ms


def test_a_process_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_7b, "measure_rates", lambda threads, **_: RATES)
    options = argparse.Namespace(
        threads=1, rows=[1, 2], quick=True, layers=None, depformer_layers=None, context=None, graphs=Path()
    )
    values = cpu_7b.step_form("torch int8", options)
    assert set(values["times"]) == {"1", "2"}
    assert values["times"]["2"]["depformer"]["runs"] == cpu_7b.FEW_TURNS
    assert values["rates"] == RATES.to_json()
    assert values["state_bytes"] == pytest.approx(2 * 2 * 4 * 80 * 16 * 4, rel=0.1)
