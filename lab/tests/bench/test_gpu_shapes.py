"""Ticks of the published sizes, as on a GPU, on tensors that have a device, a dtype and a shape alone.

On the meta device, as on a card, it is an error to mix tensors with the CPU's, to read a value, or to
multiply what does not fit. What a tick asks of torch, and the Triton kernels it launches, are counted beside
it: on a card about a kernel each.
"""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.kernels import fused
from antiphon.backends.torch.kernels.rows import linear_rows, plain_rows
from antiphon.backends.torch.pipeline import Pipeline
from antiphon.backends.torch.places import Layout
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon.models.costs import Launches
from antiphon.models.tiles import FEW_ROWS, MOST_ROWS, SHORT_ROWS, makes_rows
from lab.bench.gpu_costs import NODES
from lab.bench.gpu_models import Form, lm_spec, meta_modules, model_spec, published_sizes
from tests.backends.torch.compiled import launch_nothing
from tests.backends.torch.recorded import HOST_WAITS, Recorder, tensors_of
from tests.backends.torch.test_capture import places_of, stages_of

MANY_ROWS = 2 * SHORT_ROWS
COUNTED = {**NODES, ("tts-1.6b", "encode"): Launches(287, 287, 287, 287)}
"""What costs are computed of: they may only become fewer. Served, text to speech has no encoder."""

STAGE_NAMES = {"think": "lm"}

RARE_STAGES, RARE_KERNELS = ("renew", "forget"), 28
"""Stages of a call's first ticks alone."""


def recorded(name: str, form: Form, rows: int) -> dict[str, Recorder]:
    size, found = published_sizes()[name], {}
    mimi, model = meta_modules(size, form, "auto")
    generator = Generator(model.prepare(int8=form.int8_weights), lm_spec(size))
    pipeline = Pipeline(model_spec(size), mimi.prepare(), generator, rows=rows)
    for stage_name, stage in stages_of(pipeline, places_of(Layout.PADDED, rows, size.lm["context"])).items():
        with Recorder() as recorder:
            stage()
        found[stage_name] = recorder
    return found


@pytest.mark.parametrize("name", published_sizes())
@pytest.mark.parametrize(
    ("is_int8", "rows"), [(False, SHORT_ROWS), (True, MANY_ROWS), (True, SHORT_ROWS), (True, FEW_ROWS)]
)
def test_a_tick_stays_on_the_card(
    name: str, is_int8: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "DEVICES", ("meta",))
    launches = launch_nothing(monkeypatch)
    form = Form(is_int8, is_int8, torch.bfloat16)
    for stage, recorder in recorded(name, form, rows).items():
        for one in recorder.operations:
            where = f"{stage}: {one.name}"
            assert one.name not in HOST_WAITS, where
            for tensor in tensors_of((one.arguments, dict(one.options), one.results)):
                assert tensor.device.type == "meta", where
        if stage in RARE_STAGES:
            assert len(recorder.kernels) <= RARE_KERNELS, stage
        else:
            counted = COUNTED[name, STAGE_NAMES.get(stage, stage)].of(rows, is_int8=is_int8)
            assert len(recorder.kernels) == counted, stage
    size = published_sizes()[name]
    layers, codecs = size.lm["num_layers"], 2 if size.lm["dep_q"] else 1
    codec_layers = codecs * size.mimi["transformer"]["num_layers"]
    assert launches["turn_and_write"] == layers + codec_layers
    assert launches["write_window"] == 1 + codecs
    cross = layers if size.cross_positions else 0
    own = 0 if is_int8 else layers
    assert launches["attend_limbs"] == layers - own
    assert launches["attend_split"] == own + cross + codec_layers
    assert launches["join_splits"] == launches["attend_split"]
    assert bool(launches["multiply_rows"]) is is_int8
    has_short = rows <= (SHORT_ROWS if size.lm["dep_q"] else FEW_ROWS)
    assert bool(launches["make_and_multiply"]) is (is_int8 and has_short)


@pytest.mark.parametrize(("rows", "most"), [(1, 860), (FEW_ROWS, 860), (SHORT_ROWS, 1010), (MANY_ROWS, 1100)])
def test_a_tick_of_moshi_has_few_kernels(rows: int, most: int) -> None:
    stages = ("encode", "lm", "decode")
    assert sum(NODES["moshi-7b", stage].of(rows, is_int8=True) for stage in stages) <= most


@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1, MOST_ROWS, MOST_ROWS + 1])
def test_a_linear_is_two_launches_at_most(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a few rows; with no product of torch's, whose int32 would be written and read again."""
    launches = launch_nothing(monkeypatch)
    with torch.device("meta"):
        linear = Int8Linear(torch.empty(48, 64, dtype=torch.int8), torch.empty(48))
        x, residual = (torch.empty(rows, width, dtype=torch.bfloat16) for width in (64, 48))
    with Recorder() as recorder:
        out = linear_rows(linear, plain_rows(x, linear), residual)
    assert (out.shape, out.dtype) == ((rows, 48), torch.bfloat16)
    wanted = ("make_and_multiply",) if makes_rows(rows, 64) else ("prepare_rows", "multiply_rows")
    assert launches == dict.fromkeys(wanted, 1)
    assert len(recorder.kernels) == len(wanted)
