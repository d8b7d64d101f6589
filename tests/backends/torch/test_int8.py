"""INT8 linear layers: exact numbers, independent rows, and the intended kernels."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, quantize_

from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.quantised import (
    Int8Linear,
    follows_recipe,
    has_integer_units,
    int8_linears,
    quantize_linears,
)
from antiphon.backends.torch.state import State
from tests.backends.torch.recorded import Recorder
from tests.backends.torch.small import Greedy, LMPair


def linear(out_features: int = 48, in_features: int = 64, *, bias: bool = False) -> Linear:
    made = Linear(in_features, out_features, bias=bias)
    made.weight.copy_(torch.randn(out_features, in_features))
    if made.bias is not None:
        made.bias.copy_(torch.randn(out_features))
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_is_that_of_rounding(bias: bool, dtype: torch.dtype) -> None:
    full = linear(bias=bias)
    small = Int8Linear.quantize(full)
    x = torch.randn(3, 2, 64)
    got, want = small(x.to(dtype)), full(x)
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert 0 < (got - want).norm() / want.norm() < 0.02


def test_a_loud_neighbour_changes_nothing() -> None:
    small = Int8Linear.quantize(linear())
    x = torch.randn(4, 64)
    louder = torch.cat([x[:1], 50 * x[1:]])
    assert torch.equal(small(x)[0], small(louder)[0])


def test_inputs_left_alone_bring_no_error_of_their_own() -> None:
    full = linear(bias=True)
    small = Int8Linear.quantize(full)
    small.rounds_input = False
    x = torch.randn(3, 2, 64)
    assert full.bias is not None
    want = x @ (small.weight.float() * small.scale[:, None]).t() + full.bias
    assert torch.allclose(small(x), want, atol=1e-5)
    assert small(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("out_features", [1, 7, 48])
@pytest.mark.parametrize("rows", [1, 3, 17])
def test_the_packed_weight_multiplies_exactly(out_features: int, rows: int) -> None:
    """Also where the sums are largest: CPUs without VNNI would saturate, and do not pack."""
    small = Int8Linear(
        torch.randint(-127, 128, (out_features, 512), dtype=torch.int8), torch.ones(out_features)
    )
    small.weight[0], x = 127, torch.randint(-127, 128, (rows, 512)).float()
    x[:, 0], x[0] = 127, 127  # rounding the rows changes nothing
    want = x @ small.weight.t().float()
    assert torch.equal(small(x), want)
    small.pack()
    assert (small.packed is not None) == has_integer_units()
    assert torch.equal(small(x), want)


def test_a_packed_layers_rows_do_not_depend_on_their_number() -> None:
    small = Int8Linear.quantize(linear(bias=True))
    small.pack()
    x = torch.randn(16, 64) * torch.logspace(-2, 2, 16)[:, None]
    alone = torch.cat([small(row[None]) for row in x])
    assert torch.equal(small(x), alone)
    assert torch.equal(small(x[:5]), alone[:5])


def test_torchaos_tensors_give_torchaos_results() -> None:
    layer = nn.Linear(64, 48, bias=False)
    quantize_(layer, Int8DynamicActivationInt8WeightConfig(version=2))
    assert isinstance(layer.weight, Int8Tensor)
    ours = Int8Linear(layer.weight.qdata, layer.weight.scale)
    assert ours.weight.dtype == torch.int8
    x = torch.randn(5, 64)
    assert (ours(x) - layer(x)).norm() / layer(x).norm() < 0.01  # its activation scales are max / 127.5
    whole = torch.randint(-127, 128, (5, 64)).float()
    whole[:, 0] = 127  # rounding changes nothing here, so only the weights count
    assert torch.allclose(ours(whole), whole @ layer.weight.dequantize().t(), rtol=1e-5, atol=1e-4)


def test_the_recipe_keeps_heads_and_embeddings() -> None:
    assert follows_recipe("transformer.layers.3.self_attn.in_proj")
    assert follows_recipe("depformer.layers.0.gating.2.linear_in")
    for name in ("text_linear", "depformer.linears.0", "depformer.inputs.1", "extra_heads.0"):
        assert not follows_recipe(name)


def test_the_chosen_layers_run_as_int8_and_close_to_full_precision(moshi: LMPair) -> None:
    small = copy.deepcopy(moshi.ours)
    model, config = small.model, moshi.ours.model.config
    count = quantize_linears(model)
    assert model.depformer is not None
    assert count == 4 * config["num_layers"] + 4 * 8 * config["depformer_num_layers"]
    codes = torch.randint(moshi.spec.card, (20, 2, 8), generator=torch.Generator().manual_seed(1))
    got, want = State(small.specs(), 2), State(moshi.ours.specs(), 2)
    with profile() as trace:
        small.step(codes[0], got.step(), Greedy())
    ran = {event.key: event.count for event in trace.key_averages()}
    assert ran["aten::_int_mm"] == count
    assert ran["aten::linear"] == sum(isinstance(child, Linear) for child in model.modules())
    moshi.ours.step(codes[0], want.step(), Greedy())
    errors = []
    for frame in codes[1:]:
        tokens = torch.cat([torch.zeros(2, 1, dtype=torch.int64), frame.repeat(1, 2)], dim=1)[..., None]
        ours, full = model(tokens, got.step())[0], moshi.ours.model(tokens, want.step())[0]
        errors.append(float((ours - full).norm() / full.norm()))
    assert 0 < max(errors) < 0.1


def test_packed_layers_run_on_the_integer_product_of_onednn(moshi: LMPair) -> None:
    model = copy.deepcopy(moshi.ours).model.prepare(int8=True, pack=True)
    state = State(model.specs(), 2)
    with profile() as trace:
        model(torch.zeros(2, 17, 1, dtype=torch.int64), state.step())
    ran = {event.key: event.count for event in trace.key_averages()}
    layers = 4 * moshi.ours.model.config["num_layers"]
    assert len(int8_linears(model)) > layers
    kernel = "onednn::qlinear_pointwise" if has_integer_units() else "aten::_int_mm"
    assert ran[kernel] == layers


@pytest.mark.parametrize(("rows", "given"), [(1, 32), (32, 32), (33, 64), (75, 96)])
def test_a_card_multiplies_whole_tiles_of_rows(rows: int, given: int) -> None:
    """cuBLASLt wants a multiple of 8 in every size; which rows it takes otherwise differs by release."""
    with torch.device("meta"):
        linear = Int8Linear(torch.empty(48, 64, dtype=torch.int8), torch.empty(48))
        x = torch.empty(rows, 64, dtype=torch.bfloat16)
    with Recorder() as recorder:
        out = linear(x)
    assert out.shape == (rows, 48)
    (product,) = [one for one in recorder.operations if one.name == "_int_mm"]
    assert product.arguments[0].shape[0] == given
