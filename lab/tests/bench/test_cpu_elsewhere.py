"""What is computed for processors that are not at hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench import cpu_elsewhere
from lab.bench.cpu_elsewhere import CORES, Core, StageHere, computed, measured
from lab.bench.cpu_rates import Rates
from lab.bench.onnx_work import Work

HERE = Rates(bytes_s=10e9, float32_s=50e9, bfloat16_s=0.0, int8_s=200e9, int8_unit="VNNI")
INT8 = Work("MatMulNBits", weight_bytes=1000, state_bytes=0, products=200_000_000, rows=2)
READ = Work("Concat", weight_bytes=0, state_bytes=20_000_000, products=0, rows=2)
STAGES = [StageHere([INT8], {1: 1.0, 2: 2.0}), StageHere([READ], {1: 2.0, 2: 4.0})]


def test_with_the_rates_of_this_machine_the_computed_times_are_the_measured_ones() -> None:
    assert computed(STAGES, HERE, HERE, [1, 2]) == measured(STAGES, [1, 2])
    assert measured(STAGES, [1, 2]) == {"ms": {1: 3.0, 2: 6.0}, "rows": 26}


def test_a_stage_scales_with_the_rate_that_limits_it() -> None:
    products = computed(STAGES, replace(HERE, int8_s=100e9), HERE, [1, 2])
    memory = computed(STAGES, replace(HERE, bytes_s=5e9), HERE, [1, 2])
    assert (products["ms"], memory["ms"]) == ({1: 4.0, 2: 8.0}, {1: 5.0, 2: 10.0})
    assert computed(STAGES, replace(HERE, float32_s=1.0), HERE, [1, 2]) == measured(STAGES, [1, 2])


def test_another_rate_can_limit_a_stage_on_another_processor() -> None:
    both = StageHere([replace(INT8, weight_bytes=1_000_000)], {2: 2.0})
    assert both.on(replace(HERE, bytes_s=0.5e9), 2, HERE) == pytest.approx(4.0)


def test_a_stage_below_its_lower_bound_counts_as_at_its_bound() -> None:
    cached = StageHere([READ], {2: 0.5})
    assert cached.on(replace(HERE, bytes_s=1e9), 2, HERE) == pytest.approx(20.0)


def test_a_core_reaches_four_fifths_of_its_peak() -> None:
    rates = Core("a core", 2.0, 8, 32, 10.0).rates
    assert (rates.bytes_s, rates.float32_s, rates.int8_s) == (8e9, 12.8e9, 51.2e9)


def test_the_table_has_the_measured_machine_and_every_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_elsewhere, "measure_rates", lambda threads: HERE)
    monkeypatch.setattr(cpu_elsewhere, "measure_stages", lambda rows, turns: STAGES)
    assert cpu_elsewhere.main(["--batch", "2", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| one core | 1 row, ms | 2 rows, ms | rows in 80 ms |"
    assert lines[2] == "| this machine, measured | 3.0 | 6.0 | 26 |"
    assert [line.split(" | ")[0] for line in lines[3:]] == [f"| {core.name}" for core in CORES]


def test_every_stage_of_the_shipped_model_is_measured() -> None:
    stages = cpu_elsewhere.measure_stages([1, 2], turns=1)
    assert len(stages) == 4
    assert all(stage.measured_ms[2] > 0 and any(work.products for work in stage.works) for stage in stages)


def test_one_number_of_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu_elsewhere.main(["--batch", "4", "4"])
    assert "--batch needs two different numbers of rows, got [4]" in capsys.readouterr().err
