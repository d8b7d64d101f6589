"""INT4 and FP8 linear layers, and the tensors stored with a weight."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from antiphon.backends.torch.modules.kv_forms import quantize_tokens, unpack_halves
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.quantised import (
    Fp8Linear,
    Int4Linear,
    Int8Linear,
    expand_fp8,
    expect_stored,
    int4_values,
    pack_nibbles,
    unpack_nibbles,
)
from antiphon.backends.torch.weights import dequantized, parts_of
from antiphon.errors import CheckpointFormatError


def error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


def int4_parts(rows: int = 48, width: int = 64, block: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    integers = torch.randint(-8, 8, (rows, width), generator=generator, dtype=torch.int8)
    scale = 0.01 + torch.rand(rows, width // block, generator=generator) / 10
    return pack_nibbles(integers), scale.half().float()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), pairs=st.integers(1, 9))
def test_nibbles_come_back(seed: int, rows: int, pairs: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    integers = torch.randint(-8, 8, (rows, 2 * pairs), generator=generator, dtype=torch.int8)
    packed = pack_nibbles(integers)
    assert (packed.dtype, packed.shape) == (torch.uint8, (rows, pairs))
    assert torch.equal(unpack_nibbles(packed), integers)


def test_the_first_weight_is_in_the_low_bits_and_each_block_has_its_scale() -> None:
    values = int4_values(torch.tensor([[0x80, 0xF7]], dtype=torch.uint8), torch.tensor([[2.0, 10.0]]))
    assert values.tolist() == [[-16.0, 0.0, -10.0, 70.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_int4_is_the_same_product_within_bfloat16(dtype: torch.dtype, bias: bool) -> None:
    weight, scale = int4_parts()
    added = torch.randn(48, dtype=dtype) if bias else None
    layer = Int4Linear(weight, scale, added, torch.linspace(0.5, 2, 64))
    x = torch.randn(3, 2, 64, dtype=dtype)
    want = (x.float() * torch.linspace(0.5, 2, 64)) @ int4_values(weight, scale).t()
    want = want if added is None else want + added.float()
    plain = layer(x)
    layer.pack()
    assert layer.packed is not None
    packed = layer(x)
    assert plain.dtype == packed.dtype == dtype
    assert packed.shape == (3, 2, 48)
    assert error(plain, want) < (1e-6 if dtype == torch.float32 else 0.006)
    assert 0 < error(packed, want) < 0.006


@pytest.mark.parametrize(("rows", "width", "block"), [(40, 64, 32), (48, 64, 16)])
def test_shapes_that_the_packed_product_does_not_take_run_as_they_are(
    rows: int, width: int, block: int
) -> None:
    weight, scale = int4_parts(rows, width, block)
    layer = Int4Linear(weight, scale)
    layer.pack()
    assert layer.packed is None
    x = torch.randn(2, width)
    assert error(layer(x), x @ int4_values(weight, scale).t()) < 1e-6


def test_a_packed_int4_layers_rows_do_not_depend_on_their_number() -> None:
    layer = Int4Linear(*int4_parts())
    layer.pack()
    x = torch.randn(16, 64) * torch.logspace(-2, 2, 16)[:, None]
    alone = torch.cat([layer(row[None]) for row in x])
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(x[:5]), alone[:5])


def test_int4_with_rounded_inputs_is_a_product_of_integers_for_each_block() -> None:
    """To the bit, in float32 from the first block on; rows do not depend on others."""
    weight, scale = int4_parts(width=96)
    layer, x = Int4Linear(weight, scale), torch.randn(5, 96) * torch.logspace(-2, 2, 5)[:, None]
    layer.rounds_input = True
    rows, row_scale = quantize_tokens(x)
    blocks = torch.einsum(
        "nbk,obk->bno", *(part.long().unflatten(1, (3, 32)) for part in (rows, unpack_nibbles(weight)))
    )
    want = torch.zeros(5, 48)
    for products, each in zip(blocks.float(), scale.t(), strict=True):
        want = want + products * each
    assert torch.equal(layer(x), want * row_scale[:, None])
    assert torch.equal(layer(x)[:1], layer(x[:1]))
    assert 0 < error(layer(x), x @ int4_values(weight, scale).t()) < 0.01
    plain = layer(x)
    layer.pack()
    assert layer.packed is not None
    assert 0 < error(layer(x), plain) < 0.006


def test_weights_in_pairs_of_blocks_are_the_same_numbers() -> None:
    weight, scale = int4_parts(width=128)
    layer = Int4Linear(weight, scale)
    layer.pair(lambda _, x: x)
    assert layer.is_paired
    numbers = unpack_halves(layer.weight).transpose(0, 1).flatten(1)
    assert torch.equal(numbers, unpack_nibbles(weight))
    scales = layer.scale.t().contiguous().view(torch.float16)
    assert torch.equal(scales.float(), scale)
    odd = [Int4Linear(*int4_parts(width=96)), Int4Linear(*int4_parts(width=64, block=16))]
    odd.append(Int4Linear(weight, scale, prescale=torch.ones(128)))
    for layer in odd:
        layer.pair(lambda _, x: x)
        assert not layer.is_paired


def test_scales_that_do_not_fit_are_said() -> None:
    weight, _ = int4_parts()
    with pytest.raises(CheckpointFormatError, match=r"scales \(48, 3\) do not fit an INT4 weight \[48, 64\]"):
        int4_values(weight, torch.ones(48, 3))


def test_fp8_becomes_the_compute_dtype() -> None:
    full = torch.randn(48, 64)
    scale = full.abs().amax(dim=1) / torch.finfo(torch.float8_e4m3fn).max
    layer = Fp8Linear((full / scale[:, None]).to(torch.float8_e4m3fn), scale, torch.randn(48), torch.float32)
    module = nn.Sequential(layer, nn.Sequential(copy.deepcopy(layer)))
    expand_fp8(module)
    found = [child for child in module.modules() if isinstance(child, Linear)]
    assert len(found) == 2
    assert all(0 < error(linear.weight, full) < 0.03 for linear in found)
    assert {linear.weight.dtype for linear in found} == {torch.float32}
    assert all(linear.bias is not None for linear in found)


def test_what_lies_beside_a_weight_is_found_by_its_name() -> None:
    weight, scale = int4_parts()
    prescale = torch.stack([torch.full((64,), 2.0), torch.full((64,), 4.0)])  # of two steps, 24 rows each
    published = {"a.weight": weight, "a.weight_scale": scale, "a.weight_prescale": prescale}
    assert parts_of(published, "a.weight").keys() == {"scale", "prescale"}
    values = dequantized(published, "a.weight")
    want = int4_values(weight, scale)
    assert torch.equal(values, torch.cat([2 * want[:24], 4 * want[24:]]))
    plain = {"b": torch.ones(2)}
    assert parts_of(plain, "b") == {}
    assert dequantized(plain, "b") is plain["b"]
    for kind, dtype in (("INT4", torch.uint8), ("FP8", torch.float8_e4m3fn)):
        with pytest.raises(CheckpointFormatError, match=f"'c' is {kind}, but neither 'c_scale' nor 'c_scb'"):
            parts_of({"c": torch.zeros(2, 2).to(dtype)}, "c")


def test_only_linears_are_replaced() -> None:
    module = nn.ModuleDict({"one": Linear(64, 48), "norm": nn.LayerNorm(64)})
    weight, scale = int4_parts()
    expect_stored(module, "one", {"weight": weight, "scale": scale})
    assert isinstance(module["one"], Int4Linear)
    assert module["one"].weight.device.type == "meta"
    for name in ("norm", "gone"):
        message = f"the file has '{name}' as INT4, but only linear layers can be"
        with pytest.raises(CheckpointFormatError, match=message):
            expect_stored(module, name, {"weight": weight, "scale": scale})


def test_int8_inputs_are_scaled_first_and_rounded_to_a_step_where_they_are_to_be() -> None:
    weight, scale = torch.randint(-127, 128, (8, 32), dtype=torch.int8), torch.ones(8)
    x = torch.arange(64.0).view(2, 32)
    values = x @ weight.float().t()
    scaled = Int8Linear(weight, scale, prescale=torch.full((32,), 0.5))
    assert error(scaled(x), values / 2) < 0.01
    stepped = Int8Linear(weight, scale, step=torch.tensor([[1.0]]))
    assert torch.equal(stepped(x), values), "whole numbers are multiples of a step of 1"
    assert torch.equal(stepped(x + 1000), torch.full_like(x, 127) @ weight.float().t())
    plain = Int8Linear(weight, scale)
    assert [layer.is_plain for layer in (plain, scaled, stepped)] == [True, False, False]
    stepped.pack()
    assert torch.equal(stepped(x), values)
