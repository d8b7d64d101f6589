"""Ticks of the published sizes, as on a GPU, on fake CUDA tensors: only a device, a dtype and a shape.

As on a GPU, it is an error to mix tensors with the CPU's, to read a value, or to multiply other shapes. A
tick's calls of torch, and the Triton kernels that it launches, are counted: on a GPU about a kernel each.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from antiphon.backends.torch.kernels.rows import linear_rows, plain_rows
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.quantised import Int8Linear
from antiphon.models.costs import FEW_ROWS, MOST_ROWS, SHORT_ROWS, Launches, makes_rows
from lab.bench.gpu_costs import NODES
from lab.bench.gpu_models import Form, published_sizes
from lab.bench.gpu_trace import Stage, traced
from tests.backends.torch.fake_cuda import fake_cuda
from tests.backends.torch.recorded import HOST_WAITS, Recorder, tensors_of

MANY_ROWS = 2 * SHORT_ROWS
COUNTED = {**NODES, ("tts-1.6b", "encode"): Launches(279, 279, 279, 279)}
"""The counts in the computed costs, which may only decrease. In service, text to speech has no encoder."""

RARE_STAGES, RARE_KERNELS = ("reset_rows", "reset_encoders"), 28
"""Stages of a call's first ticks only."""


def check_operations(name: str, stage: Stage) -> None:
    """Nothing waits for the host, and every tensor is on the GPU."""
    for one in stage.operations:
        where = f"{name}: {one.name}"
        assert one.name not in HOST_WAITS, where
        for tensor in tensors_of((one.arguments, dict(one.options), one.results)):
            assert tensor.device == torch.device("cuda:0"), where


FORMS = ((16, SHORT_ROWS), (8, MANY_ROWS), (8, SHORT_ROWS), (8, FEW_ROWS))


@pytest.mark.parametrize(
    ("name", "bits", "rows"),
    [*((name, *form) for name in published_sizes() for form in FORMS), ("moshi-7b", 4, FEW_ROWS)],
)
def test_a_tick_stays_on_the_card(name: str, bits: int, rows: int) -> None:
    size, launches = published_sizes()[name], Counter[str]()
    form = Form(bits, KVForm.COMPUTE if bits == 16 else KVForm.INT8)
    for stage_name, stage in traced(size, form, rows).items():
        check_operations(stage_name, stage)
        launches.update(launch.name for launch in stage.launches)
        if stage_name in RARE_STAGES:
            assert stage.kernels <= RARE_KERNELS, stage_name
        else:
            counted = COUNTED[name, stage_name].of(rows, bits)
            assert stage.kernels == counted, stage_name
    layers, codecs = size.lm["num_layers"], 2 if size.lm["dep_q"] else 1
    codec_layers = codecs * size.mimi["transformer"]["num_layers"]
    assert launches["rotate_and_write"] == layers + codec_layers
    assert launches["write_window"] == 1 + codecs
    cross = layers if size.cross_positions else 0
    own = layers if bits == 16 else 0
    assert launches["attend_limbs"] == layers - own
    assert launches["attend_split"] == own + cross + codec_layers
    assert launches["join_splits"] == own + cross  # Mimi's ring is one split
    assert bool(launches["multiply_rows"]) is (bits == 8)
    assert bool(launches["multiply_pairs"]) is (bits == 4)
    has_short = rows <= (SHORT_ROWS if size.lm["dep_q"] else FEW_ROWS)
    assert bool(launches["make_and_multiply"]) is (bits == 8 and has_short)


def test_without_kernels_a_tick_stays_on_the_card_too() -> None:
    """It has about 20,000 operations a tick, so it is a fallback and no way to serve."""
    form = Form.of(is_int8=True)
    for name, stage in traced(published_sizes()["stt-1b"], form, 2, "torch").items():
        check_operations(name, stage)
        assert not stage.launches


@pytest.mark.parametrize(("rows", "most"), [(1, 860), (FEW_ROWS, 860), (SHORT_ROWS, 1010), (MANY_ROWS, 1100)])
def test_a_tick_of_moshi_has_few_kernels(rows: int, most: int) -> None:
    stages = ("encode", "lm", "decode")
    assert sum(NODES["moshi-7b", stage].of(rows, 8) for stage in stages) <= most


@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1, MOST_ROWS, MOST_ROWS + 1])
def test_a_linear_is_two_launches_at_most(rows: int) -> None:
    """It is one for a few rows; no product of torch's is used, whose int32 would be written and read
    again."""
    with fake_cuda() as cuda, torch.device("cuda"):
        linear = Int8Linear(torch.empty(48, 64, dtype=torch.int8), torch.empty(48))
        x, residual = (torch.empty(rows, width, dtype=torch.bfloat16) for width in (64, 48))
        with Recorder() as recorder:
            out = linear_rows(linear, plain_rows(x, linear), residual)
    assert (out.shape, out.dtype) == ((rows, 48), torch.bfloat16)
    wanted = ("make_and_multiply",) if makes_rows(rows, 64) else ("prepare_rows", "multiply_rows")
    assert cuda.counts == dict.fromkeys(wanted, 1)
    assert len(recorder.kernels) == len(wanted)
