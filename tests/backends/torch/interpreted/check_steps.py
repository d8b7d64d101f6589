"""Layers as Triton kernels on a CPU compared with torch; run by ``test_steps.py``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.kernels import fused
from antiphon.backends.torch.kernels.rows import (
    gated_rows,
    linear_rows,
    normed_rows,
    plain_rows,
    rows_through,
    widened_rows,
)
from antiphon.backends.torch.kernels.steps import FrameWindow, cross_step, open_window, queries
from antiphon.backends.torch.modules.attention import (
    LARGEST,
    Compute,
    CrossAttention,
    SelfAttention,
    split_heads,
)
from antiphon.backends.torch.modules.kv_forms import KVForm, quantize_tokens, unpack_halves
from antiphon.backends.torch.modules.layers import (
    GatedFeedForward,
    Linear,
    RMSNorm,
    rotation,
)
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.quantised import Int4Linear, Int8Linear, follows_recipe, pack_nibbles
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import NO_ROW, PackedStep, Run, State
from antiphon.models.architecture import TransformerConfig
from antiphon.models.costs import FEW_ROWS, SHORT_DEPTH, SHORT_ROWS, makes_rows
from antiphon.models.sampling import SamplingParameters
from tests.backends.torch.small import LMPair, make_lm_pair, randomize
from tests.support.int4 import BLOCK, nearest_int4

pytestmark = pytest.mark.usefixtures("on_a_cpu")

FEW: dict[str, Any] = {"n_q": 8, "dep_q": 4, "delays": [0, 0, 1, 1, 1, 0, 1, 1, 1]}
"""Half the streams of a talker: each kernel runs several times, and interpreted each takes long."""
SHAPES: tuple[tuple[str, dict[str, Any], KVForm, int], ...] = (
    ("moshi", FEW, KVForm.INT8, 8),
    ("moshi-gqa", FEW, KVForm.COMPUTE, 16),
    ("moshi-halves", FEW, KVForm.INT8_INT4, 4),
    ("hibiki-2b", {**FEW, "depformer_weights_per_step_schedule": [0, 1, 2, 2]}, KVForm.COMPUTE, 16),
    ("stt", {}, KVForm.INT4, 8),
)
"""And the form of keys and values, and the bits of weights."""


def int8_linear(out_features: int, in_features: int, *, bias: bool = False) -> Int8Linear:
    given_bias = torch.randn(out_features) if bias else None
    return Int8Linear(*quantize_tokens(torch.randn(out_features, in_features)), given_bias)


def int4_linear(out_features: int, in_features: int, block: int = 32, *, bias: bool = False) -> Int4Linear:
    whole = torch.randint(-8, 8, (out_features, in_features), dtype=torch.int8)
    whole[0] = -8
    scale = (0.01 + torch.rand(out_features, in_features // block) / 10).half()
    linear = Int4Linear(pack_nibbles(whole), scale, torch.randn(out_features) if bias else None)
    linear.rounds_input = True
    return linear


# bfloat16 is cut off, not rounded, here.
@pytest.mark.parametrize(("bias", "dtype"), [(False, torch.float32), (True, torch.float16)])
@pytest.mark.parametrize(
    ("count", "depth", "columns"),
    [(1, 256, 32), (2, 300, 40), (3, 300, 40), (17, 64, 2100), (70, 96, 24), (130, 96, 70)],
)
def test_an_int8_linear_is_the_same_to_the_bit(
    count: int, depth: int, columns: int, bias: bool, dtype: torch.dtype
) -> None:
    linear = int8_linear(columns, depth, bias=bias)
    x = (torch.randn(count, depth) * torch.logspace(-1, 1, count)[:, None]).to(dtype)
    x[-1] = 0
    residual = torch.randn(count, columns).to(dtype)
    prepared = plain_rows(x, linear)
    assert prepared.is_unmade is makes_rows(count, depth)
    if prepared.scale is not None:
        values, scale = quantize_tokens(x)
        assert torch.equal(prepared.values, values)
        assert torch.equal(prepared.scale, scale)
    assert torch.equal(linear_rows(linear, prepared), linear(x))
    assert torch.equal(linear_rows(linear, prepared, residual), residual + linear(x))


@pytest.mark.parametrize(("bias", "dtype"), [(False, torch.float32), (True, torch.float16)])
@pytest.mark.parametrize(
    ("count", "depth", "columns", "block"),
    [(1, 256, 32, 32), (3, 192, 40, 32), (17, 64, 100, 32), (40, 256, 70, 64)],
)
def test_an_int4_linear_is_the_same_to_the_bit(
    count: int, depth: int, columns: int, block: int, bias: bool, dtype: torch.dtype
) -> None:
    """As many pairs of blocks as a turn takes, and not; whole tiles, and not; the largest sums of a block."""
    linear = int4_linear(columns, depth, block, bias=bias)
    x = (torch.randn(count, depth) * torch.logspace(-1, 1, count)[:, None]).to(dtype)
    x[-1] = 0
    x[0, :block] = x[0].abs().max()
    residual = torch.randn(count, columns).to(dtype)
    want = linear(x)
    linear.pair(rows_through)
    assert linear.is_paired
    prepared = plain_rows(x, linear)
    assert not prepared.is_unmade
    assert torch.equal(linear_rows(linear, prepared), want)
    assert torch.equal(linear_rows(linear, prepared, residual), residual + want)
    assert torch.equal(linear(x[:, None]), want[:, None])


def test_the_largest_sums_are_exact() -> None:
    linear = Int8Linear(torch.full((32, 11264), -127, dtype=torch.int8), torch.ones(32))
    x = torch.full((1, 11264), 127.0)
    assert torch.equal(linear_rows(linear, plain_rows(x, linear)), linear(x))


def test_linears_that_round_nothing_are_torchs_own() -> None:
    x, residual = torch.randn(3, 64), torch.randn(3, 48)
    weight_only = int8_linear(48, 64)
    weight_only.rounds_input = False
    full = Linear(64, 48)
    randomize(full, seed=2)
    for linear in (weight_only, full):
        prepared = plain_rows(x, linear)
        assert prepared.values is x
        assert torch.allclose(linear_rows(linear, prepared, residual), residual + linear(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("count", [1, 3, SHORT_ROWS])
def test_a_few_rows_are_what_they_are_among_many(count: int, dtype: torch.dtype) -> None:
    """To the bit, though one launch makes and multiplies them: normed, gated, with a residual."""
    norm, block = (
        RMSNorm(300, eps=1e-8, in_float32=True, dtype=dtype),
        GatedFeedForward("silu", 300, 96, dtype),
    )
    norm.alpha.fill_(1)
    for module in (norm, block):
        randomize(module, seed=3)
    for name in ("linear_in", "linear_out"):
        block.add_module(name, Int8Linear.quantize(getattr(block, name)))
    rows = SHORT_ROWS + 1
    many = (torch.randn(rows, 400)[:, :300] * torch.logspace(-2, 1, rows)[:, None]).to(dtype)
    many[1] = 0

    def fed(x: Tensor) -> Tensor:
        return linear_rows(block.linear_out, widened_rows(block, normed_rows(x, norm, block.linear_in)), x)

    assert torch.equal(fed(many[:count]), fed(many)[:count])


@pytest.mark.parametrize("is_int8", [False, True])
def test_norms_and_gates_are_those_of_the_modules(is_int8: bool) -> None:
    norm, block = RMSNorm(96, eps=1e-8, in_float32=True), GatedFeedForward("silu", 96, 96 * 4, torch.float32)
    norm.alpha.fill_(1)
    for module in (norm, block):
        randomize(module, seed=3)
    linear: nn.Module = block.linear_in
    if is_int8:
        linear = Int8Linear.quantize(block.linear_in)
        block.add_module("linear_out", Int8Linear.quantize(block.linear_out))
    count = SHORT_ROWS + 1
    x = torch.randn(count, 192)[:, :96] * 5
    normed = normed_rows(x, norm, linear)
    want = norm(x[:, None])[:, 0]
    projected = torch.randn(count, 2 * block.linear_out.in_features) * 3
    gated = gated_rows(projected, block)
    gate, value = projected.chunk(2, dim=1)
    for got, exact in ((normed, want), (gated, functional.silu(gate) * value)):
        assert (got.scale is not None) is is_int8
        wide = got.values.float() if got.scale is None else got.values * got.scale[:, None]
        spread = exact.abs().amax(1, keepdim=True) * (1 / 254 if is_int8 else 1e-6)
        assert ((wide - exact).abs() <= 1.001 * spread).all()


def test_other_norms_and_gates_take_the_way_of_torch() -> None:
    norm, block = RMSNorm(32, eps=1e-5, in_float32=False), GatedFeedForward("gelu", 32, 64, torch.float32)
    norm.alpha.fill_(1)
    for module in (norm, block):
        randomize(module, seed=3)
    x, projected = torch.randn(2, 32), torch.randn(2, 2 * block.linear_out.in_features)
    assert torch.equal(normed_rows(x, norm, block.linear_in).values, norm(x[:, None])[:, 0])
    gate, value = projected.chunk(2, dim=1)
    assert torch.equal(gated_rows(projected, block).values, functional.gelu(gate) * value)


@pytest.mark.parametrize(("count", "is_int8"), [(1, True), (2, False)])
def test_a_frame_begins_where_the_last_one_ended(count: int, is_int8: bool) -> None:
    """Slots and turns of torch, of rows of any age; each row goes on, the others stay."""
    config = TransformerConfig(dim=64, heads=2, layers=1, context=75, feed_forward=64, frame_positions=count)
    model = StreamingTransformer("t", config)
    state = State(model.specs(), 4)
    ages = state.tensors["t.position"]
    ages.copy_(torch.tensor([3, 0, 2**20 + 1, 74, 5]))
    step, before = state.step([2, NO_ROW, 1, 3]), ages.clone()
    is_there, compute = step.rows >= 0, Compute(kv=KVForm.INT8 if is_int8 else KVForm.COMPUTE)
    window = open_window("t", config, compute, step, count, 75)
    positions = (before[step.at][:, None] + torch.arange(count))[is_there]
    assert torch.equal(window.first[is_there], positions[:, 0])
    assert torch.equal(window.slots[is_there], positions % 75)
    wanted = rotation(positions, 32, config.max_period, interleaved=True)
    assert window.rotation is not None
    for got, want in ((window.rotation.cos, wanted.cos), (window.rotation.sin, wanted.sin)):
        apart = (got[is_there] - want).abs().amax(-1)[:, 0]
        assert (apart <= 1e-6 + 2**-23 * positions).all()  # a frequency is off by its last bit at most
    assert torch.equal(ages[:4] - before[:4], torch.tensor([0, count, count, count]))
    if is_int8:
        assert window.tickets is not None
        assert window.tickets.shape == (4, 2 * count + 1)
        assert not window.tickets.any()


@pytest.mark.parametrize(("form", "is_paged"), [(KVForm.COMPUTE, False), *((form, True) for form in KVForm)])
def test_a_place_without_a_row_writes_nothing(form: KVForm, is_paged: bool) -> None:
    """Neither keys nor values, wherever they might go; a named row's ring changes in its slot alone."""
    config = TransformerConfig(dim=64, heads=4, layers=1, context=5, feed_forward=64)
    attention = SelfAttention("t.0", config, Compute(kv=form))
    specs = attention.ring.specs()
    state = State([spec.pooled() if is_paged else spec for spec in specs], 3)
    if state.table is not None:
        state.table.pages.copy_(state.table.pages.flip(0))
    for tensor in state.tensors.values():
        tensor.fill_(77)
    step = state.step([NO_ROW, 1, NO_ROW])
    slots = torch.tensor([[0], [3], [2]])
    window = FrameWindow(torch.tensor([0, 3, 2]), slots, 5, rotation=None, tickets=None)
    queries(attention, torch.randn(3, 192), step, window)
    for name in state.tensors:
        untouched, written = (step.ring(name, Run(0, row, 1), 5)[0].clone() for row in (0, 1))
        assert (untouched == 77).all(), name
        assert (step.ring(name, Run(0, 2, 1), 5) == 77).all(), name
        if written.dim() == 4:  # values in pages
            written = written.transpose(-1, -2).flatten(1, 2)
        assert (written[:, 3] != 77).any(), name
        written[:, 3] = 77
        assert (written == 77).all(), name


