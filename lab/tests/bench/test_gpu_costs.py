"""The computed cost of a tick: its parts, their sources, and an H100's measurements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import pytest
import torch

from antiphon.backends.torch.executor import tick_work
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.engine.sizing import most_rows
from antiphon.models.costs import CARDS, H100, H200, L4, card_called
from antiphon_quantize.advice.families import load_families
from antiphon_quantize.advice.fit import speech_facts
from lab.bench.gpu_costs import NODES, card_of, stage_costs, tick_ms, work_of
from lab.bench.gpu_fit import POINTS, Point, lines
from lab.bench.gpu_models import Form, empty_modules, lm_spec, prepared, published_sizes, reads
from lab.bench.gpu_simulation import (
    FORM_S,
    KV_FORMS,
    WEIGHT_FORMS,
    form_lines,
    rows_held,
    session_lines,
    simulate,
)
from tests.backends.torch.fake_cuda import fake_cuda

MOSHI = published_sizes()["moshi-7b"]


def test_only_an_h100s_constants_are_measured() -> None:
    labels = {card.name: card.label for card in CARDS}
    assert labels.pop("H100") == "on H100's measured constants"
    assert set(labels.values()) == {"computed, not measured"}


@pytest.mark.parametrize("point", POINTS, ids=lambda it: f"{it.card.name}, {it.model}, {it.rows} rows")
def test_a_computed_stage_is_near_the_one_that_was_measured(point: Point) -> None:
    """Also of the points to which no constant is fitted. The encoder's times include delays of the host."""
    ratios = point.ratios()
    lm, tick = (0.07, 0.07) if point.card is H100 else (0.12, 0.1)
    for name, most in (("encode", 0.15), ("lm", lm), ("decode", 0.07), ("tick", tick)):
        assert name not in ratios or median(ratios[name]) == pytest.approx(1, abs=most), name
        assert name not in ratios or ratios[name] == pytest.approx([1] * 3, abs=0.28), name


def test_the_page_of_the_measurement_has_what_the_fit_leaves() -> None:
    text = " ".join((Path(__file__).parents[3] / "docs" / "benchmarks" / "gpu.md").read_text().split())
    steps: dict[tuple[str, str], list[int]] = {}
    for point in POINTS:
        percents = [round(100 * (ratio - 1)) for ratio in point.ratios()["tick"]]
        steps.setdefault((point.card.name, point.model), []).extend(percents)
    for percents in steps.values():
        assert f"by {min(percents):+d} to {max(percents):+d} %" in text, "see python -m lab.bench.gpu_fit"
    encode = min(ratio for point in POINTS for ratio in point.ratios()["encode"])
    assert f"({100 * (encode - 1):+.0f} % at 64 full rows of an H100)" in text
    assert {len(line.split(" | ")) for line in lines()} == {1, 7}
    for card, calls, bits in ((H100, 64, 8), (H100, 72, 8), (H200, 64, 8), (H200, 128, 8), (H200, 32, 16)):
        form = Form.of(is_int8=bits == 8)
        p50, p99, _ = simulate(MOSHI, calls, card, form=form, seconds=FORM_S)
        words = f"{card.name}, {'INT8' if bits == 8 else 'bfloat16'} | {calls}"
        assert re.search(rf"\| {words} \| [^|]+(\| [^|]+){{4}}\| {p50:.1f}, {p99:.1f} \|", text), words


@pytest.mark.parametrize("name", published_sizes())
def test_a_tick_is_its_stages_and_the_host(name: str) -> None:
    costs = stage_costs(published_sizes()[name], 1, 1, H200)
    assert set(costs) == {stage for model, stage in NODES if model == name}
    assert tick_ms(costs, H200) == pytest.approx(1000 * H200.host_s + sum(cost.ms for cost in costs.values()))


def test_one_call_is_launches_and_bytes_and_a_full_card_is_bytes() -> None:
    alone, crowd = (stage_costs(MOSHI, rows, 3000, H200) for rows in (1, 128))
    nodes_ms = sum(cost.nodes_ms for cost in alone.values())
    assert 1.2 < nodes_ms / sum(cost.bytes_ms for cost in alone.values()) < 1.8
    full = crowd["lm"]
    assert 26 < full.bytes_ms < 32
    assert full.ms == pytest.approx(full.nodes_ms + full.bytes_ms)


def test_rings_cost_by_their_age_up_to_the_context() -> None:
    costs = [stage_costs(MOSHI, 64, frames, H200)["lm"].bytes_ms for frames in (1, 1500, 3000, 9000)]
    assert costs[0] < costs[1] < costs[2] == costs[3]
    assert costs[2] - costs[0] == pytest.approx(2 * (costs[1] - costs[0]), rel=0.01)


