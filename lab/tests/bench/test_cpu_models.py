"""The benchmark of models on a CPU, small, once; and its text about a long call."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.bench import cpu_models, cpu_profile, cpu_roofline
from lab.bench.cpu_rates import Rates, int8_unit
from lab.bench.long_call import judge_call, render_call
from lab.bench.model_memory import measure_memory
from lab.bench.onnx_graphs import GraphFile
from lab.bench.onnx_models import Setting, calls_in_parts
from lab.bench.onnx_work import Node, Work, products


def few_measured(folder: Path, form: str, rows: int, threads: int) -> dict[str, int]:
    """Two of the forms, each in a process."""
    if folder.name == "mimi-small" and form in ("upstream", "int8"):
        return measure_memory(folder, form, rows, threads)
    return {"weights_bytes": 9_000_000, "state_bytes": 1, "running_bytes": 2, "peak_bytes": 9_000_002}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of small graphs, exported by the first user."""
    return tmp_path_factory.mktemp("graphs")


def test_it_runs_in_seconds_when_quick_and_can_be_resumed(
    tmp_path: Path, graphs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["--quick", "--eager", "--spin", "--batch", "2", "--out", str(tmp_path), "--graphs", str(graphs)]
    monkeypatch.setattr("lab.bench.model_memory.measure_memory", few_measured)
    assert cpu_models.main(line) == 0
    values = json.loads((tmp_path / "cpu-models.json").read_text())
    assert list(values["attempts"]) == [
        "mimi 2",
        "lm bf16",
        "lm float32",
        "roofline",
        "onnx mimi 2",
        "onnx lm 2",
        *(f"memory mimi {form} 2" for form in ("upstream", "float32", "int8")),
        *(f"memory lm {form} 2" for form in ("upstream", "int8", "int4")),
        "hour",
    ]
    assert values["attempts"]["mimi 2"]["codes_equal"] > 0.9
    assert set(values["attempts"]["lm bf16"]["times"]["2"]) == {"upstream", "ours", "ours int8"}
    assert values["attempts"]["lm float32"]["times"]["2"]["ours"]["runs"] == 2
    mimi, lm = (values["attempts"][f"onnx {model} 2"] for model in ("mimi", "lm"))
    assert set(mimi["times"]) == {
        f"{who} {part}"
        for who in ("upstream", "float32", "int8", "int8 spinning")
        for part in ("encode", "decode")
    }
    assert set(lm["times"]) == {"upstream lm", "int8 lm", "int4 lm", "int4 spinning lm", "int8 encode"}
    assert mimi["file_bytes"]["int8"] < mimi["file_bytes"]["float32"]
    written = [path.stat().st_size for path in (graphs / "lm-small" / "int4").glob("*.onnx*")]
    assert lm["file_bytes"]["int4"] == sum(written)
    for form in ("upstream", "int8"):
        memory = values["attempts"][f"memory mimi {form} 2"]
        assert (
            0
            < memory["state_bytes"]
            < memory["running_bytes"] + memory["weights_bytes"]
            <= memory["peak_bytes"]
        )
    stages = values["attempts"]["roofline"]["stages"]
    assert len(stages) == 7
    assert all(stage[rows]["floor_ms"] > 0 for stage in stages.values() for rows in ("1", "16"))
    assert values["settings"]["clock"] == "CPU time of the thread"
    text = (tmp_path / "cpu-models.md").read_text()
    assert text in capsys.readouterr().out
    text = " ".join(text.split())  # its prose is wrapped
    for words in (
        "torch 2.",
        "load average",
        "**Mimi encode + decode**",
        "| tiny depformer as shipped | ",
        "ours int8",
        "| **Mimi encode + decode** | 2 | int8 |",
        "| **Mimi encode + decode** | 2 | int8 spinning |",
        "Batch 2: the stt-1b step and Mimi's encoder (the 32 codebooks that it hears), both in int8, take ",
        "| Mimi encode + decode | 2 | upstream |",
        "| stt-1b step | 2 | int4 |",
        "One call of 3 minutes",
    ):
        assert words in text
    monkeypatch.setattr(cpu_models, "measure_lm", pytest.fail)  # it is not called
    monkeypatch.setattr("lab.bench.onnx_models.export", pytest.fail)
    assert cpu_models.main([*line, "--resume"]) == 0
    assert json.loads((tmp_path / "cpu-models.json").read_text()) == values


def test_a_profile_names_operators_and_what_they_cannot_avoid(tmp_path: Path, graphs: Path) -> None:
    line = ["--quick", "--threads", "1", "--batch", "2", "--out", str(tmp_path), "--graphs", str(graphs)]
    assert cpu_profile.main(line) == 0
    encode = json.loads((tmp_path / "cpu-profile.json").read_text())["attempts"]["mimi encode int8"]
    operators = encode["operators"]
    assert {found["runs"] for found in operators.values()} == {3}
    total_ms = sum(found["median_ms"] for found in operators.values())
    assert 0 < total_ms <= 2 * encode["kernels"]["median_ms"] <= 2 * encode["run"]["median_ms"]
    weights_bytes = operators["MatMulIntegerToFloat"]["cold_bytes"]
    assert 0 < weights_bytes < GraphFile.exported(graphs / "mimi-small", "int8", "encode").bytes
    rings_bytes = 2 * 2 * 16 * 32 * 4  # keys and values, two rows, a window of 16, 32 wide, float32
    read = operators["MatMul"]["cold_bytes"] + operators["FusedMatMul"]["cold_bytes"]
    assert read >= rings_bytes
    assert operators["Conv"]["least_ms"] > 0
    assert operators["MatMulIntegerToFloat"]["products"] > 0
    text = " ".join((tmp_path / "cpu-profile.md").read_text().split())  # its prose is wrapped
    for words in (
        "onnxruntime 1.",
        "## mimi encode int8, batch 2",
        "## tiny lm as shipped, batch 2",
        "3 runs after 2",
        "| Conv | ",
        " others | ",
    ):
        assert words in text


def test_a_roofline_of_a_result_before_threads_could_spin_is_of_threads_that_sleep() -> None:
    rates = Rates(4.5e10, 1.1e11, 1.2e11, 4e11, "VNNI").to_json()
    text = cpu_roofline.render({"roofline": {"rates": rates, "stages": {}}})
    assert "Threads sleep where they wait." in text


def test_parts_of_the_rows_are_timed_on_a_thread_each(graphs: Path) -> None:
    folder = Setting(graphs, "small", 2, spin=False, turns=1).folder("mimi")
    with ExitStack() as stack:
        calls = calls_in_parts(folder, ("encode", "decode"), 3, 2, stack)
        assert list(calls) == ["int8 in parts encode", "int8 in parts decode"]
        for call in calls.values():
            call()


def test_products_are_counted_by_their_shapes() -> None:
    def event(operator: str, given: list[int], made: list[int]) -> dict[str, Any]:
        shapes = {"input_type_shape": [{"float": given}], "output_type_shape": [{"float": made}]}
        return {"op_name": operator, **shapes}

    kernel = Node("conv", ((128, 64, 8), (128,)))
    assert products(event("Conv", [1, 64, 1924], [1, 128, 480]), kernel) == 128 * 480 * 64 * 8
    turned = Node("turned", ((128, 64, 8),))
    made = event("ConvTranspose", [1, 128, 480], [1, 64, 1924])
    assert products(made, turned) == 128 * 480 * 64 * 8
    plain = Node("plain")
    assert products(event("MatMulNBits", [8, 2, 512], [8, 2, 2048]), plain) == 8 * 2 * 512 * 2048
    assert products(event("Add", [8, 2], [8, 2]), plain) == 0


def test_a_floor_is_the_longer_of_reading_and_multiplying_at_the_rate_of_the_kind() -> None:
    rates = Rates(bytes_s=1000.0, float32_s=100.0, bfloat16_s=200.0, int8_s=400.0, int8_unit="VNNI")
    rounded = Work("MatMulNBits", weight_bytes=1000, state_bytes=0, products=2 * 200, rows=2)
    assert [rounded.least_s(rows, rates) for rows in (1, 2, 4)] == [1.0, 1.0, 2.0]
    attention = Work("MatMul", weight_bytes=0, state_bytes=2 * 500, products=2 * 100, rows=2)
    assert [attention.least_s(rows, rates) for rows in (1, 4)] == [1.0, 4.0]


@pytest.mark.parametrize(
    ("flags", "unit"),
    [("avx512_vnni amx_int8", "AMX"), ("avx2 avx_vnni", "VNNI"), ("sse2", "no unit of its own")],
)
def test_the_unit_that_multiplies_int8_is_read_from_the_cpus_flags(
    tmp_path: Path, flags: str, unit: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    assert int8_unit(cpuinfo) == unit


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