@pytest.mark.parametrize("form", KVForm)
def test_keys_and_values_are_written_to_the_bit_as_by_torch(form: KVForm) -> None:
    """Loud heads, silent ones, and what is bounded first."""
    config = TransformerConfig(dim=64, heads=4, layers=1, context=70, feed_forward=64)
    attention = SelfAttention("t.0", config, Compute(kv=form))
    states = [State([spec.pooled() for spec in attention.ring.specs()], 2) for _ in range(2)]
    projected = torch.randn(2, 192) * torch.logspace(-3, 3, 192)
    projected[0, 64:80], projected[1, 130], projected[1, 100] = 0, math.nan, math.inf
    slots, steps = torch.tensor([[3], [66]]), [state.step([1, 0]) for state in states]
    window = FrameWindow(slots[:, 0], slots, 70, rotation=None, tickets=None)
    queries(attention, projected, steps[0], window)
    k, v = (
        split_heads(part[:, None].nan_to_num(nan=0.0).clamp(-LARGEST, LARGEST), 16)
        for part in projected[:, 64:].chunk(2, dim=1)
    )
    attention.ring.write(steps[1], slots, k, v)
    for name, tensor in states[0].tensors.items():
        assert tensor.count_nonzero()
        assert torch.equal(tensor, states[1].tensors[name]), name


