"""Attention kernels on a CPU compared with torch; run by ``test_steps.py``."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.torch.kernels.steps import decode_attention
from antiphon.backends.torch.modules import transformer
from antiphon.backends.torch.modules.attention import Compute, KVRing, RingView
from antiphon.backends.torch.modules.kv_forms import KVForm, unpack_halves
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import NO_ROW, PackedStep, Run, State
from antiphon.models.architecture import TransformerConfig

CAPACITY, SPLIT, BLOCK = 76, 32, 16  # three splits, the last one ragged; two of an INT8 ring, one a page
ROWS = 4
LIMB_ERROR = 5e-4
"""Relative to float64, of INT8 attention; bfloat16 queries and weights would give 2e-3 to 5e-3."""
NAME = "layer"


def test_the_kernels_are_interpreted() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"


def ring_of(kv_heads: int, head_dim: int, form: KVForm, dtype: torch.dtype = torch.float32) -> KVRing:
    return KVRing(NAME, kv_heads, CAPACITY, head_dim, dtype, "position", form)


def live(ring: KVRing, rows: list[int], last: Tensor, pages: Tensor | None = None) -> PackedStep:
    """A step over rows of a ring of ROWS, written up to ``last``; every other slot is NaN or garbage.

    A rounded ring, and any with ``pages``, is in pages: those, or in an order of their own.
    """
    specs = list(ring.specs())
    is_paged = ring.form.is_rounded or pages is not None
    state = State([spec.pooled() for spec in specs] if is_paged else specs, ROWS)
    if state.table is not None:
        table = state.table.pages
        if pages is None:
            pages = torch.randperm(table.numel()).view_as(table)
        table.copy_(pages)
    for name, tensor in state.tensors.items():
        tensor.fill_(77 if tensor.dtype == torch.int8 else float("nan"))
        assert name.startswith(NAME)
    for place, row in enumerate(rows):
        if row == NO_ROW:
            continue
        for position in range(max(0, int(last[place]) + 1 - CAPACITY), int(last[place]) + 1):
            slots = torch.tensor([[position % CAPACITY]])
            k, v = torch.randn(2, 1, ring.heads, 1, ring.head_dim) * 3
            ring.write(state.step([row]), slots, k.to(ring.dtype), v.to(ring.dtype))
    return state.step(rows)


def by_torch(q: Tensor, ring: KVRing, step: PackedStep, first: Tensor, length: int) -> Tensor:
    """What the torch path computes: the same read, the same mask."""
    positions = first[:, None] + torch.arange(q.shape[2])
    held = transformer.ring_positions(positions[:, -1], length, CAPACITY)
    mask = ((held[:, None] >= 0) & (held[:, None] <= positions[:, :, None]))[:, None]
    rows = [
        replace(ring, dtype=q.dtype).read(step, Run(0, max(row, 0), 1), length) for row in step.rows.tolist()
    ]
    k, v = (torch.cat(part).nan_to_num().to(q.dtype) for part in zip(*rows, strict=True))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def by_triton(q: Tensor, view: RingView, first: Tensor, rows: Tensor, length: int) -> Tensor:
    split = SPLIT if view.pages is None else PAGE_SLOTS
    return decode_attention(q, view, first, rows, length, split_slots=split, block_slots=BLOCK)


@pytest.mark.parametrize("form", [KVForm.COMPUTE, KVForm.INT8])
@pytest.mark.parametrize("head_dim", [64, 128])
@settings(max_examples=4)
@given(
    firsts=st.lists(st.integers(0, 3 * CAPACITY), min_size=1, max_size=3),
    count=st.sampled_from([1, 1, 2, 3]),
    group=st.sampled_from([1, 2]),
    order=st.permutations(range(ROWS)),
    absent=st.integers(0, 7),
    slack=st.integers(0, 5),
)
def test_equals_the_torch_path(
    form: KVForm,
    head_dim: int,
    firsts: list[int],
    count: int,
    group: int,
    order: list[int],
    absent: int,
    slack: int,
) -> None:
    """Rows in any order at any place; a place without one gets zeros, whatever the rings hold."""
    torch.manual_seed(sum(firsts))
    first = torch.tensor(firsts)
    ring = ring_of(2, head_dim, form)
    rows = [NO_ROW if absent >> place & 1 else row for place, row in enumerate(order[: len(firsts)])]
    step = live(ring, rows, first + count - 1)
    q, is_there = torch.randn(len(rows), 2 * group, count, head_dim), step.rows >= 0
    filled = int((first + count)[is_there].max()) if is_there.any() else 1
    length = min(CAPACITY, filled + slack)
    got = by_triton(q, ring.view(step), first, step.rows, length)
    want = by_torch(q.double() if form.is_rounded else q, ring, step, first, length)
    if form.is_rounded:  # two limbs have 15 bits, beside float64
        error = (got[is_there] - want[is_there]).norm()
        assert error <= LIMB_ERROR * want[is_there].norm()
    else:
        assert torch.allclose(got[is_there], want[is_there], atol=3e-5, rtol=1e-4)
    assert (got[~is_there] == 0).all()


@pytest.mark.parametrize("form", [KVForm.COMPUTE, KVForm.INT8, KVForm.INT4])
@pytest.mark.parametrize("last", [PAGE_SLOTS - 1, PAGE_SLOTS, 2 * CAPACITY + 5])
def test_where_pages_lie_changes_no_bit(form: KVForm, last: int) -> None:
    """Of a ring in one piece, of pages in order, and of pages anywhere."""
    first, q = torch.tensor([last, 40]), torch.randn(2, 4, 1, 64)
    ring, ordered = ring_of(2, 64, form), torch.arange(2 * ROWS, dtype=torch.int32).view(ROWS, 2)
    found = []
    for pages in (ordered, ordered.flip(0, 1), *([] if form.is_rounded else [None])):
        torch.manual_seed(last)
        step = live(ring, [2, 0], first, pages)
        view = ring.view(step)
        found.append(decode_attention(q, view, first, step.rows, CAPACITY, split_slots=PAGE_SLOTS))
    assert all(torch.equal(found[0], other) for other in found[1:])


def expanded(view: RingView) -> RingView:
    """The same whole numbers and scales as an INT8 ring."""
    k = unpack_halves(view.k) if view.form.is_packed("k") else view.k
    v = view.v.transpose(-1, -2)
    v = (unpack_halves(v) if view.form.is_packed("v") else v).transpose(-1, -2)
    return replace(view, form=KVForm.INT8, k=k.contiguous(), v=v.contiguous())


@pytest.mark.parametrize("form", [KVForm.INT8_INT4, KVForm.INT4])
@settings(max_examples=2)
@given(
    firsts=st.lists(st.integers(0, 3 * CAPACITY), min_size=2, max_size=2),
    count=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 2]),
)
def test_packed_rings_give_the_bits_of_their_numbers_in_int8(
    form: KVForm, firsts: list[int], count: int, group: int
) -> None:
    torch.manual_seed(sum(firsts))
    first, ring = torch.tensor(firsts), ring_of(2, 64, form)
    step = live(ring, [3, 1], first + count - 1)
    q, view = torch.randn(2, 2 * group, count, 64), ring.view(step)
    got, want = (by_triton(q, one, first, step.rows, CAPACITY) for one in (view, expanded(view)))
    assert got.abs().max() > 0.1
    assert torch.equal(got, want)


def limbs_of(values: Tensor, largest: Tensor) -> Tensor:
    """``[N]`` in 127ths of the largest, and what is left in 254ths of those: float32 ``[2, N]``, whole."""
    wide = values * (127.0 / largest)
    return torch.stack([wide.round(), ((wide - wide.round()) * 254.0).round()])


def added(values: Tensor) -> Tensor:
    """A sum in numpy's order, which is the interpreter's."""
    return torch.from_numpy(np.asarray(values.numpy().sum(dtype=np.float32)))


def by_limbs(q: Tensor, view: RingView, last: int, row: int) -> Tensor:
    """Attention of one query ``[H, D]`` as it is defined: page by page, whole numbers added up exactly.

    A split is a page here; where the splits are joined, each is scaled to the highest score of all.
    """
    assert view.pages is not None
    assert view.k_scale is not None
    assert view.v_scale is not None
    unit, filled, outputs = torch.tensor([1.0, 1 / 254.0]), min(last + 1, view.capacity), []
    one, log2_scale = expanded(view), torch.tensor(math.log2(math.e) / math.sqrt(q.shape[1]))
    for head, query in enumerate(q):
        largest, splits = query.abs().max().clamp_min(1e-20), []
        for begin in range(0, filled, PAGE_SLOTS):
            page, seen = int(view.pages[row, begin // PAGE_SLOTS]), min(PAGE_SLOTS, filled - begin)
            products = (limbs_of(query, largest).long() @ one.k[page, head].long().T).float()
            scores = (products * unit[:, None]).sum(0)
            scores *= view.k_scale[page, head] * (largest * (log2_scale / 127.0))
            scores[seen:] = -math.inf
            highest = scores.max()
            weights = torch.from_numpy(np.exp2((scores - highest).numpy()))
            total, scale = added(weights), view.v_scale[page, head].clone()
            scale[seen:] = 0
            weights = weights * scale
            heaviest = weights.max().clamp_min(1e-20)
            products = (limbs_of(weights, heaviest).long() @ one.v[page, head].long().T).float()
            splits.append((highest, total, (products * (unit * (heaviest / 127.0))[:, None]).sum(0)))
        highest, total, mixed = (torch.stack(part) for part in zip(*splits, strict=True))
        grow = torch.from_numpy(np.exp2((highest - highest.max()).numpy()))
        outputs.append((mixed * grow[:, None]).sum(0) / added(total * grow))
    return torch.stack(outputs)


@pytest.mark.parametrize("form", [KVForm.INT8, KVForm.INT8_INT4, KVForm.INT4])
@pytest.mark.parametrize("last", [PAGE_SLOTS - 1, 2 * CAPACITY])
def test_rounded_rings_give_the_bits_of_the_definition(form: KVForm, last: int) -> None:
    torch.manual_seed(last)
    first, ring = torch.tensor([last, 40]), ring_of(2, 64, form)
    step = live(ring, [2, 0], first)
    q, view = torch.randn(2, 2, 1, 64), ring.view(step)
    got = by_triton(q, view, first, step.rows, CAPACITY)
    for place, row in enumerate((2, 0)):
        assert torch.equal(got[place, :, 0], by_limbs(q[place, :, 0], view, int(first[place]), row))


@pytest.mark.parametrize("loudness", [1e-6, 1.0, 3.0, 1e6])
def test_limbs_are_near_float64_at_any_loudness(loudness: float) -> None:
    """Of queries and values; scores of thousands are a softmax of one key, and still bounded."""
    torch.manual_seed(1)
    first = torch.tensor([CAPACITY - 1, 40])
    ring = ring_of(2, 128, KVForm.INT8)
    step = live(ring, [0, 1], first)
    q = torch.randn(2, 2, 1, 128) * loudness
    got, want = (
        by_triton(q, ring.view(step), first, step.rows, CAPACITY),
        by_torch(q.double(), ring, step, first, CAPACITY),
    )
    assert torch.isfinite(got).all()
    assert (got - want).norm() <= LIMB_ERROR * want.norm()


def test_a_silent_query_and_silent_values_are_exact() -> None:
    ring, first = ring_of(1, 64, KVForm.INT8), torch.tensor([9])
    step = live(ring, [0], first)
    got = by_triton(torch.zeros(1, 1, 1, 64), ring.view(step), first, step.rows, CAPACITY)
    want = by_torch(torch.zeros(1, 1, 1, 64), ring, step, first, CAPACITY)
    assert torch.allclose(got, want, atol=1e-4)
    step.whole(f"{NAME}.v").zero_()
    assert (by_triton(torch.randn(1, 1, 1, 64), ring.view(step), first, step.rows, CAPACITY) == 0).all()


@pytest.mark.parametrize("form", [KVForm.COMPUTE, KVForm.INT8])
def test_half_precision_is_as_close_to_float32_as_torchs_own(form: KVForm) -> None:
    """In float16: the interpreter multiplies bfloat16 as if its bits were integers."""
    torch.manual_seed(0)
    first = torch.tensor([5, 100])
    ring = ring_of(2, 64, form, torch.float16)
    step = live(ring, [0, 1], first)
    q = torch.randn(2, 4, 1, 64).half()
    got = by_triton(q, ring.view(step), first, step.rows, CAPACITY)
    assert got.dtype == torch.float16
    exact = by_torch(q.float(), ring, step, first, CAPACITY)
    error, torchs = (
        float((found.float() - exact).norm() / exact.norm())
        for found in (got, by_torch(q, ring, step, first, CAPACITY))
    )
    assert error < 1.5 * torchs < 0.02


def test_queries_of_any_layout_and_outputs_that_merge_without_a_copy() -> None:
    first = torch.tensor([40, 90])
    ring = ring_of(2, 64, KVForm.COMPUTE)
    step = live(ring, [0, 1], first + 1)
    q = torch.randn(2, 2, 4, 64).transpose(1, 2)
    got = by_triton(q, ring.view(step), first, step.rows, CAPACITY)
    assert torch.allclose(got, by_torch(q, ring, step, first, CAPACITY), atol=3e-5, rtol=1e-4)
    assert got.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("form", [KVForm.COMPUTE, KVForm.INT8_INT4])
def test_a_transformer_says_the_same_with_it(monkeypatch: pytest.MonkeyPatch, form: KVForm) -> None:
    """Two frames' positions a tick, grouped heads, rows that pause, places without a row, past the wrap.

    Rows that are not named keep every bit of their rings.
    """
    config = TransformerConfig(
        dim=64,
        heads=4,
        layers=2,
        context=10,
        feed_forward=64,
        kv_repeat=2,
        frame_positions=2,
        layer_scale=True,
    )
    model = StreamingTransformer("t", config, Compute(kv=form))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    in_pages = [spec.pooled() if spec.position is not None else spec for spec in model.specs()]
    states = [State(model.specs(), 3), State(in_pages, 3)]
    outputs: list[Tensor] = []
    for tick in range(8):
        x = torch.randn(3, 2, 64)
        rows = [2 if tick > 4 else NO_ROW, NO_ROW if tick % 3 == 1 else 1, 0]
        is_there = torch.tensor(rows) >= 0
        for state, is_fused in zip(states, (False, True), strict=True):
            monkeypatch.setattr(transformer, "is_fused", lambda *_, is_fused=is_fused: is_fused)
            before = {row: state.snapshot(row) for row in {0, 1, 2} - set(rows)}
            outputs.append(model(x, state.step(rows, [tick + 1] * 3))[is_there])
            for row, kept in before.items():
                for name, tensor in state.snapshot(row).items():
                    assert torch.equal(tensor, kept[name]), (row, name)
    for want, got in zip(outputs[::2], outputs[1::2], strict=True):
        assert torch.allclose(got, want, atol=2e-3 if form.is_rounded else 1e-4)
