"""The benchmark of quantising a large model, with a small one, in this process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.models import defaults
from antiphon_quantize import main as quantize
from lab.bench import quantize_7b
from lab.bench.gpu_models import SHRUNK
from lab.bench.harness import BenchError
from tests.support.small_models import mimi_config


def test_the_model_it_writes_is_quantised_loaded_and_steps(tmp_path: Path) -> None:
    config = {**defaults.MOSHI_CONFIG, **SHRUNK}
    size = quantize_7b.write_model(tmp_path / "source", config, mimi_config(card=64))
    assert 500_000 < size < (tmp_path / "source" / "model.safetensors").stat().st_size
    assert quantize.main(["--no-gate", "--model", str(tmp_path / "source"), str(tmp_path / "int8")]) == 0
    found = quantize_7b.step_model(tmp_path / "int8")
    assert found["runs"] == "weights-int8+activations-int8"
    assert min(found["load_s"], found["step_ms"], found["weights_bytes"], found["state_bytes"]) > 0


def test_seven_billion_parameters_are_planned() -> None:
    shapes = quantize_7b.shapes_of(defaults.MOSHI_CONFIG)
    total = sum(rows * (width[0] if width else 1) for rows, *width in shapes.values())
    assert total == pytest.approx(7.69e9, rel=0.01)


def test_a_process_is_measured_and_its_failure_told() -> None:
    found = quantize_7b.measured([sys.executable, "-c", "print(sum(bytearray(100_000_000)))"])
    assert found["said"] == "0"
    assert 100e6 < found["peak_bytes"] < 200e6
    assert found["cpu_s"] > 0
    with pytest.raises(BenchError, match="ended with 3"):
        quantize_7b.measured([sys.executable, "-c", "raise SystemExit(3)"])


CLEANED = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).unlink()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def test_a_run_that_is_interrupted_ends_its_command_and_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, plain = tmp_path / "part", subprocess.Popen.communicate
    is_interrupted = False

    def communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
        nonlocal is_interrupted
        if not is_interrupted:
            while not part.exists():
                assert process.poll() is None
                time.sleep(0.01)
            is_interrupted = True
            raise KeyboardInterrupt
        return plain(process)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        quantize_7b.measured([sys.executable, "-c", CLEANED, str(part)])
    assert not part.exists()


def test_the_report_has_a_line_for_each_recipe() -> None:
    tried = {
        "quantize": {"seconds": 61.2, "cpu_s": 59.0, "peak_bytes": 2.5e9},
        "load": {"peak_bytes": 9e9},
        "step": {"load_s": 12.0, "step_ms": 801.0},
        "bytes": 8.1e9,
    }
    values = {
        "command": "python -m lab.bench.quantize_7b x",
        "started_at": "today",
        "machine": {
            "cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux", "python": "3.11",
            "versions": {"torch": "2.13"},
        },
        "attempts": {"model": {"bytes": 15.4e9}, "int8": tried},
    }  # fmt: skip
    text = quantize_7b.report(values)
    assert "15.40 GB of bfloat16 weights" in text
    assert "| int8 | 8.10 | 61 | 59 | 2.50 | 12 | 801 | 9.00 |" in text