def test_a_voice_is_looked_at_where_it_lies() -> None:
    config = TransformerConfig(dim=64, heads=4, layers=1, context=5, feed_forward=64, cross_positions=7)
    attention = CrossAttention("t.0", config)
    randomize(attention, seed=6)
    state = State(attention.specs(), 3)
    for tensor in state.tensors.values():
        tensor.copy_(torch.randn(tensor.shape))
    step, x = state.step([2, NO_ROW, 0]), torch.randn(3, 64)
    want, got = attention(x[:, None], step)[:, 0], attention.out_proj(cross_step(attention, x, step))
    assert torch.allclose(got[[0, 2]], want[[0, 2]], atol=1e-5)
    assert torch.equal(got[1], torch.zeros(64))


@pytest.mark.parametrize(
    ("channels", "past", "length"), [(1, 6, 1920), (64, 2, 480), (3, 4, 4), (600, 8, 2), (5, 1, 1)]
)
def test_a_past_is_joined_and_goes_on_as_by_torch(channels: int, past: int, length: int) -> None:
    """In a few frames, of rows in any order; the rows that are not named stay."""
    specs = [TensorSpec("past", (channels, past), torch.float32)]
    states = [State(specs, 4) for _ in range(2)]
    for tick in range(3):
        rows = torch.tensor([3, NO_ROW if tick == 1 else 0, 1])
        new = torch.randn(3, length, channels).transpose(1, 2)
        want, got = (
            PackedStep(state.tensors, rows, (), small_rows=5, is_padded=True, is_fused=is_fused).extend(
                "past", new
            )[rows >= 0]
            for state, is_fused in zip(states, (False, True), strict=True)
        )
        assert torch.equal(got, want)
        assert torch.equal(*(state.tensors["past"][:4] for state in states))


