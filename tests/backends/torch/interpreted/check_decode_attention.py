"""The Triton kernels on a CPU, against the torch path; run by ``test_steps.py``."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.torch.kernels.steps import decode_attention
from antiphon.backends.torch.modules import transformer
from antiphon.backends.torch.modules.attention import Compute, KVRing, RingView
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


def ring_of(kv_heads: int, head_dim: int, int8: bool, dtype: torch.dtype = torch.float32) -> KVRing:
    return KVRing(NAME, kv_heads, CAPACITY, head_dim, dtype, "position", int8=int8)


def live(ring: KVRing, rows: list[int], last: Tensor, pages: Tensor | None = None) -> PackedStep:
    """A step over rows of a ring of ROWS, written up to ``last``; every other slot is NaN or garbage.

    An INT8 ring, and any with ``pages``, is in pages: those, or in an order of their own.
    """
    specs = list(ring.specs())
    is_paged = ring.int8 or pages is not None
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


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
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
    int8: bool,
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
    ring = ring_of(2, head_dim, int8)
    rows = [NO_ROW if absent >> place & 1 else row for place, row in enumerate(order[: len(firsts)])]
    step = live(ring, rows, first + count - 1)
    q, is_there = torch.randn(len(rows), 2 * group, count, head_dim), step.rows >= 0
    filled = int((first + count)[is_there].max()) if is_there.any() else 1
    length = min(CAPACITY, filled + slack)
    got = by_triton(q, ring.view(step), first, step.rows, length)
    want = by_torch(q.double() if int8 else q, ring, step, first, length)
    if int8:  # two limbs have 15 bits, beside float64
        error = (got[is_there] - want[is_there]).norm()
        assert error <= LIMB_ERROR * want[is_there].norm()
    else:
        assert torch.allclose(got[is_there], want[is_there], atol=3e-5, rtol=1e-4)
    assert (got[~is_there] == 0).all()


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("last", [3, PAGE_SLOTS - 1, PAGE_SLOTS, CAPACITY - 1, 2 * CAPACITY + 5])
def test_where_pages_lie_changes_no_bit(int8: bool, last: int) -> None:
    """Of a ring in one piece, of pages in order, and of pages anywhere."""
    first, q = torch.tensor([last, 40]), torch.randn(2, 4, 1, 64)
    ring, ordered = ring_of(2, 64, int8), torch.arange(2 * ROWS, dtype=torch.int32).view(ROWS, 2)
    found = []
    for pages in (ordered, ordered.flip(0, 1), *([] if int8 else [None])):
        torch.manual_seed(last)
        step = live(ring, [2, 0], first, pages)
        view = ring.view(step)
        found.append(decode_attention(q, view, first, step.rows, CAPACITY, split_slots=PAGE_SLOTS))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("loudness", [1e-6, 1.0, 3.0, 1e6])
def test_limbs_are_near_float64_at_any_loudness(loudness: float) -> None:
    """Of queries and values; scores of thousands are a softmax of one key, and still bounded."""
    torch.manual_seed(1)
    first = torch.tensor([CAPACITY - 1, 40])
    ring = ring_of(2, 128, int8=True)
    step = live(ring, [0, 1], first)
    q = torch.randn(2, 2, 1, 128) * loudness
    got, want = (
        by_triton(q, ring.view(step), first, step.rows, CAPACITY),
        by_torch(q.double(), ring, step, first, CAPACITY),
    )
    assert torch.isfinite(got).all()
    assert (got - want).norm() <= LIMB_ERROR * want.norm()


def test_a_silent_query_and_silent_values_are_exact() -> None:
    ring, first = ring_of(1, 64, int8=True), torch.tensor([9])
    step = live(ring, [0], first)
    got = by_triton(torch.zeros(1, 1, 1, 64), ring.view(step), first, step.rows, CAPACITY)
    want = by_torch(torch.zeros(1, 1, 1, 64), ring, step, first, CAPACITY)
    assert torch.allclose(got, want, atol=1e-4)
    step.whole(f"{NAME}.v").zero_()
    assert (by_triton(torch.randn(1, 1, 1, 64), ring.view(step), first, step.rows, CAPACITY) == 0).all()


@pytest.mark.parametrize("int8", [False, True], ids=["float16", "int8"])
def test_half_precision_is_as_close_to_float32_as_torchs_own(int8: bool) -> None:
    """In float16: the interpreter multiplies bfloat16 as if its bits were integers."""
    torch.manual_seed(0)
    first = torch.tensor([5, 100])
    ring = ring_of(2, 64, int8, torch.float16)
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
    ring = ring_of(2, 64, int8=False)
    step = live(ring, [0, 1], first + 1)
    q = torch.randn(2, 2, 4, 64).transpose(1, 2)
    got = by_triton(q, ring.view(step), first, step.rows, CAPACITY)
    assert torch.allclose(got, by_torch(q, ring, step, first, CAPACITY), atol=3e-5, rtol=1e-4)
    assert got.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_a_transformer_says_the_same_with_it(monkeypatch: pytest.MonkeyPatch, int8: bool) -> None:
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
    model = StreamingTransformer("t", config, Compute(int8_kv=int8))
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
        assert torch.allclose(got, want, atol=2e-3 if int8 else 1e-4)