def test_a_slower_card_and_wider_numbers_take_longer() -> None:
    form = Form.of(is_int8=False)
    int8, wide = stage_costs(MOSHI, 64, 3000, H200), stage_costs(MOSHI, 64, 3000, H200, form)
    assert 1.7 < wide["lm"].bytes_ms / int8["lm"].bytes_ms < 2
    slower = replace(H200, copy_bytes_per_s=H200.copy_bytes_per_s / 2, cache_bytes_per_s=1e12)
    assert stage_costs(MOSHI, 64, 3000, slower)["lm"].bytes_ms > 1.9 * int8["lm"].bytes_ms


def test_simulated_calls_wait_between_one_tick_and_two() -> None:
    alone_ms = tick_ms(stage_costs(MOSHI, 1, 3000, H200), H200)
    p50_ms, p99_ms, rows = simulate(MOSHI, 2, H200, seconds=1.0)
    assert 0.9 * alone_ms < p50_ms <= p99_ms < 2 * alone_ms
    assert rows == 1


def test_the_runbook_has_the_times_that_are_computed() -> None:
    text = (Path(__file__).parents[3] / "docs" / "runbooks" / "gpu-session.md").read_text()
    one, many = (next(line for line in session_lines() if f"{rows} rows" in line) for rows in (1, 64))
    for line in (one, many):
        for cell in line.split(" | ")[2:4]:
            assert cell.split(", ")[1] in text, "python -m lab.bench.gpu_simulation prints what belongs there"


@pytest.mark.parametrize(
    ("name", "forms"), [("0037-four-bit-keys.md", KV_FORMS), ("0038-four-bit-weights.md", WEIGHT_FORMS)]
)
def test_a_decision_has_the_table_that_is_computed(name: str, forms: Sequence[Form]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "adr" / name).read_text()
    for line in form_lines(forms, (H100, L4)):
        assert line in text, "python -m lab.bench.gpu_simulation prints what belongs there"


def test_one_call_is_more_than_half_launches() -> None:
    """It is above 6 ms on an H100: launches and their kernels' latency are more than half of it."""
    alone = stage_costs(MOSHI, 1, 1, H100)
    assert 6 < tick_ms(alone, H100) < 2 * sum(cost.nodes_ms for cost in alone.values())


def test_a_card_is_known_by_its_name() -> None:
    assert card_called("NVIDIA H100 80GB HBM3") == H100
    assert card_called("NVIDIA H200") == H200
    others = ("H100 PCIe", "H100 NVL", "GH200 480GB", "H100 80GB HBM3 MIG 1g.10gb", "something new")
    assert [card_called(f"NVIDIA {name}") for name in others] == [None] * len(others)
    assert card_of("something new") == H200


@pytest.mark.parametrize(("name", "bits"), [*product(published_sizes(), (16, 8)), ("stt-1b", 4)])
def test_what_a_backend_says_of_itself_is_what_shapes_say(name: str, bits: int) -> None:
    """Bytes agree within 3 %: shared sets of the depformer count with their mean. Launches agree within 7
    %."""
    size, form = published_sizes()[name], Form(bits, KVForm.COMPUTE if bits == 16 else KVForm.INT8)
    # Blocks of 4 bits are paired on a card only.
    with fake_cuda() if bits == 4 else nullcontext(), torch.no_grad():
        mimi, model = empty_modules(size, form, "auto", "cuda" if bits == 4 else "meta")
        generator = Generator(prepared(model, form), lm_spec(size))
    said, wanted = tick_work(size.kind, mimi, generator), work_of(size, form)
    assert said.weights_bytes == pytest.approx(wanted.weights_bytes, rel=0.03)
    assert replace(said, weights_bytes=0, passes=0) == replace(wanted, weights_bytes=0, passes=0)
    for rows in (1, 3, 16, 64):
        counted = NODES[name, "lm"].of(rows, bits)
        assert said.launches(rows) == pytest.approx(counted, rel=0.07)


@pytest.mark.parametrize(("published", "name"), [("moshiko", "moshi-7b"), ("stt-1b-en_fr", "stt-1b")])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_published_model_is_the_size_that_is_measured(published: str, name: str, precision: str) -> None:
    family = next(one for one in load_families().speech if one.name == published)
    is_int8 = precision == "int8"
    size, form = published_sizes()[name], Form.of(is_int8=is_int8)
    held, wanted, work = reads(size, form), work_of(size, form), family.work(precision)
    assert family.row_bytes(precision) == pytest.approx(held.row_bytes, rel=0.001)
    assert family.weight_bytes(precision) + family.codec_bytes == pytest.approx(
        held.resident_bytes, rel=0.006
    )
    for card in CARDS:
        by_memory = most_rows(speech_facts(family, precision, round(card.memory_bytes)))
        assert rows_held(size, form, card) == pytest.approx(by_memory, abs=1)
    assert work.weights_bytes == pytest.approx(wanted.weights_bytes, rel=0.02)
    assert replace(work, weights_bytes=0) == replace(wanted, weights_bytes=0)