class Session:
    """Ticks of one language model over rows that pause and begin anew, with its own sampler."""

    def __init__(self, pair: LMPair, model: LanguageModel, rows: int) -> None:
        self._generator, self.is_fused = Generator(model, pair.spec), model.is_fused(torch.device("cpu"))
        self._sampler = Sampler(pair.spec, rows, "cpu", is_fused=self.is_fused)
        specs = [*self._generator.specs(), *self._sampler.specs()]
        if self.is_fused:
            specs = [spec.pooled() if spec.position is not None else spec for spec in specs]
        self.state = State(specs, rows)
        self._sampler.set(0, SamplingParameters(text_seed=4, audio_seed=5))
        self._sampler.set(1, SamplingParameters(text_temperature=0, audio_temperature=0))

    def tick(self, codes: Tensor, rows: list[int], reset: Tensor) -> tuple[Tensor, Tensor]:
        self.state.reset_rows(reset)
        filled = int(self.state.tensors["lm.position"][: self.state.rows].max()) + 1
        step = self.state.step(rows, [filled] * len(rows))
        out = self._generator.step(codes, step, self._sampler)
        is_there = step.rows >= 0
        return out.tokens[is_there], out.hidden[is_there]


def with_kernels(pair: LMPair, attention: str, form: KVForm, bits: int) -> LanguageModel:
    """The pair's weights in a model whose attention is as asked for; with 4 bits in rows of whole pairs."""
    spec = pair.spec
    model = LanguageModel(spec.config, steps=spec.dep_q, compute=Compute(attention=attention, kv=form))
    model.load_state_dict(pair.ours.model.state_dict())
    model.condition = pair.ours.model.condition
    for name, linear in list(model.named_modules()) if bits == 4 else []:
        if isinstance(linear, Linear) and follows_recipe(name) and linear.in_features % (2 * BLOCK) == 0:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Int4Linear(*nearest_int4(linear.weight.data)))
    return model.prepare(int8=bits == 8, rounds_input=bits == 4 or None)


@pytest.mark.parametrize(("shape", "changed", "form", "bits"), SHAPES)
def test_a_language_model_says_the_same(
    tmp_path: Path, shape: str, changed: dict[str, Any], form: KVForm, bits: int
) -> None:
    heads = 64 // fused.LEAST_HEAD_DIM[form]
    pair = make_lm_pair(tmp_path / shape, shape, dim=64, num_heads=heads, num_layers=1, **changed)
    plain, kernels = (
        Session(pair, with_kernels(pair, attention, form, bits), 3) for attention in ("torch", "auto")
    )
    assert kernels.is_fused
    near = 1e-2 if form.is_rounded else 1e-4  # a key that is rounded the other way is felt
    random = torch.Generator().manual_seed(1)
    heard = pair.spec.n_q - pair.spec.dep_q
    for tick in range(3):
        codes = torch.randint(pair.spec.card, (3, heard), generator=random)
        rows = [2 if tick > 1 else NO_ROW, 0, NO_ROW if tick == 1 else 1]
        reset = torch.tensor([False, tick == 2, False])
        want, got = plain.tick(codes, rows, reset), kernels.tick(codes, rows, reset)
        assert torch.equal(got[0], want[0])
        assert torch.allclose(got[1], want[1], rtol=1e-3, atol=near)
    for row in range(3):  # of which one has its rings in pages
        ours, theirs = (session.state.snapshot(row) for session in (plain, kernels))
        for name, tensor in ours.items():
            other = theirs[name]
            if form.is_packed(name[-1]) and tensor.dtype == torch.int8:
                tensor, other = unpack_halves(tensor), unpack_halves(other)
            apart = (tensor.double() - other.double()).abs()
            assert float(apart.max()) <= (4 if tensor.dtype == torch.int8 else near), name


def test_long_rows_are_made_on_the_way_up_to_a_few() -> None:
    assert makes_rows(FEW_ROWS, 4096)
    assert not makes_rows(FEW_ROWS + 1, 4096)
    assert makes_rows(SHORT_ROWS, SHORT_DEPTH)
    assert not makes_rows(SHORT_ROWS + 1, SHORT_DEPTH)


@pytest.mark.parametrize("scale", [1.0, 0.3, 3e-14, 7e8])
def test_a_product_rounds_by_a_reciprocal_as_by_the_division(scale: float) -> None:
    """Halves and their neighbours too: there a quotient that is off by its last bit goes the other way."""
    step = torch.tensor(scale) * torch.linspace(0.7, 1.3, 64)[:, None]
    halves = (torch.arange(127) + 0.5) * step
    x = torch.cat([torch.nextafter(halves, halves * 2), halves, torch.nextafter(halves, -halves)], dim=1)
    x = torch.cat([x, -x, 127 * step], dim=1)
    linear = int8_linear(16, x.shape[1])
    for some in x.split(SHORT_ROWS):
        values, _ = quantize_tokens(some)
        wanted = linear(some)
        assert values.abs().max() == 127
        assert torch.equal(linear_rows(linear, plain_rows(some, linear)), wanted)
